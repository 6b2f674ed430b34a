"""The two endpoints that generate, as plain ASGI: a framework's routing would cost a good part of a short request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from baton.cluster.config import Limits
from baton.wire.errors import BatonError
from router.http.answer import Answer, Shape
from router.http.body import read_object
from router.http.chat import ChatShape
from router.http.completions import DEFAULT_MAX_TOKENS, CompletionShape
from router.http.errors import error_response, internal
from router.request import Service
from router.schema import request_schema
from router.validate import Prepared, RawRequest, Validator


@dataclass(frozen=True)
class Endpoint:
    """POST of one kind of request. `summary` is its line in the OpenAPI document."""

    path: str
    summary: str
    chat: bool
    shape: Callable[[Prepared], Shape]
    service: Service
    validator: Validator
    limits: Limits
    default_max_tokens: int | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            fields = await read_object(scope, receive, self.limits.body_bytes)
            prepared = await self.validator.prepare(RawRequest(fields, self.chat, self.default_max_tokens))
            await Answer(self.service, prepared, self.shape(prepared))(scope, receive, send)
        except BatonError as error:
            await error_response(error)(scope, receive, send)
        except Exception as error:  # the edge of the process: logged, and the client gets an ending
            await error_response(internal(error))(scope, receive, send)

    @property
    def route(self) -> Route:
        """For a router of pages: it knows then which methods the path has."""
        return Route(self.path, self, methods=["POST"])

    @property
    def document(self) -> dict[str, object]:
        """The path in the OpenAPI document."""
        answered = {"200": {"description": "Successful Response"}}
        about = {"summary": self.summary, "tags": ["generation"], "responses": answered}
        return {self.path: {"post": about | request_schema(self.chat)}}


def endpoints_of(service: Service, validator: Validator, limits: Limits) -> tuple[Endpoint, ...]:
    completions = Endpoint(
        "/v1/completions",
        "Continues a prompt, or several.",
        False,
        CompletionShape,
        service,
        validator,
        limits,
        DEFAULT_MAX_TOKENS,
    )
    chat = Endpoint("/v1/chat/completions", "Answers a chat.", True, ChatShape, service, validator, limits)
    return completions, chat


class Switch:
    """Takes requests that generate to their endpoint, and all others to `pages`."""

    def __init__(self, endpoints: tuple[Endpoint, ...], pages: ASGIApp):
        self._endpoints = {endpoint.path: endpoint for endpoint in endpoints}
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        posted = scope["type"] == "http" and scope["method"] == "POST"
        endpoint = self._endpoints.get(scope["path"]) if posted else None
        await (endpoint or self._pages)(scope, receive, send)
