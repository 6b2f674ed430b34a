"""A request's body: read within its cap and time, and parsed as JSON that means one thing only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import orjson
from fastapi import Request
from starlette.requests import ClientDisconnect

from baton.wire.errors import Cancelled, DeadlineExceeded, InvalidRequest
from router.http.errors import HttpError

BODY_S = 30.0
"""A body must have arrived within this time."""

INLINE_BYTES = 64 << 10
"""Bodies up to this size are parsed on the event loop."""


async def read_object(request: Request, max_bytes: int) -> dict[str, object]:
    """The JSON object in the body. Raises InvalidRequest and HttpError; reads at most `max_bytes`."""
    _check_headers(request, max_bytes)
    try:
        async with asyncio.timeout(BODY_S):
            body = await _read(request, max_bytes)
    except TimeoutError as error:
        raise DeadlineExceeded(f"The request's body did not arrive within {BODY_S:g} s.") from error
    except ClientDisconnect as error:
        raise Cancelled("The client left while it sent its request.") from error
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


def _check_headers(request: Request, max_bytes: int) -> None:
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HttpError(415, "The body must be JSON: send it with Content-Type: application/json.")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpError(415, "A compressed body is not accepted; send it without Content-Encoding.")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > max_bytes:
        raise _too_large(max_bytes)


async def _read(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
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
