"""Accepts connections on one socket and serves each in a task of its own."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from baton.wire.errors import BatonError, TransferError
from baton.wire.types import KvHello
from kvtransfer.transports.base import Sink
from kvtransfer.transports.messages import HELLO_S, Messages, refuse, welcome

REST_S = 1.0
"""Between two attempts to accept when the process has run out of descriptors."""

log = logging.getLogger(__name__)


class Listener:
    """Owns a bound socket. Entered: accepts; left: every connection is closed, its task ended. `serve` raises nothing."""

    def __init__(self, sock: socket.socket, serve: Callable[[socket.socket], Coroutine[Any, Any, None]]) -> None:
        sock.setblocking(False)
        sock.listen()
        self._sock = sock
        self._serve = serve
        self._tasks: set[asyncio.Task[None]] = set()
        self._resting: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Listener:
        asyncio.get_running_loop().add_reader(self._sock, self._accept)
        return self

    async def __aexit__(self, *error: Any) -> None:
        if self._resting is not None:
            self._resting.cancel()
        asyncio.get_running_loop().remove_reader(self._sock)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._sock.close()

    def _accept(self) -> None:
        """One connection. In a callback: a task that is cancelled while it accepts would lose what it has accepted."""
        try:
            connection, _ = self._sock.accept()
        except (BlockingIOError, ConnectionAbortedError):  # gone already
            return
        except OSError as error:  # no descriptors left, and asking again at once would not help
            log.warning("cannot accept a KV channel: %s", error)
            self._rest()
            return
        connection.setblocking(False)
        task = asyncio.create_task(self._serve(connection), name="kv-listener")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(partial(_close, connection))  # though it was cancelled before it began

    def _rest(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._sock)
        self._resting = loop.call_later(REST_S, loop.add_reader, self._sock, self._accept)


def _close(connection: socket.socket, task: asyncio.Task[None]) -> None:
    connection.close()


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
