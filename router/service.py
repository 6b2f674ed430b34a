"""The router's core, as the doors use it: everything between a validated request and its pieces of text."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager

from baton.cluster.config import RouterConfig
from baton.cluster.registry import Registry
from baton.wire.link_client import WorkerLink
from baton.wire.types import ModelCard
from router.admission import CLOSED, Admission
from router.generation import running
from router.links import Dial, WorkerPool
from router.metrics import RouterMetrics
from router.placer import Placer
from router.plant import Plant
from router.request import GenerateRequest, Generation, TextMaker
from router.worker_metrics import WorkerCollector


class RouterService:
    """Implements `router.request.Service`. `run` must be running for anything to be served."""

    def __init__(self, config: RouterConfig, dial: Dial) -> None:
        self._buffer_bytes = config.limits.stream_buffer_bytes
        self._metrics = RouterMetrics()
        self._pool = WorkerPool(dial, config.served_model_name)
        placer = Placer(self._pool, time.monotonic)
        self._admission = Admission(placer, config.queue_limit, config.timeouts.replace_s)
        self._plant = Plant(self._pool, placer, self._admission, self._metrics, config.timeouts.reserve_s)
        self._pool.on_restart = placer.forget
        self._pool.on_change = self._changed
        placer.on_release = self._admission.pump
        self._servable = asyncio.Event()
        self._watch()

    async def run(self, registry: Registry) -> None:
        """Keeps links to the registry's workers until cancelled."""
        await self._pool.run(registry)

    def generate(
        self, request: GenerateRequest, make_text: Callable[[int], TextMaker]
    ) -> AbstractAsyncContextManager[Generation]:
        """See Service. Raises, when the context is entered: QueueFull, Unavailable, InvalidRequest."""
        return running(self._plant, request, make_text, self._buffer_bytes)

    def models(self) -> Mapping[str, ModelCard]:
        return self._pool.models()

    def ready(self) -> str | None:
        return CLOSED if self._admission.closed else self._pool.ready()

    def metrics(self) -> bytes:
        return self._metrics.expose()

    async def servable(self) -> None:
        """Returns once requests can be served for the first time."""
        await self._servable.wait()

    async def drain(self, seconds: float) -> int:
        """Takes no more requests and waits for those that run, `seconds` at most: the number of those that were ended with an
        error then, 0 if all is well. Cancelled, it ends them at once."""
        try:
            async with asyncio.timeout(seconds):
                await self._admission.drain()
        except TimeoutError:
            return self._admission.abort()
        except asyncio.CancelledError:
            self._admission.abort()
            raise
        return 0

    def _changed(self) -> None:
        self._admission.pump()
        if not self._servable.is_set() and self.ready() is None:
            self._servable.set()

    def _watch(self) -> None:
        gauge = self._metrics.gauge
        gauge("baton_num_requests_waiting", "Requests that no worker has taken yet.", lambda: self._admission.num_waiting)
        gauge("baton_num_requests_running", "Requests that a worker has taken.", lambda: self._admission.num_running)
        gauge("baton_queue_limit", "Requests that may wait.", lambda: self._admission.limit)
        gauge("baton_ready", "Whether requests can be served.", lambda: self.ready() is None)
        gauge("baton_registry_current", "Whether the registry can be read.", lambda: self._pool.registry_error is None)
        self._metrics.registry.register(WorkerCollector(self._pool.workers))


def dialler(config: RouterConfig) -> Dial:
    """Makes links as this process life of the router."""
    incarnation = os.urandom(16)
    return lambda address, on_change: WorkerLink(address, incarnation, config.cluster_token, config.timeouts, on_change)
