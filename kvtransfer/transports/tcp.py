"""KV over a TCP connection of its own, in pieces that stay in the cache and are received into buffers kept for them."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from typing import Any

from baton.wire import convert_kv
from baton.wire.errors import BatonError, TransferError
from baton.wire.types import KvEndpoint, KvHello, Timeouts
from kvtransfer import frames
from kvtransfer.transports.base import Sink
from kvtransfer.transports.listener import Listener, converse
from kvtransfer.transports.messages import LENGTH, MessageChannel, Messages, checked, greet

NUM_BUFFERS = 4
"""Messages of a connection that were received and are not put away yet: the bound on its memory, and its back-pressure."""

Received = tuple[bytearray, int]
"""A buffer and how much of it is the message."""


class TcpChannel(MessageChannel):
    """A Channel whose messages are large."""

    async def write(self, message: bytes) -> None:
        if self._messages.closed:
            raise TransferError("channel_lost", "closed")
        await self._messages.send_large(message)


async def connect(address: str, hello: KvHello, token: str, timeouts: Timeouts) -> TcpChannel:
    """A Connect to a TcpServer's host:port."""
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    messages = Messages(sock)
    try:
        async with asyncio.timeout(timeouts.connect_s):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_connect(sock, (host.strip("[]"), int(port)))
            return TcpChannel("tcp", messages, await greet(messages, hello, token))
    except BaseException as error:
        messages.close()
        raise dial_error(error, address) from error


def dial_error(error: BaseException, address: str) -> BaseException:
    """A failed dial as Connect promises it."""
    if isinstance(error, TimeoutError):
        return TransferError("connect", f"no answer from {address}")
    if isinstance(error, OSError) or (isinstance(error, TransferError) and error.reason == "channel_lost"):
        return TransferError("connect", f"cannot connect to {address}: {error}")
    return error


class TcpServer:
    """Takes KV for `sink` on a free port of `host`. Entered: listens; left: every connection has ended."""

    def __init__(self, sink: Sink, token: str, host: str) -> None:
        self._sink = sink
        self._token = token
        self._sock = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._stack = AsyncExitStack()

    @property
    def endpoint(self) -> KvEndpoint:
        """The port alone: senders know the host."""
        return KvEndpoint("tcp", f":{self._sock.getsockname()[1]}")

    async def __aenter__(self) -> TcpServer:
        await self._stack.enter_async_context(Listener(self._sock, self._serve))
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.__aexit__(*error)

    async def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        messages = Messages(connection)

        async def serve(hello: KvHello) -> None:
            await messages.send([convert_kv.OPEN])
            await _Intake(messages, self._sink).run()

        await converse(messages, self._sink, self._token, serve)


class _Intake:
    """Receives into buffers while others are verified and put away."""

    def __init__(self, messages: Messages, sink: Sink) -> None:
        self._messages = messages
        self._sink = sink
        self._free: asyncio.Queue[bytearray] = asyncio.Queue()
        self._received: asyncio.Queue[Received | BatonError] = asyncio.Queue()
        for _ in range(NUM_BUFFERS):
            self._free.put_nowait(bytearray())

    async def run(self) -> None:
        """Until the connection ends: what had arrived whole by then is still taken."""
        receiving = asyncio.create_task(self._receive(), name="kv-tcp-receive")
        try:
            while True:
                await self._take(await self._some())
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)

    async def _receive(self) -> None:
        head = bytearray(LENGTH.size)
        try:
            while True:
                await self._messages.receive_into(memoryview(head))
                size = checked(LENGTH.unpack(head)[0])
                buffer = await self._free.get()
                if len(buffer) < size:
                    buffer = bytearray(size)
                await self._messages.receive_into(memoryview(buffer)[:size])
                self._received.put_nowait((buffer, size))
        except BatonError as error:
            self._received.put_nowait(error)

    async def _some(self) -> list[Received]:
        """What has arrived, one message at least; raises how the connection ended once nothing else is left."""
        some: list[Received] = []
        while not some or not self._received.empty():
            item = await self._received.get()
            if isinstance(item, BatonError):
                if not some:
                    raise item
                self._received.put_nowait(item)
                break
            some.append(item)
        return some

    async def _take(self, some: list[Received]) -> None:
        deliveries = [frames.delivery(memoryview(buffer)[:size]) for buffer, size in some]
        answers = await self._sink.take(deliveries)
        for buffer, _ in some:
            self._free.put_nowait(buffer)
        if answers:
            await self._messages.send([convert_kv.encode_answer(answer) for answer in answers])
