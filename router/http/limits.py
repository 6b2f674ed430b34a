"""What every HTTP request passes first: limits on its headers, and an id that comes back in the answer."""

from __future__ import annotations

import re
import uuid
from collections.abc import Awaitable, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from baton.cluster.config import Limits
from router.http.errors import HttpError, error_response

REQUEST_ID = re.compile(rb"[A-Za-z0-9_.-]{1,128}")
"""A client's id that may be echoed; any other is replaced. It names the exchange only: requests never meet by it."""


class Gate:
    """ASGI middleware: refuses oversized headers (431) and bodies behind an upgrade (400), adds X-Request-Id to answers."""

    def __init__(self, app: ASGIApp, limits: Limits):
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _named(send, _request_id(scope))
        fault = self._fault(scope)
        if fault is None:
            await self._app(scope, receive, answer)
        else:
            await error_response(fault)(scope, receive, answer)

    def _fault(self, scope: Scope) -> HttpError | None:
        headers = scope["headers"]
        if _lost_body(dict(headers)):
            return HttpError(400, "This server speaks HTTP/1.1 only: send the request without an Upgrade header.", "no_upgrade")
        url_len = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        num_bytes = sum(len(name) + len(value) for name, value in headers) + url_len
        if len(headers) <= self._limits.num_headers and num_bytes <= self._limits.header_bytes:
            return None
        limits = f"{self._limits.num_headers} headers of {self._limits.header_bytes} bytes together"
        return HttpError(431, f"The request's headers are too large: at most {limits}.", "headers_too_large")


def _lost_body(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request asks for another protocol and has a body: the parser takes that for the other protocol's bytes."""
    upgrades = b"upgrade" in headers and b"upgrade" in headers.get(b"connection", b"").lower()
    return upgrades and (b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0")


def _request_id(scope: Scope) -> bytes:
    given: bytes = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    return given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex.encode()


def _named(send: Send, request_id: bytes) -> Send:
    def answer(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
        return send(message)

    return answer
