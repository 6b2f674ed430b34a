"""Puts received KV into the receiver's blocks, on the KV thread, without taking the core away from a running batch."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from baton.wire.errors import TransferError
from kvtransfer import frames
from kvtransfer.frames import Frame, SharedFrame
from kvtransfer.store import BlockStore
from kvtransfer.thread import KvThread

SHARE = 0.1
"""Of the last step's time: how long a slice of writing takes at most while a batch runs, and of all time together."""

CACHE_BYTES = 512 << 10
"""What a core keeps close while it is copied and then hashed."""


@dataclass(eq=False, slots=True)
class Writing:
    """One frame on its way into `block_ids`. Skipped once it is not `wanted`; `ok` when it is in place and verified."""

    frame: Frame | SharedFrame
    block_ids: tuple[int, ...]
    wanted: Callable[[], bool]
    ok: bool = False


class Writer:
    """One a receiver. `step_s` tells how long the engine's last step took, 0 while nothing runs: then slices have no bound."""

    def __init__(self, store: BlockStore, step_s: Callable[[], float]) -> None:
        self._store = store
        self._step_s = step_s
        self._thread = KvThread("kv-receive")
        self._turn = asyncio.Lock()  # slices of all channels together keep to the share
        self._rest_until = 0.0

    async def write(self, writings: Iterable[Writing]) -> None:
        """Returns when each is in place, was refused or skipped. None is being written any more, cancelled or not."""
        left = deque(writings)
        while left:
            async with self._turn:
                step_s = self._step_s()
                if step_s:
                    await asyncio.sleep(max(0.0, self._rest_until - time.monotonic()))
                await self._thread.run(partial(self._slice, left, SHARE * step_s or math.inf))

    def close(self) -> None:
        self._thread.close()

    def _slice(self, left: deque[Writing], budget_s: float) -> None:
        """On the KV thread: whole frames until the budget is spent, one at least."""
        started = time.monotonic()
        spent = 0.0
        while left and spent < budget_s:
            writing = left.popleft()
            writing.ok = writing.wanted() and self._put(writing)
            spent = time.monotonic() - started
        self._rest_until = started + spent / SHARE

    def _put(self, writing: Writing) -> bool:
        try:
            if isinstance(writing.frame, SharedFrame):
                self._copy_then_verify(writing.frame, writing.block_ids)
            else:
                frames.verify(writing.frame)
                self._store.scatter(writing.block_ids, *_run(writing.frame), writing.frame.payload)
        except (TransferError, ValueError):
            return False
        return True

    def _copy_then_verify(self, frame: SharedFrame, block_ids: tuple[int, ...]) -> None:
        """The digest is taken over our own copy: the blocks themselves where the run lies in one, else a buffer."""
        run, size = _run(frame), self._store.layout.block_size
        if frame.header.token_start // size == (frame.header.token_end - 1) // size:
            self._copy_by_layers(frame, block_ids)
        else:
            copy = Frame(frame.header, memoryview(bytes(frame.read())))
            frames.verify(copy)
            self._store.scatter(block_ids, *run, copy.payload)

    def _copy_by_layers(self, frame: SharedFrame, block_ids: tuple[int, ...]) -> None:
        """A few layers at a time, so that the digest finds them in the cache."""
        header, payload, state = frame.header, frame.read(), frames.hasher(frame.header)
        layer_bytes = payload.nbytes // (header.layer_end - header.layer_start)
        step = max(1, CACHE_BYTES // layer_bytes)
        for start in range(header.layer_start, header.layer_end, step):
            run = (header.token_start, header.token_end, start, min(start + step, header.layer_end))
            at = (start - header.layer_start) * layer_bytes
            self._store.scatter(block_ids, *run, payload[at : at + (run[3] - start) * layer_bytes])
            state.update(self._store.gather(block_ids, *run))
        frames.check(header, state.intdigest())


def _run(frame: Frame | SharedFrame) -> frames.Run:
    header = frame.header
    return header.token_start, header.token_end, header.layer_start, header.layer_end
