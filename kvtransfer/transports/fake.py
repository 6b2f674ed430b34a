"""The transport without a wire: a sender and a receiver in one process, for tests and for trying things out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from baton.wire import convert_kv
from baton.wire.errors import TransferError
from baton.wire.types import KvAnswer, KvHello, Timeouts
from kvtransfer import frames
from kvtransfer.transports.base import Delivery, Sink


class FakeNetwork:
    """Addresses and who listens there. `connect` is a Connect."""

    def __init__(self, token: str = "") -> None:
        self._token = token
        self._sinks: dict[str, Sink] = {}
        self._channels: dict[str, list[FakeChannel]] = {}

    def listen(self, address: str, sink: Sink) -> None:
        """From now on `sink` answers at `address`; channels to whoever answered there before are lost."""
        self.hang_up(address)
        self._sinks[address] = sink

    def hang_up(self, address: str) -> None:
        """The listener at `address` dies: its channels are lost, and nobody answers there."""
        self._sinks.pop(address, None)
        for channel in self._channels.pop(address, []):
            channel.lose("the receiver is gone")

    async def connect(self, address: str, hello: KvHello, token: str, timeouts: Timeouts) -> FakeChannel:
        if address not in self._sinks:
            raise TransferError("connect", f"nobody listens at {address}")
        if token != self._token:
            raise TransferError("unauthenticated", f"the worker at {address} has another cluster token")
        sink = self._sinks[address]
        sink.open(frames.greeting(convert_kv.encode_hello(hello)))
        channel = FakeChannel(sink)
        self._channels.setdefault(address, []).append(channel)
        return channel


class FakeChannel:
    """A Channel whose messages are taken as they are written, once `deliver` has decoded them."""

    def __init__(self, sink: Sink, transport: str = "fake", deliver: Callable[[bytes], list[Delivery]] | None = None) -> None:
        self.transport = transport
        self._sink = sink
        self._deliver = deliver or (lambda message: [frames.delivery(message)])
        self._answers: asyncio.Queue[KvAnswer | None] = asyncio.Queue()
        self._lost: str | None = None

    async def write(self, message: bytes) -> None:
        if self._lost is not None:
            raise TransferError("channel_lost", self._lost)
        try:
            answers = await self._sink.take(self._deliver(message))
        except TransferError as error:
            self.lose(error.message)
            raise TransferError("channel_lost", error.message) from error
        for answer in answers:
            self._answers.put_nowait(answer)

    async def read(self) -> KvAnswer:
        answer = await self._answers.get()
        if answer is None:
            raise TransferError("channel_lost", self._lost or "")
        return answer

    async def close(self) -> None:
        self.lose("closed")

    def lose(self, why: str) -> None:
        """Breaks the channel, as a connection that is reset."""
        self._lost = self._lost or why
        self._answers.put_nowait(None)
