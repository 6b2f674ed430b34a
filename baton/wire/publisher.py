"""Writes a link's records to its stream: one message per engine step, fewer and longer ones when the stream is slow."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable

from baton.wire.convert import pack_down
from baton.wire.pb import worker_pb2 as pb
from baton.wire.records import LeaseRecord
from baton.wire.types import Event, LoadReport

MESSAGE_BYTES = 256 * 1024
FLUSH_S = 0.005
BUSY_LEASES = 16
"""With so many leases a flush comes at most every FLUSH_S: they share its cost. Fewer wait less, one hardly at all."""

LOAD_S = 0.05
BUSY_LOAD_S = 0.25
"""A load report comes at most every LOAD_S; a busy worker's load is looked at every BUSY_LOAD_S."""

Write = Callable[[pb.LinkDown], Awaitable[None]]


class Publisher:
    """Takes from records that were touched, when the stream can take it; the writers of the records never wait.

    `num_leases`: how many have a record now.
    """

    def __init__(self, load: Callable[[], LoadReport], num_leases: Callable[[], int], heartbeat_s: float) -> None:
        self._load = load
        self._num_leases = num_leases
        self._heartbeat_s = heartbeat_s
        self._touched: dict[LeaseRecord, None] = {}
        self._wake = asyncio.Event()
        self._told: LoadReport | None = None
        self._sent_at = self._looked_at = -math.inf
        self._look_at = math.inf

    def touch(self, record: LeaseRecord) -> None:
        """`record` has something to send."""
        self._touched[record] = None
        self._wake.set()

    def forget(self, record: LeaseRecord) -> None:
        self._touched.pop(record, None)

    def look(self) -> None:
        """The load may have changed."""
        self._look_at = 0.0
        self._wake.set()

    async def run(self, write: Write) -> None:
        """Writes to one stream until cancelled, or until `write` fails. A new stream is told the load at once."""
        loop = asyncio.get_running_loop()
        self._told, self._look_at = None, 0.0
        while True:
            events, load = self._take(), self._changed_load(loop.time())
            if events or load is not None or loop.time() >= self._sent_at + self._heartbeat_s:
                await write(pack_down(events, load))
                self._sent_at = loop.time()
            await self._until_due(loop)

    async def _until_due(self, loop: asyncio.AbstractEventLoop) -> None:
        """Until there is something to send, a heartbeat or a look at the load is due, and the last flush is long enough ago."""
        if not self._touched:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(self._sent_at + self._heartbeat_s, self._next_look)):
                    await self._wake.wait()
        pause_s = self._sent_at + FLUSH_S * min(1.0, self._num_leases() / BUSY_LEASES) - loop.time()
        if pause_s > 0:
            await asyncio.sleep(pause_s)

    @property
    def _next_look(self) -> float:
        return max(self._look_at, self._looked_at + LOAD_S)

    def _take(self) -> list[Event]:
        events: list[Event] = []
        budget = MESSAGE_BYTES
        while self._touched and budget > 0:
            record = next(iter(self._touched))
            taken, size = record.take(budget)
            events += taken
            budget -= size
            if not record.has_unsent:
                del self._touched[record]
        return events

    def _changed_load(self, now: float) -> LoadReport | None:
        if now < self._next_look:
            return None
        load = self._load()
        changed = load != self._told
        self._told, self._looked_at = load, now
        self._look_at = now + BUSY_LOAD_S if changed or _is_busy(load) else math.inf
        return load if changed else None


def _is_busy(load: LoadReport) -> bool:
    return bool(load.num_running or load.num_waiting or load.kv_blocks_used or load.num_leases)
