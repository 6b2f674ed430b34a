"""KV is put away in slices while a batch runs, and at once while nothing does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import pytest
from transfer_support import LEASE, NumpyStore

from baton.wire.types import FrameHeader
from kvtransfer import frames
from kvtransfer.writer import Writer, Writing

NUM_FRAMES = 5


class Slices(Writer):
    """Notes how many frames were left before each slice."""

    def __init__(self, store: NumpyStore, step_s: Callable[[], float]) -> None:
        super().__init__(store, step_s)
        self.left: list[int] = []

    def _slice(self, left: deque[Writing], budget_s: float) -> None:
        self.left.append(len(left))
        super()._slice(left, budget_s)


def writings(store: NumpyStore, wanted: Callable[[], bool] = lambda: True) -> list[Writing]:
    payload = memoryview(np.random.default_rng(1).bytes(16 * store.layout.token_bytes))
    headers = [FrameHeader(LEASE, 1, n, 16 * n, 16 * n + 16, 0, 3) for n in range(NUM_FRAMES)]
    return [Writing(frames.seal(header, payload), tuple(range(NUM_FRAMES)), wanted) for header in headers]


@pytest.mark.parametrize(("step_s", "left"), [(0.0, [5]), (1e-9, [5, 4, 3, 2, 1])])
async def test_a_running_batch_gets_its_core_back_after_each_slice(step_s: float, left: list[int]) -> None:
    store = NumpyStore()
    writer = Slices(store, lambda: step_s)
    some = writings(store)
    await writer.write(some)
    assert writer.left == left
    assert [writing.ok for writing in some] == [True] * NUM_FRAMES
    assert store.runs == [(16 * n, 16 * n + 16) for n in range(NUM_FRAMES)]
    writer.close()


async def test_what_is_no_longer_wanted_is_skipped() -> None:
    store = NumpyStore()
    writer = Writer(store, lambda: 0.0)
    some = writings(store, wanted=lambda: len(store.runs) < 2)
    await writer.write(some)
    assert [writing.ok for writing in some] == [True, True, False, False, False]
    assert len(store.runs) == 2
    writer.close()
