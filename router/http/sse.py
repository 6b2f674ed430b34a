"""Server-sent events to one client, and the watch for its leaving."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine

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


class EventStream:
    """One response of events. A slow client makes `write` wait, and what is unread waits in the core; one that takes nothing
    for long loses its connection (router/http/protocol.py)."""

    def __init__(self, send: Send):
        self._send = send

    def start(self) -> Awaitable[None]:
        return self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})

    def write(self, data: bytes) -> Awaitable[None]:
        return self._send({"type": "http.response.body", "body": data, "more_body": True})

    def end(self, data: bytes) -> Awaitable[None]:
        """The last events."""
        return self._send({"type": "http.response.body", "body": data})


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
