"""KV through the sender's own pool: same host, same user. The receiver maps it once; a frame then names a block, no bytes move.

The channel is a Unix socket with an abstract name: no file is left behind. Both ends check that the other is of their own user.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from baton.wire import convert_kv
from baton.wire.errors import TransferError
from baton.wire.types import KvEndpoint, KvHello, Timeouts
from kvtransfer import frames
from kvtransfer.frames import SharedFrame
from kvtransfer.memory import BlockMemory, SharedPool, map_pool
from kvtransfer.transports.base import Delivery, Sink
from kvtransfer.transports.listener import Listener, converse
from kvtransfer.transports.messages import HELLO_S, READ_BYTES, MessageChannel, Messages, greet, packed
from kvtransfer.transports.tcp import dial_error

_PEER = struct.Struct("3i")  # pid, uid, gid


def host_id() -> str:
    """The same in all processes that can share memory over a socket: this boot, network namespace and user."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}-{os.stat('/proc/self/ns/net').st_ino}-{os.getuid()}"


def reachable(address: str) -> bool:
    """Whether a ShmServer's address is on this host."""
    return address.partition("/")[0] == host_id()


class ShmConnect:
    """A Connect that gives `pool` to the receiver."""

    def __init__(self, pool: SharedPool) -> None:
        self._pool = pool

    async def __call__(self, address: str, hello: KvHello, token: str, timeouts: Timeouts) -> MessageChannel:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        messages = Messages(sock)
        try:
            async with asyncio.timeout(timeouts.connect_s):
                await asyncio.get_running_loop().sock_connect(sock, "\0" + address.partition("/")[2])
                check_user(sock)
                socket.send_fds(sock, [packed(token.encode())], [self._pool.fileno])
                return MessageChannel("shm", messages, await greet(messages, hello, None))
        except BaseException as error:
            messages.close()
            raise dial_error(error, address) from error


class ShmServer:
    """Takes KV for `sink` out of the pools of senders on this host. Entered: listens; left: every connection has ended."""

    def __init__(self, sink: Sink, token: str, name: str) -> None:
        self._sink = sink
        self._token = token
        self._name = name
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.bind("\0" + name)
        self._stack = AsyncExitStack()

    @property
    def endpoint(self) -> KvEndpoint:
        return KvEndpoint("shm", f"{host_id()}/{self._name}")

    async def __aenter__(self) -> ShmServer:
        await self._stack.enter_async_context(Listener(self._sock, self._serve))
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.__aexit__(*error)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            check_user(connection)
            async with asyncio.timeout(HELLO_S):
                received, descriptors = await _receive_descriptors(connection)
        except (TransferError, TimeoutError, OSError):
            connection.close()
            return
        messages = Messages(connection, received)

        async def serve(hello: KvHello) -> None:
            if len(descriptors) != 1:
                raise TransferError("shared_memory", f"the sender gave {len(descriptors)} descriptors")
            pool = map_pool(descriptors[0], hello.capabilities.layout)
            await messages.send([convert_kv.OPEN])
            await self._take(messages, pool)

        try:
            await converse(messages, self._sink, self._token, serve)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    async def _take(self, messages: Messages, pool: BlockMemory) -> None:
        while True:
            deliveries = [delivery for message in await messages.receive() for delivery in deliver(pool, message)]
            answers = await self._sink.take(deliveries)
            if answers:
                await messages.send([convert_kv.encode_answer(answer) for answer in answers])


def deliver(pool: BlockMemory, message: bytes) -> list[Delivery]:
    """What a message brings whose payloads lie in `pool`."""
    found = frames.decode(message)
    if isinstance(found, tuple):
        return [SharedFrame(one.header, partial(pool.read, one.header, one.block)) for one in found]
    return [frames.delivery(message)]


async def _receive_descriptors(sock: socket.socket) -> tuple[bytes, list[int]]:
    """The first bytes, and the descriptors that came with them: the caller closes those."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sock, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sock)
    received, descriptors, _, _ = socket.recv_fds(sock, READ_BYTES, 1)
    return received, list(descriptors)


def check_user(sock: socket.socket) -> None:
    """Raises TransferError("unauthenticated") if the other end runs as another user."""
    _, uid, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if uid != os.getuid():
        raise TransferError("unauthenticated", f"the other end of the KV channel runs as user {uid}")
