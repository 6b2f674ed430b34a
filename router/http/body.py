"""A request's body: read within its cap and time, and parsed as JSON that means one thing only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence

import orjson
from starlette.types import Receive, Scope

from baton.wire.errors import Cancelled, InvalidRequest
from router.http.errors import HttpError

BODY_S = 30.0
"""A body must have arrived within this time."""

INLINE_BYTES = 64 << 10
"""Bodies up to this size are parsed on the event loop."""


async def read_object(scope: Scope, receive: Receive, max_bytes: int) -> dict[str, object]:
    """The JSON object in a request's body. Raises InvalidRequest, HttpError and Cancelled; reads at most `max_bytes`."""
    _check_headers(dict(scope["headers"]), max_bytes)
    try:
        async with asyncio.timeout(BODY_S):
            body = await _read(receive, max_bytes)
    except TimeoutError as error:
        raise HttpError(408, f"The request's body did not arrive within {BODY_S:g} s.", "request_timeout") from error
    return parse(body) if len(body) <= INLINE_BYTES else await asyncio.to_thread(parse, body)


def parse(body: bytes) -> dict[str, object]:
    """A JSON object without duplicate keys, NaN, lone surrogates or deep nesting. Raises InvalidRequest."""
    try:
        orjson.loads(body)  # stricter than the standard library, and refuses deep nesting before anything recurses
        value = json.loads(body, object_pairs_hook=_unique)
    except RecursionError as error:
        raise InvalidRequest("The body is nested too deeply.") from error
    except ValueError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise InvalidRequest("The body must be a JSON object.")
    return value


def _check_headers(headers: Mapping[bytes, bytes], max_bytes: int) -> None:
    kind = headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise HttpError(415, "The body must be JSON: send it with Content-Type: application/json.")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise HttpError(415, "A compressed body is not accepted; send it without Content-Encoding.")
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length[:20]) > max_bytes:
        raise _too_large(max_bytes)


async def _read(receive: Receive, max_bytes: int) -> bytes:
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Cancelled("The client left while it sent its request.")
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    return bytes(body)


def _too_large(max_bytes: int) -> HttpError:
    return HttpError(413, f"The request's body is larger than {max_bytes} bytes.", "request_too_large")


def _unique(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        raise ValueError("an object has the same key twice")
    return unique
