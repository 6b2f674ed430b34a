"""Who holds which block: free list, reference counts, promises, and the prefix cache.

A block is in exactly one of three states:

    free    nobody's, content meaningless
    used    in the table of one or more holdings; more than one only for a shared prefix, which nobody writes
    kept    in no table, but named by a digest in the prefix cache; the least recently used is evicted when blocks run short

A promise is a count, not a block: free + kept never falls below the sum of all promises, so redeeming one cannot fail.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from baton.engine.prefix import Digest


@dataclass(eq=False, slots=True)
class Holding:
    """One sequence's block table and the further blocks promised to it. Owned by that sequence until `drop`."""

    block_ids: list[int] = field(default_factory=list)
    promised: int = 0


class BlockManager:
    """Hands out blocks by index. Not thread-safe: the engine thread alone calls it."""

    def __init__(self, num_blocks: int, block_size: int):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = deque(range(num_blocks))
        self._refs = [0] * num_blocks
        self._kept: OrderedDict[int, None] = OrderedDict()  # oldest first
        self._block_of: dict[Digest, int] = {}
        self._digest_of: dict[int, Digest] = {}
        self._holdings: set[Holding] = set()
        self._promised = 0

    @property
    def num_available(self) -> int:
        """Blocks that can still be taken or promised."""
        return len(self._free) + len(self._kept) - self._promised

    @property
    def num_used(self) -> int:
        """Blocks in tables or promised: what `num_available` lacks to the total."""
        return self.num_blocks - self.num_available

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    @property
    def num_holdings(self) -> int:
        return len(self._holdings)

    def lookup(self, digests: Sequence[Digest]) -> list[int]:
        """Blocks of the longest cached prefix of the chain `digests`. Pins nothing: `hold` them before anything else."""
        found = []
        for digest in digests:
            block_id = self._block_of.get(digest)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def hold(self, cached_ids: Sequence[int], num_new: int, promised: int = 0) -> Holding | None:
        """Pins `cached_ids`, takes `num_new` blocks after them and promises more: all of it, or None and no change."""
        num_unpinned = sum(self._refs[block_id] == 0 for block_id in cached_ids)
        if num_unpinned + num_new + promised > self.num_available:
            return None
        self._pin(cached_ids)
        holding = Holding([*cached_ids, *(self._take() for _ in range(num_new))], promised)
        self._promised += promised
        self._holdings.add(holding)
        return holding

    def extend(self, holding: Holding) -> bool:
        """Adds a block to the table, out of the holding's promise if it has one; False if there is none to be had."""
        if holding.promised:
            self._redeem(holding)
        elif self.num_available < 1:
            return False
        holding.block_ids.append(self._take())
        return True

    def fork(self, parent: Holding, num_shared: int, num_new: int, promised: int) -> Holding:
        """A holding of the parent's first `num_shared` blocks by reference and `num_new` of its own, for another sequence.

        Both the new blocks and `promised` come out of the parent's promise: ValueError if it is too small.
        """
        if num_new + promised > parent.promised:
            raise ValueError(f"a fork of {num_new} blocks and {promised} promised exceeds the promise of {parent.promised}")
        self._redeem(parent, num_new)
        parent.promised -= promised
        shared = parent.block_ids[:num_shared]
        self._pin(shared)
        child = Holding([*shared, *(self._take() for _ in range(num_new))], promised)
        self._holdings.add(child)
        return child

    def waive(self, holding: Holding, promised: int) -> None:
        """Gives back the holding's promise down to `promised`."""
        self._redeem(holding, max(0, holding.promised - promised))

    def drop(self, holding: Holding) -> None:
        """Ends a holding: its blocks are freed, or kept as cache if they have a digest. The table's tail goes stale first."""
        self._holdings.remove(holding)
        self.waive(holding, 0)
        for block_id in reversed(holding.block_ids):
            self._refs[block_id] -= 1
            if self._refs[block_id] == 0:
                self._retire(block_id)
        holding.block_ids = []

    def publish(self, block_id: int, digest: Digest) -> None:
        """Names a full, computed block that will not be written again. The first block of a digest wins."""
        if digest not in self._block_of and block_id not in self._digest_of:
            self._block_of[digest] = block_id
            self._digest_of[block_id] = digest

    def check_integrity(self) -> None:
        """RuntimeError if a block is lost, counted twice, or promised without cover."""
        refs = [0] * self.num_blocks
        for holding in self._holdings:
            for block_id in holding.block_ids:
                refs[block_id] += 1
        used = {block_id for block_id, count in enumerate(refs) if count}
        names = {block_id: digest for digest, block_id in self._block_of.items()}
        faults = [
            fault
            for fault, is_fault in (
                ("reference counts differ from the holdings", refs != self._refs),
                ("free, kept and used do not add up", len(self._free) + len(self._kept) + len(used) != self.num_blocks),
                ("a block is in two states", len({*self._free, *self._kept, *used}) != self.num_blocks),
                ("promises differ from the holdings", self._promised != sum(h.promised for h in self._holdings)),
                ("promises are not covered", self.num_available < 0),
                ("digests and blocks disagree", names != self._digest_of),
                ("a kept block has no digest", not self._kept.keys() <= names.keys()),
                ("a free block has a digest", not names.keys().isdisjoint(self._free)),
            )
            if is_fault
        ]
        if faults:
            raise RuntimeError("; ".join(faults))

    def _pin(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            self._refs[block_id] += 1
            self._kept.pop(block_id, None)

    def _take(self) -> int:
        block_id = self._free.popleft() if self._free else self._evict()
        self._refs[block_id] = 1
        return block_id

    def _evict(self) -> int:
        block_id, _ = self._kept.popitem(last=False)
        del self._block_of[self._digest_of.pop(block_id)]
        return block_id

    def _retire(self, block_id: int) -> None:
        if block_id in self._digest_of:
            self._kept[block_id] = None
        else:
            self._free.append(block_id)

    def _redeem(self, holding: Holding, count: int = 1) -> None:
        holding.promised -= count
        self._promised -= count
