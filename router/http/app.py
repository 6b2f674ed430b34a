"""The HTTP door's application: routes over a Service."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp

from baton.cluster.config import RouterConfig
from router.http.endpoints import Endpoint, Switch, endpoints_of
from router.http.errors import add_error_handlers
from router.http.limits import Gate
from router.http.models import model_routes
from router.http.ops import ops_routes, product_version
from router.request import Service
from router.validate import Validator


def create_app(service: Service, config: RouterConfig, validator: Validator | None = None) -> ASGIApp:
    """The ASGI application. Doors of one process should share `validator`; without one the app makes its own."""
    validator = validator or Validator(service, config.limits, config.timeouts.request_s)
    endpoints = endpoints_of(service, validator, config.limits)
    return Gate(Switch(endpoints, _pages(service, endpoints)), config.limits)


def _pages(service: Service, endpoints: tuple[Endpoint, ...]) -> FastAPI:
    """Models, probes, metrics and the OpenAPI document; and what a wrong path or method is told."""
    app = FastAPI(title="Baton", version=product_version(), docs_url=None, redoc_url=None, redirect_slashes=False)
    add_error_handlers(app)
    app.include_router(model_routes(service))
    app.include_router(ops_routes(service))
    for endpoint in endpoints:
        app.router.routes.append(endpoint.route)
        app.openapi()["paths"] |= endpoint.document
    return app
