"""The router process: links to workers, two doors, one core. `python -m router.main` is what launchers start."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Mapping

import uvicorn
from prometheus_client import disable_created_metrics
from starlette.types import ASGIApp

from baton.cluster import lifecycle
from baton.cluster.config import RouterConfig
from baton.cluster.lifecycle import RunError, Shutdown, StartupError, cannot_listen
from baton.cluster.registries import registry_of
from baton.cluster.registry import MemoryRegistry, Registry, Roster
from baton.cluster.sources import ConfigError, from_argv
from baton.cluster.status import READY, report
from baton.wire.registry import RegistryServer
from baton.wire.servers import AddressTaken
from router.grpc_door import serve_grpc
from router.http.app import create_app
from router.http.protocol import HttpProtocol
from router.service import RouterService, dialler
from router.validate import Validator

BACKLOG = 2048
LAST_BYTES_S = 1
"""How long connections may take, after the drain, to send what is written already."""


def main(argv: list[str]) -> int:
    """The exit status of a router that is told everything by flags, environment and file."""
    try:
        config = from_argv(RouterConfig, argv, prog="router")
    except ConfigError as error:
        lifecycle.fail(str(error))
        return 2
    return run(config)


def run(config: RouterConfig) -> int:
    """Runs a router in this process until it is told to stop; its exit status."""
    return lifecycle.run(lambda shutdown: serve(config, shutdown), log_level=config.log_level)


async def serve(config: RouterConfig, shutdown: Shutdown) -> None:
    """Opens the doors, says so, and drains when told. Raises StartupError for a port that is taken, RunError for a bad end.

    The order of the stop: not ready, and no new requests; running ones end within `drain_s`, or with an error then or when
    this is cancelled; the doors close; then the links, and with them every worker frees what is left.
    """
    num_aborted = 0
    disable_created_metrics()  # type: ignore[no-untyped-call]  # untyped there; it drops a second series per counter
    registry = registry_of(config)
    service = RouterService(config, dialler(config))
    validator = Validator(service, config.limits, config.timeouts.request_s)
    async with contextlib.AsyncExitStack() as doors:
        listener = doors.enter_context(listen(config.host, config.port))
        grpc_port = await doors.enter_async_context(_grpc(service, config, validator))
        registry_address = await doors.enter_async_context(_registry(registry, config))
        http_door = Door(_http(create_app(service, config, validator)))
        gc.freeze()  # what was loaded stays: full collections need not walk it again and again
        async with asyncio.TaskGroup() as tasks:
            links = tasks.create_task(service.run(registry), name="links")
            http = tasks.create_task(http_door.serve([listener]), name="http")
            addresses = {
                "address": _address(config, listener.getsockname()[1]),
                "grpc_address": _address(config, grpc_port),
                "registry_address": registry_address,
            }
            telling = tasks.create_task(_tell(service, config, addresses), name="tell")
            await shutdown.wait()
            telling.cancel()
            try:
                num_aborted = await service.drain(config.drain_s)
            finally:  # the second signal has no patience with requests, but their clients still hear of the end
                http_door.should_exit = True
                await asyncio.wait([http])
                await doors.aclose()
                links.cancel()
    if num_aborted:
        raise RunError(f"{num_aborted} requests did not end within {config.drain_s:g} s")


@contextlib.contextmanager
def listen(host: str, port: int) -> Iterator[socket.socket]:
    """A listening socket; closed with the context. Raises StartupError naming the port if it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise cannot_listen(host, port, "--port", error) from error
    with listener:
        yield listener


@contextlib.asynccontextmanager
async def _grpc(service: RouterService, config: RouterConfig, validator: Validator) -> AsyncIterator[int]:
    async with contextlib.AsyncExitStack() as door:
        try:
            port = await door.enter_async_context(serve_grpc(service, config, validator))
        except OSError as error:
            hint = f"stop what uses port {config.grpc_port}, or pass another --grpc-port"
            raise StartupError(f"{error}; {hint}") from error
        yield port


class Door(uvicorn.Server):
    """uvicorn without hands on signals: they belong to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _http(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=HttpProtocol,
        loop="none",
        lifespan="off",
        ws="none",
        proxy_headers=False,
        server_header=False,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=LAST_BYTES_S,
    )


@contextlib.asynccontextmanager
async def _registry(registry: Registry, config: RouterConfig) -> AsyncIterator[str | None]:
    """Where workers register with this router; None: they have a registry elsewhere."""
    if not isinstance(registry, MemoryRegistry):
        yield None
        return
    roster = Roster(registry)
    try:
        server = RegistryServer(config.registry_host, config.registry_port, config.cluster_token, roster)
    except AddressTaken as error:
        hint = f"stop what uses port {config.registry_port}, or pass another --registry-port"
        raise StartupError(f"{error}; {hint}") from error
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop()
        roster.close()


def _address(config: RouterConfig, port: int) -> str:
    return f"[{config.host}]:{port}" if ":" in config.host else f"{config.host}:{port}"


async def _tell(service: RouterService, config: RouterConfig, addresses: Mapping[str, str | None]) -> None:
    """Tells the launcher where the doors are: once requests can be served, or when that takes too long to wait for."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(config.timeouts.replace_s):
            await service.servable()
    report(READY, **addresses)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
