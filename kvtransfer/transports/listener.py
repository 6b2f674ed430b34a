"""Accepts connections on one socket and serves each in a task of its own."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from baton.wire.errors import BatonError, TransferError
from baton.wire.types import KvHello
from kvtransfer.transports.base import Sink
from kvtransfer.transports.messages import HELLO_S, Messages, refuse, welcome

log = logging.getLogger(__name__)


class Listener:
    """Owns a bound socket. Entered: accepts; left: every connection is closed, its task ended. `serve` raises nothing."""

    def __init__(self, sock: socket.socket, serve: Callable[[socket.socket], Awaitable[None]]) -> None:
        sock.setblocking(False)
        sock.listen()
        self._sock = sock
        self._serve = serve
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Listener:
        self._own(self._accept())
        return self

    async def __aexit__(self, *error: Any) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._sock.close()

    def _own(self, work: Any) -> None:
        task = asyncio.create_task(work, name="kv-listener")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        while True:
            connection, _ = await asyncio.get_running_loop().sock_accept(self._sock)
            connection.setblocking(False)
            self._own(self._serve(connection))


async def converse(messages: Messages, sink: Sink, token: str, serve: Callable[[KvHello], Awaitable[None]]) -> None:
    """The receiver's end of a channel's life: the handshake, then `serve`, which first answers OPEN. Closes `messages`."""
    try:
        async with asyncio.timeout(HELLO_S):
            hello = await welcome(messages, token)
            sink.open(hello)
        await serve(hello)
    except TimeoutError:
        await refuse(messages, TransferError("malformed", "no hello"))
    except BatonError as error:
        log.info("KV channel closed: %s", error)
        await refuse(messages, error)
    except Exception:  # the edge of a connection: it alone ends
        log.exception("a KV channel failed")
    finally:
        messages.close()
