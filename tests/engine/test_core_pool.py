"""The pool's bytes: wire order, runs over blocks of other sizes, refusal of what does not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.engine.config import EngineConfig
from baton.engine.kv_pool import KvPool
from baton.wire.types import KvLayout


def make_pool(block_size: int = 4, num_blocks: int = 6, dtype: str = "float32") -> KvPool:
    return KvPool(KvLayout(3, block_size, 2, 5, dtype), num_blocks)


def filled(pool: KvPool) -> KvPool:
    pool.tensor.copy_(torch.arange(pool.tensor.numel()).reshape(pool.tensor.shape) % 251)
    return pool


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_whole_block_is_a_view_in_wire_order(dtype: str) -> None:
    pool = filled(make_pool(dtype=dtype))
    payload = pool.gather([5, 2], 4, 8, 0, 3)
    assert payload.nbytes == pool.layout.block_bytes
    assert payload.readonly
    assert bytes(payload) == pool.tensor[2].contiguous().view(torch.uint8).numpy().tobytes()
    pool.tensor[2, 0, 0, 0, 0, 0] = 77
    assert bytes(payload) == pool.tensor[2].contiguous().view(torch.uint8).numpy().tobytes(), "not a copy"


def test_part_of_a_block_is_its_tokens_of_k_and_v() -> None:
    pool = filled(make_pool())
    payload = np.frombuffer(pool.gather([3], 1, 3, 1, 3), np.float32)
    assert (payload.reshape(2, 2, 2, 2, 5) == pool.tensor[3, 1:3, :, 1:3].numpy()).all()


@settings(max_examples=60, deadline=None)
@given(
    source_size=st.sampled_from([1, 2, 4, 16]),
    target_size=st.sampled_from([1, 3, 4, 16]),
    start=st.integers(0, 30),
    length=st.integers(1, 30),
    data=st.data(),
)
def test_frames_of_one_block_size_land_in_another(
    source_size: int, target_size: int, start: int, length: int, data: st.DataObject
) -> None:
    end = start + length
    source, target = filled(make_pool(source_size, 64)), make_pool(target_size, 64)
    source_ids = data.draw(st.permutations(range(64)))[: -(-end // source_size)]
    target_ids = data.draw(st.permutations(range(64)))[: -(-end // target_size)]
    at = start
    while at < end:
        until = min(end, (at // source_size + 1) * source_size)
        target.scatter(target_ids, at, until, 0, 3, source.gather(source_ids, at, until, 0, 3))
        at = until
    for token in range(end):
        there = target.tensor[target_ids[token // target_size], :, :, token % target_size]
        here = source.tensor[source_ids[token // source_size], :, :, token % source_size]
        assert there.eq(here if token >= start else torch.zeros(())).all()
    assert target.tensor.count_nonzero() <= length * 3 * 2 * 10, "nothing else was written"


def test_a_run_over_several_blocks_is_scattered_at_once() -> None:
    pool = make_pool()
    payload = np.arange(3 * 2 * 7 * 10, dtype=np.float32)
    pool.scatter([4, 0, 1], 3, 10, 0, 3, memoryview(payload.tobytes()))
    positions = torch.cat([pool.tensor[4], pool.tensor[0], pool.tensor[1]], dim=2)[:, :, 3:10]
    assert (positions.reshape(-1).numpy() == payload).all()


@pytest.mark.parametrize(
    ("block_ids", "tokens", "layers"),
    [
        ([0], (0, 5), (0, 3)),
        ([0], (3, 3), (0, 3)),
        ([0], (-1, 2), (0, 3)),
        ([0], (0, 4), (0, 4)),
        ([0], (0, 4), (2, 2)),
        ([6], (0, 4), (0, 3)),
        ([-1], (0, 4), (0, 3)),
    ],
)
def test_what_leaves_the_table_or_the_pool_is_refused(
    block_ids: list[int], tokens: tuple[int, int], layers: tuple[int, int]
) -> None:
    pool = make_pool()
    with pytest.raises(ValueError, match="leave"):
        pool.gather(block_ids, *tokens, *layers)
    with pytest.raises(ValueError, match="leave"):
        pool.scatter(block_ids, *tokens, *layers, memoryview(b""))
    assert not pool.tensor.any()


def test_wrong_sizes_are_refused() -> None:
    pool = make_pool()
    with pytest.raises(ValueError, match="cross a block"):
        pool.gather([0, 1], 3, 5, 0, 3)
    for size in (0, pool.layout.block_bytes - 1, pool.layout.block_bytes + 1):
        with pytest.raises(ValueError, match="do not make"):
            pool.scatter([0], 0, 4, 0, 3, memoryview(bytes(size)))


def test_the_pool_may_live_in_memory_of_the_caller() -> None:
    layout = KvLayout(1, 2, 1, 4, "float32")
    memory = bytearray(3 * layout.block_bytes + 5)
    pool = KvPool(layout, 3, memory)
    pool.tensor[2] = 1
    pool.copy_block(2, 0)
    assert memory[: layout.block_bytes] == memory[2 * layout.block_bytes : 3 * layout.block_bytes] != bytes(layout.block_bytes)
    with pytest.raises(ValueError, match="the buffer has"):
        KvPool(layout, 4, memory)


@pytest.mark.parametrize(
    "field", [{"num_blocks": 0}, {"block_size": 0}, {"max_step_tokens": 0}, {"growth_reserve": -1}, {"kv_dtype": "int4"}]
)
def test_a_config_that_cannot_work_is_refused(field: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(field))):
        EngineConfig(**{"num_blocks": 8, **field})  # type: ignore[arg-type]
