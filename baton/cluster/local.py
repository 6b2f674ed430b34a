"""`baton serve` without a terminal: prefill and decode workers and a router as processes of this machine."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from baton.cluster.config import Config, ServeConfig
from baton.cluster.launch import Launcher
from baton.cluster.lifecycle import StartupError, cannot_listen
from baton.cluster.sources import child_environ, to_argv
from baton.cluster.supervise import Keeper, View
from baton.cluster.tokens import draw_token
from baton.wire.types import Role

WORKER = "baton.cli.worker"
ROUTER = "router.main"
ENDING_S = 10.0
"""What a process may take, beyond its own waits, to tell its peers and to take itself apart."""
QUIET = {"GRPC_VERBOSITY": "ERROR"}
"""Unless the environment says otherwise: gRPC's own lines about streams that end are no news."""


@dataclass(frozen=True, slots=True)
class Doors:
    """Where clients reach the cluster, as host:port, and the model that they find there."""

    http: str
    grpc: str
    model: str


class LocalCluster:
    """All processes of one cluster. Workers get a free port each and keep it over restarts; the token goes by environment."""

    def __init__(self, config: ServeConfig, launcher: Launcher, view: View) -> None:
        self._config = config
        self._launcher = launcher
        self._view = view
        self._env = QUIET | child_environ(config.cluster_token or draw_token())
        self._workers = [self._worker(name, role, cpus) for name, role, cpus in plan(config)]
        self._router: Keeper | None = None

    async def start(self) -> Doors:
        """Starts workers, then the router; returns when requests can be served. Raises StartupError; then call `stop`."""
        check_port(self._config.host, self._config.port, "--port")
        check_port(self._config.host, self._config.grpc_port, "--grpc-port")
        ready = await _all([worker.start() for worker in self._workers])
        config = self._config.router(tuple(str(status["address"]) for status in ready))
        self._router = self._keeper("router", ROUTER, config)
        status = await self._router.start()
        return Doors(http=str(status["address"]), grpc=str(status["grpc_address"]), model=str(ready[0]["model"]))

    async def keep(self) -> None:
        """After `start`: restarts what dies. Runs until cancelled."""
        await _all([keeper.keep() for keeper in self._keepers])

    async def stop(self) -> Mapping[str, int]:
        """Stops the router first, so that requests drain while their workers live; then the workers. Leaves no process.

        The exit statuses by name. Cancelled, it lets no request end in peace, and still stops all.
        """
        timeouts, codes = self._config.timeouts, dict[str, int]()
        try:
            if self._router is not None:
                codes["router"] = await self._router.stop(timeouts.drain_s + ENDING_S)
        finally:
            ended = await _all([worker.stop(timeouts.worker_grace_s + ENDING_S) for worker in self._workers])
        return codes | {worker.name: code for worker, code in zip(self._workers, ended, strict=True)}

    @property
    def _keepers(self) -> list[Keeper]:
        return [*self._workers, *([self._router] if self._router else [])]

    def _worker(self, name: str, role: Role, cpus: tuple[int, ...]) -> Keeper:
        return self._keeper(name, WORKER, self._config.worker(role, cpus))

    def _keeper(self, name: str, module: str, config: Config) -> Keeper:
        def command(port: int) -> list[str]:
            again = config.model_copy(update={"port": port}) if port else config
            return [sys.executable, "-m", module, *to_argv(again)]

        return Keeper(name, command, self._env, self._launcher, self._view)


def plan(config: ServeConfig) -> list[tuple[str, Role, tuple[int, ...]]]:
    """Name, role and CPUs of each worker. CPUs are dealt out so that no two workers share one while there are enough.

    Two thread teams on shared cores wait for each other at every barrier: an equal share each, one core kept for the router.
    """
    names = _names(config)
    cores = sorted(os.sched_getaffinity(0))
    share = config.threads or max(1, (len(cores) - 1) // len(names))
    return [
        (name, role, tuple(dict.fromkeys(cores[(index * share + k) % len(cores)] for k in range(share))))
        for index, (name, role) in enumerate(names)
    ]


def _names(config: ServeConfig) -> list[tuple[str, Role]]:
    if config.both:
        return [(f"both-{i}", Role.BOTH) for i in range(config.both)]
    prefill = [(f"prefill-{i}", Role.PREFILL) for i in range(config.prefill)]
    return prefill + [(f"decode-{i}", Role.DECODE) for i in range(config.decode)]


def check_port(host: str, port: int, flag: str) -> None:
    """Raises StartupError if `port` cannot be listened on, before any weights are loaded for nothing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise cannot_listen(host, port, flag, error) from error


async def _all(waits: list[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Runs them together; the first failure cancels the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(wait) for wait in waits]
    except* StartupError as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
