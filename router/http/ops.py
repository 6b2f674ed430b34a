"""What operators and probes ask: liveness, readiness, metrics, version."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from fastapi import APIRouter
from starlette.responses import JSONResponse, PlainTextResponse, Response

from baton.wire.errors import Unavailable
from router.http.errors import error_response
from router.request import Service

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def ops_routes(service: Service) -> APIRouter:
    routes = APIRouter(tags=["operations"])

    @routes.head("/livez", include_in_schema=False)
    @routes.get("/livez")
    async def livez() -> PlainTextResponse:
        """200 while the event loop turns."""
        return PlainTextResponse("ok")

    @routes.head("/readyz", include_in_schema=False)
    @routes.head("/health", include_in_schema=False)
    @routes.get("/readyz")
    @routes.get("/health")
    async def readyz() -> Response:
        """200 when requests can be served; else 503 with the reason."""
        reason = service.ready()
        return PlainTextResponse("ok") if reason is None else error_response(Unavailable(reason, retry_after_s=1.0))

    @routes.get("/metrics")
    async def metrics() -> Response:
        """Prometheus text exposition."""
        return Response(service.metrics(), headers={"content-type": METRICS_TYPE})

    @routes.get("/version")
    async def version_() -> JSONResponse:
        """The version of this server."""
        return JSONResponse({"version": product_version()})

    return routes


def product_version() -> str:
    try:
        return version("baton-serve")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0+source"
