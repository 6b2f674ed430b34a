"""A sender's end of one pair of process lives: one channel, shared by every attempt that ships over it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from baton.wire.errors import BatonError, TransferError
from baton.wire.types import DecodeTarget, KvAnswer, LeaseId
from kvtransfer.transports.base import Channel

QUEUED_MESSAGES = 2
"""Messages that wait for the wire: with one on its way, at most three frames of a pair are in memory."""

Attempt = tuple[LeaseId, int]


class Shipper(Protocol):
    """What a pair tells each attempt on it. Both are called on the event loop and return at once."""

    def answered(self, answer: KvAnswer) -> None: ...

    def failed(self, error: TransferError) -> None: ...


class Pair:
    """Dials at once; ends when the channel breaks, takes nothing for `stall_s`, or at `close`, and fails its attempts then.

    A pair that is `broken` takes no more attempts: dial another. `on_end` is called once, when its connection is given back.
    """

    def __init__(
        self, target: DecodeTarget, dial: Callable[[], Awaitable[Channel]], stall_s: float, on_end: Callable[[Pair], None]
    ) -> None:
        self.target = target
        self.transport = ""  # until the channel is open
        self.retired = False
        self.stall_s = stall_s
        self._on_end = on_end
        self._shippers: dict[Attempt, Shipper] = {}
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(QUEUED_MESSAGES)
        self._open = asyncio.Event()
        self._end: asyncio.Future[TransferError] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(dial), name="kv-pair")

    @property
    def broken(self) -> bool:
        return self._end.done()

    def join(self, attempt: Attempt, shipper: Shipper) -> None:
        """From now on `shipper` hears the answers to `attempt` and of the pair's end."""
        self._shippers[attempt] = shipper

    def leave(self, attempt: Attempt) -> None:
        """`attempt` is over here; what the receiver still says of it is dropped. Idempotent."""
        self._shippers.pop(attempt, None)
        self._end_if_retired()

    async def opened(self) -> None:
        """Returns when the channel is open and `transport` known. When the pair ends, its attempts cancel this."""
        await self._open.wait()

    def retire(self) -> None:
        """Takes no more attempts, and ends with the last one on it: what moves over it arrives damaged."""
        self.retired = True
        self._end_if_retired()

    async def send(self, message: bytes) -> None:
        """Returns when the message is in line for the wire; waits for room. When the pair ends, its attempts cancel this."""
        await self._queue.put(message)

    def fail(self, error: TransferError) -> None:
        """Ends the pair, and at once every attempt on it. Idempotent."""
        if self.broken:
            return
        self._end.set_result(error)
        for shipper in list(self._shippers.values()):
            shipper.failed(error)
        self._shippers.clear()

    def _end_if_retired(self) -> None:
        if self.retired and not self._shippers:
            self.fail(TransferError("channel_lost", "given up for what it did to KV"))

    async def close(self) -> None:
        """Ends the pair and waits until its connection is given back."""
        self.fail(TransferError("channel_lost", "this worker closed the KV channel"))
        await asyncio.wait([self._task])

    # --- the channel's life --------------------------------------------------------------------------------------

    async def _run(self, dial: Callable[[], Awaitable[Channel]]) -> None:
        try:
            channel = await dial()
            self.transport = channel.transport
            self._open.set()
            try:
                await self._serve(channel)
            finally:
                await channel.close()
        except BatonError as error:
            self.fail(_as_transfer_error(error))
        finally:
            self.fail(TransferError("channel_lost", "the KV channel ended"))
            self._on_end(self)

    async def _serve(self, channel: Channel) -> None:
        """Writes and reads until one of them raises or the pair was failed."""
        tasks = [asyncio.create_task(self._write(channel)), asyncio.create_task(self._read(channel))]
        ends: list[asyncio.Future[Any]] = [*tasks, self._end]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _write(self, channel: Channel) -> None:
        while True:
            message = await self._queue.get()
            try:
                async with asyncio.timeout(self.stall_s):
                    await channel.write(message)
            except TimeoutError as error:
                raise TransferError("stall", f"the receiver took no KV for {self.stall_s:g} s") from error

    async def _read(self, channel: Channel) -> None:
        while True:
            answer = await channel.read()
            shipper = self._shippers.get((answer.lease, answer.epoch))
            if shipper is not None:
                shipper.answered(answer)


def _as_transfer_error(error: BatonError) -> TransferError:
    """A failed dial as its attempts report it: a counted word and what the receiver said."""
    return error if isinstance(error, TransferError) else TransferError(error.code or "connect", error.message)
