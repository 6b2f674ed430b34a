"""A link as its worker holds it: the records of one router's leases, and the stream that carries them at the moment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from baton.wire.publisher import Publisher, Write
from baton.wire.records import LeaseRecord, Side
from baton.wire.types import LeaseId, LoadReport, Position, RouterHello, Timeouts

log = logging.getLogger(__name__)


class RouterLink:
    """One link id of one router. At most one stream at a time; without one it expires."""

    def __init__(self, hello: RouterHello, load: Callable[[], LoadReport], timeouts: Timeouts) -> None:
        self.link_id = hello.link_id
        self.router = hello.incarnation
        self._records: dict[LeaseId, dict[Side, LeaseRecord]] = {}
        self.publisher = Publisher(load, lambda: len(self._records), timeouts.heartbeat_s)
        self._expiry: asyncio.TimerHandle | None = None
        self._superseded = asyncio.Event()
        self._stream = asyncio.Lock()

    # --- leases --------------------------------------------------------------------------------------------------

    @property
    def leases(self) -> tuple[LeaseId, ...]:
        return tuple(self._records)

    def record(self, lease: LeaseId, side: Side) -> LeaseRecord:
        """The lease's record on `side`, made if there is none."""
        sides = self._records.setdefault(lease, {})
        if side not in sides:
            sides[side] = LeaseRecord(lease, side, self.publisher.touch)
        return sides[side]

    def drop(self, lease: LeaseId) -> tuple[Side, ...]:
        """Forgets the lease; the sides that had a record, whose work the caller ends."""
        sides = self._records.pop(lease, {})
        for record in sides.values():
            record.touched = _ignore
            self.publisher.forget(record)
        return tuple(sides)

    def reconcile(
        self,
        live: Sequence[Position],
        end: Callable[[RouterLink, LeaseId], None],
        finish: Callable[[LeaseId, Iterable[int]], None],
    ) -> tuple[LeaseId, ...]:
        """Makes this end agree with what the router follows: ends what is not named, rewinds what is; what is lacking here."""
        wanted: dict[LeaseId, dict[int, int]] = {}
        for position in live:
            wanted.setdefault(position.lease, {})[position.choice] = position.next_index
        for lease in self.leases:
            if lease not in wanted:
                end(self, lease)
                continue
            for record in self._records[lease].values():
                record.resume(wanted[lease])
            if Side.DECODE in self._records[lease]:
                finish(lease, self._records[lease][Side.DECODE].choices - wanted[lease].keys())
        return tuple(lease for lease in wanted if lease not in self._records)

    # --- the stream ----------------------------------------------------------------------------------------------

    async def claim(self) -> None:
        """Ends the current stream, if any, and returns when the link is the caller's, who releases it."""
        self._superseded.set()
        await self._stream.acquire()
        self._superseded.clear()
        if self._expiry is not None:
            self._expiry.cancel()

    def release(self) -> None:
        self._stream.release()

    async def carry(self, read: Coroutine[Any, Any, None], write: Write) -> None:
        """Reads and writes until either ends, the stream is cancelled, or another stream claims the link."""
        tasks = [asyncio.create_task(work) for work in (read, self.publisher.run(write), self._superseded.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Exception):
                    log.info("a router's stream ended: %r", ended)

    def expire_in(self, grace_s: float, expire: Callable[[RouterLink], None]) -> None:
        """Without a new stream within `grace_s`, `expire` is called."""
        self._expiry = asyncio.get_running_loop().call_later(grace_s, expire, self)


def _ignore(_record: LeaseRecord) -> None:
    """Takes the place of a dropped record's `touched`: its service may still write for a moment."""
