"""The HTTP door's application: routes over a Service."""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import Response

from baton.cluster.config import RouterConfig
from router.http.answer import Answer
from router.http.body import read_object
from router.http.chat import ChatShape
from router.http.completions import DEFAULT_MAX_TOKENS, CompletionShape
from router.http.errors import add_error_handlers
from router.http.limits import Gate
from router.http.models import model_routes
from router.http.ops import ops_routes, product_version
from router.request import Service
from router.schema import request_schema
from router.validate import RawRequest, Validator


def create_app(service: Service, config: RouterConfig, validator: Validator | None = None) -> FastAPI:
    """The ASGI application. Doors of one process should share `validator`; without one the app makes its own."""
    limits = config.limits
    prepare = (validator or Validator(service, limits, config.timeouts.request_s)).prepare
    app = FastAPI(title="Baton", version=product_version(), docs_url=None, redoc_url=None, redirect_slashes=False)
    add_error_handlers(app)
    app.add_middleware(Gate, limits=limits)

    @app.post("/v1/completions", openapi_extra=request_schema(chat=False), tags=["generation"])
    async def completions(request: Request) -> Response:
        """Continues a prompt, or several."""
        fields = await read_object(request, limits.body_bytes)
        prepared = await prepare(RawRequest(fields, chat=False, default_max_tokens=DEFAULT_MAX_TOKENS))
        return Answer(service, prepared, CompletionShape(prepared))

    @app.post("/v1/chat/completions", openapi_extra=request_schema(chat=True), tags=["generation"])
    async def chat_completions(request: Request) -> Response:
        """Answers a chat."""
        fields = await read_object(request, limits.body_bytes)
        prepared = await prepare(RawRequest(fields, chat=True))
        return Answer(service, prepared, ChatShape(prepared))

    app.include_router(model_routes(service))
    app.include_router(ops_routes(service))
    return app
