"""The block manager against a model that only counts sets; and the digests that name blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_support import IDENTITY
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from baton.engine.blocks import BlockManager, Holding
from baton.engine.prefix import block_digest, block_digests, root_digest

NUM_BLOCKS = 8
ROOT = root_digest(IDENTITY, "")


def chain(name: int, length: int) -> list[bytes]:
    """Digests of one of a few prompts; prompts 0 and 1 share their first two blocks."""
    ids = [[0, 0, index, index] if index < 2 and name < 2 else [name, 1, index, index] for index in range(length)]
    return block_digests(ROOT, [token_id for block in ids for token_id in block], 4)


class Blocks(RuleBasedStateMachine):
    """Naive model: tables by holding, promises by holding, and what each cached digest's block must be."""

    holdings = Bundle("holdings")

    def __init__(self) -> None:
        super().__init__()
        self.blocks = BlockManager(NUM_BLOCKS, 4)
        self.tables: dict[Holding, list[int]] = {}
        self.promises: dict[Holding, int] = {}
        self.named: dict[bytes, int] = {}

    @property
    def used(self) -> set[int]:
        return {block_id for table in self.tables.values() for block_id in table}

    @property
    def num_available(self) -> int:
        return NUM_BLOCKS - len(self.used) - sum(self.promises.values())

    def track(self, holding: Holding) -> Holding:
        self.tables[holding], self.promises[holding] = list(holding.block_ids), holding.promised
        return holding

    def check_fresh(self, block_ids: list[int], used_before: set[int]) -> None:
        assert not used_before & set(block_ids)
        assert len(set(block_ids)) == len(block_ids)
        self.named = {digest: block_id for digest, block_id in self.named.items() if block_id not in block_ids}

    @rule(target=holdings, name=st.integers(0, 3), num_new=st.integers(0, 4), promised=st.integers(0, 4))
    def hold(self, name: int, num_new: int, promised: int) -> object:
        cached_ids = self.blocks.lookup(chain(name, 4))
        assert all(self.named[digest] == block_id for digest, block_id in zip(chain(name, 4), cached_ids, strict=False))
        used_before = self.used
        demand = len(set(cached_ids) - used_before) + num_new + promised
        holding = self.blocks.hold(cached_ids, num_new, promised)
        assert (holding is not None) == (demand <= self.num_available)
        if holding is None:
            return multiple()
        assert holding.block_ids[: len(cached_ids)] == cached_ids
        self.check_fresh(holding.block_ids[len(cached_ids) :], used_before | set(cached_ids))
        assert len(holding.block_ids) == len(cached_ids) + num_new
        return self.track(holding)

    @rule(holding=holdings)
    def extend(self, holding: Holding) -> None:
        could, used_before = bool(holding.promised or self.num_available > 0), self.used
        assert self.blocks.extend(holding) == could
        if could:
            self.check_fresh(holding.block_ids[-1:], used_before)
            self.track(holding)

    @rule(target=holdings, parent=holdings, num_shared=st.integers(0, 4), num_new=st.integers(0, 1), promised=st.integers(0, 2))
    def fork(self, parent: Holding, num_shared: int, num_new: int, promised: int) -> object:
        if num_new + promised > parent.promised:
            with pytest.raises(ValueError, match="exceeds the promise"):
                self.blocks.fork(parent, num_shared, num_new, promised)
            return multiple()
        used_before = self.used
        child = self.blocks.fork(parent, num_shared, num_new, promised)
        shared = parent.block_ids[:num_shared]
        assert child.block_ids[: len(shared)] == shared
        self.check_fresh(child.block_ids[len(shared) :], used_before)
        self.track(parent)
        return self.track(child)

    @rule(holding=holdings, promised=st.integers(0, 3))
    def waive(self, holding: Holding, promised: int) -> None:
        self.blocks.waive(holding, promised)
        self.promises[holding] = min(self.promises[holding], promised)

    @rule(holding=consumes(holdings))
    def drop(self, holding: Holding) -> None:
        self.blocks.drop(holding)
        del self.tables[holding], self.promises[holding]

    @precondition(lambda self: self.tables)
    @rule(holding=holdings, name=st.integers(0, 3))
    def publish(self, holding: Holding, name: int) -> None:
        for block_id, digest in zip(holding.block_ids, chain(name, 4), strict=False):
            self.blocks.publish(block_id, digest)
            if digest not in self.named and block_id not in self.named.values():
                self.named[digest] = block_id

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.blocks.check_integrity()
        assert self.blocks.num_available == self.num_available
        assert self.blocks.num_kept == len(set(self.named.values()) - self.used)
        assert all(holding.block_ids == table for holding, table in self.tables.items())
        assert all(holding.promised == promised for holding, promised in self.promises.items())


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_the_least_recently_used_chain_goes_first_and_its_tail_before_its_head() -> None:
    blocks = BlockManager(6, 4)
    for name in (2, 3):
        holding = blocks.hold([], 3)
        assert holding is not None
        for block_id, digest in zip(holding.block_ids, chain(name, 3), strict=True):
            blocks.publish(block_id, digest)
        blocks.drop(holding)
    touched = blocks.hold(blocks.lookup(chain(2, 3)), 0)
    assert touched is not None
    blocks.drop(touched)
    assert blocks.hold([], 2) is not None
    assert [len(blocks.lookup(chain(name, 3))) for name in (2, 3)] == [3, 1]


def test_integrity_names_what_is_wrong() -> None:
    blocks = BlockManager(4, 4)
    holding = blocks.hold([], 2, 1)
    assert holding is not None
    blocks.check_integrity()
    holding.block_ids.pop()
    with pytest.raises(RuntimeError, match="reference counts"):
        blocks.check_integrity()


def test_digests_depend_on_everything_before_and_on_the_root() -> None:
    ids = list(range(12))
    digests = block_digests(ROOT, ids, 4)
    assert len(digests) == 3
    assert block_digests(ROOT, ids[:11], 4) == digests[:2]
    assert block_digest(digests[0], ids[4:8]) == digests[1]
    assert block_digests(ROOT, [99, *ids[1:]], 4)[2] != digests[2]
    assert block_digests(ROOT, [], 4) == []
    roots = {ROOT, root_digest(IDENTITY, "tenant"), root_digest(replace(IDENTITY, recipe="w4a8"), "")}
    assert len(roots) == 3
    assert root_digest(replace(IDENTITY, rope="a", tokenizer_digest="bc"), "") != root_digest(
        replace(IDENTITY, rope="ab", tokenizer_digest="c"), ""
    )
