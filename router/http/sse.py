"""Server-sent events to one client: a bounded buffer between the generation and the socket."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from starlette.types import Receive, Send

from baton.wire.errors import BatonError
from router.http.errors import error_body

DONE = b"data: [DONE]\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def error_event(error: BatonError) -> bytes:
    return b"data: " + error_body(error) + b"\n\n"


class SlowReader(Exception):
    """A client that reads more slowly than its buffer allows."""


class Outbox:
    """Bytes on their way to a client. While the socket takes no more they wait here, joined, up to `max_bytes`."""

    def __init__(self, send: Send, max_bytes: int):
        self._send = send
        self._max_bytes = max_bytes
        self._waiting = bytearray()
        self._changed = asyncio.Event()
        self._closed = False

    def put(self, data: bytes) -> None:
        """Raises SlowReader when too much waits."""
        if len(self._waiting) + len(data) > self._max_bytes:
            raise SlowReader
        self._waiting += data
        self._changed.set()

    def close(self) -> None:
        """Nothing more will be put."""
        self._closed = True
        self._changed.set()

    async def run(self) -> None:
        """Sends until closed and empty. The headers go out at once."""
        await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        while not self._closed or self._waiting:
            await self._changed.wait()
            self._changed.clear()
            data, self._waiting = bytes(self._waiting), bytearray()
            if data:
                await self._send({"type": "http.response.body", "body": data, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})


async def until_gone(receive: Receive, work: Coroutine[None, None, None]) -> bool:
    """Runs `work`, and cancels it at once when the client leaves: returns whether it stayed. Raises what `work` raises."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        working.result()
        return True
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
