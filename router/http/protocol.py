"""uvicorn's HTTP protocol with what it lacks: a cap on the bytes of a request's head, a time by which it must be there, a
time within which a client must take what is written, and refusals with OpenAI's body."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from router.http.errors import HttpError, error_body

MAX_HEAD_BYTES = 64 << 10
"""Twice what the application accepts (it answers in more detail): here the point is that reading stops."""

HEAD_S = 15.0

SEND_S = 30.0
"""A client that takes nothing of its answer for so long is cut off."""

log = logging.getLogger(__name__)


class HttpProtocol(HttpToolsProtocol):
    """One connection. A head that is too large gets 431; one that is too late, or an answer that nobody reads, ends it."""

    _timer: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _in_head = True
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its base has it
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_waiting()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()
        if self.parser.should_upgrade():  # it is answered as it is, but the parser reads nothing after it
            self.cycle.keep_alive = False

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._head_bytes = self._head_bytes + len(data) if self._in_head else 0
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse()

    def send_400_response(self, msg: str) -> None:
        """Answers what the parser could not read."""
        self._end_with(HttpError(400, "This is not a valid HTTP/1.1 request.", "invalid_http"))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(SEND_S, self._cut)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_waiting()

    def _cut(self) -> None:
        log.info("a client reads nothing of its answer: connection cut")
        self.transport.abort()

    def _stop_waiting(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _await_head(self) -> None:
        self._in_head = True
        self._stop_timer()
        self._timer = self.loop.call_later(HEAD_S, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self) -> None:
        self._end_with(HttpError(431, f"The request's head is larger than {MAX_HEAD_BYTES} bytes.", "headers_too_large"))

    def _end_with(self, error: HttpError) -> None:
        """Answers without the application, and closes the connection."""
        body, status = error_body(error), HTTPStatus(error.status)
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()
