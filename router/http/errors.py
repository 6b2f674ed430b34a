"""Errors as OpenAI's clients read them: one body, and the status of the table in baton/wire/errors.py."""

from __future__ import annotations

import logging
import math

import orjson
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from baton.wire.errors import BatonError, Internal, InvalidRequest, status_of

log = logging.getLogger(__name__)


class HttpError(InvalidRequest):
    """A request that HTTP itself refuses, with a status of its own (405, 413, 415, 431, ...)."""

    def __init__(self, status: int, message: str, code: str | None = None):
        super().__init__(message, code=code)
        self.status = status


def error_body(error: BatonError) -> bytes:
    """`{"error": {message, type, param, code}}`."""
    body = {"message": error.message, "type": status_of(error).type, "param": error.param, "code": error.code}
    return orjson.dumps({"error": body})


def error_response(error: BatonError) -> Response:
    status = error.status if isinstance(error, HttpError) else status_of(error).http
    headers = {}
    if status in (429, 503):
        headers["retry-after"] = str(math.ceil(error.retry_after_s or 1))
    if status in (408, 413, 431):
        headers["connection"] = "close"  # the rest of the request is not worth waiting for
    return Response(error_body(error), status, headers, "application/json")


def internal(error: Exception) -> Internal:
    """What a client may know of a fault of ours; the rest is logged here."""
    log.error("a request failed inside the router", exc_info=error)
    return Internal("The server failed to handle the request; this is not your fault.")


def add_error_handlers(app: FastAPI) -> None:
    """Gives every error of `app` OpenAI's body, also those of the framework (404, 405)."""

    async def on_baton_error(request: Request, error: Exception) -> Response:
        return error_response(error if isinstance(error, BatonError) else internal(error))

    async def on_http_error(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        known = {404: f"Unknown request URL: {request.method} {request.scope['path']}.", 405: f"Not allowed: {request.method}."}
        response = error_response(HttpError(status, known.get(status, "The request was refused."), _CODES.get(status)))
        response.headers.update((error.headers or {}) if isinstance(error, HTTPException) else {})
        return response

    app.add_exception_handler(BatonError, on_baton_error)
    app.add_exception_handler(Exception, on_baton_error)
    app.add_exception_handler(HTTPException, on_http_error)


_CODES = {404: "unknown_url", 405: "method_not_allowed"}
