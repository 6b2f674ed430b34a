"""The composition root of a worker process: one engine, one or both services over it, one port.

bind the port -> load the model -> engine, services, server -> ready ... first signal: refuse starts, wait for leases -> stop
                                                                 ... the engine fails: not serving, links break -> exit status 1
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from baton.cli.kv_size import auto_blocks
from baton.cli.worker_parts import Parts
from baton.cli.worker_wires import shared_pool
from baton.cluster.config import WorkerConfig
from baton.cluster.lifecycle import RunError, Shutdown, StartupError, fail
from baton.cluster.lifecycle import run as run_process
from baton.cluster.registries import registered
from baton.cluster.sources import ConfigError, from_argv
from baton.cluster.status import LOADING, READY, report
from baton.engine.config import EngineConfig
from baton.engine.core import EngineCore
from baton.engine.errors import ModelError
from baton.engine.loop import EngineLoop
from baton.engine.weights import KV_DTYPES, LoadedModel, bundled, load_model
from baton.wire.link_server import LinkServer
from baton.wire.servers import AddressTaken, WorkerServer
from baton.wire.types import KvLayout, Registration, WorkerInfo
from kvtransfer.memory import SharedPool
from kvtransfer.transports.base import Connect

log = logging.getLogger(__name__)

PROGRESS_S = 0.1


@dataclass(frozen=True, slots=True)
class Hooks:
    """Where a test puts itself between the parts: before each engine step, and around the wire that KV takes."""

    step_gate: Callable[[], None] | None = None
    wrap_transport: Callable[[Connect], Connect] = lambda connect: connect


class _Interrupted(Exception):
    """The process was told to stop while it loaded."""


def main(argv: Sequence[str] | None = None, hooks: Hooks | None = None) -> int:
    """Runs a worker as its arguments say; its exit status."""
    try:
        config = from_argv(WorkerConfig, sys.argv[1:] if argv is None else argv, "python -m baton.cli.worker")
    except ConfigError as error:
        fail(str(error))
        return 2
    return run(config, hooks)


def run(config: WorkerConfig, hooks: Hooks | None = None) -> int:
    """Runs a worker until it is told to stop; its exit status."""
    return run_process(lambda shutdown: serve(config, shutdown, hooks or Hooks()), log_level=config.log_level)


async def serve(config: WorkerConfig, shutdown: Shutdown, hooks: Hooks) -> None:
    """Serves from the ready line to the first signal, then drains. Raises StartupError, RunError."""
    try:
        server = WorkerServer(config.host, config.port, config.cluster_token)
        loaded = await asyncio.to_thread(_load, config, shutdown)
    except (AddressTaken, ModelError) as error:
        raise StartupError(str(error)) from error
    except _Interrupted:
        return
    async with build(config, hooks, loaded, server) as worker, registered(config, _registration(config, worker)):
        report(READY, address=server.address, role=config.role, model=loaded.card.name)
        await _unless_failed(worker, _until_drained(worker, shutdown, config.drain_s))


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker that serves: what `serve` watches and drains."""

    info: WorkerInfo
    engine: EngineLoop
    links: LinkServer
    server: WorkerServer

    async def refuse(self) -> None:
        """Takes no more work, and says so to routers and to probes of health."""
        self.links.draining = True
        await self.server.drain()


@asynccontextmanager
async def build(config: WorkerConfig, hooks: Hooks, loaded: LoadedModel, server: WorkerServer) -> AsyncIterator[Worker]:
    """A worker that serves inside, and has ended every lease and given everything back outside."""
    core, pool = _core(config, loaded)
    engine = EngineLoop(core, loaded.card, loaded.identity, hooks.step_gate)
    async with AsyncExitStack() as stack:
        parts = Parts(config, engine, pool, hooks.wrap_transport)
        await stack.enter_async_context(parts)
        links = LinkServer(parts.info, parts.prefill, parts.decode, lambda: parts.load(links), config.timeouts)
        stack.push_async_callback(links.stop)
        stack.push_async_callback(server.stop)
        await server.start(links, parts.kv_handlers)
        yield Worker(parts.info, engine, links, server)


def _registration(config: WorkerConfig, worker: Worker) -> Registration:
    info, port = worker.info, int(worker.server.address.rpartition(":")[2])
    return Registration(
        config.advertised(port), info.role, info.card.name, info.capacity_tokens, info.max_num_seqs, info.incarnation
    )


async def _unless_failed(worker: Worker, life: Coroutine[Any, Any, None]) -> None:
    """Runs `life` to its end. Raises RunError as soon as the engine fails: routers go elsewhere when the links break."""
    living, failing = asyncio.create_task(life), asyncio.create_task(worker.engine.failed())
    try:
        await asyncio.wait({living, failing}, return_when=asyncio.FIRST_COMPLETED)
        if failing.done():
            await worker.refuse()
            raise RunError(failing.result())
        await living
    finally:
        for task in (living, failing):
            task.cancel()
        await asyncio.wait({living, failing})


async def _until_drained(worker: Worker, shutdown: Shutdown, drain_s: float) -> None:
    await shutdown.wait()
    await worker.refuse()
    log.info("draining: %d leases left", worker.links.num_leases)
    try:
        async with asyncio.timeout(drain_s):
            await worker.links.drained()
    except TimeoutError as error:
        raise RunError(f"{worker.links.num_leases} leases did not end within {drain_s:g} s") from error


def _core(config: WorkerConfig, loaded: LoadedModel) -> tuple[EngineCore, SharedPool | None]:
    spec = loaded.model.spec
    layout = KvLayout(spec.num_layers, config.block_size, spec.num_kv_heads, spec.head_dim, KV_DTYPES[config.dtype])
    auto = config.kv_blocks == "auto"
    num_blocks = auto_blocks(layout, config.max_num_seqs, spec.max_model_len) if auto else int(config.kv_blocks)
    engine_config = EngineConfig(
        num_blocks=num_blocks,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_step_tokens=config.max_step_tokens,
        growth_reserve=config.growth_reserve,
        num_threads=config.threads or len(config.cpus) or None,
        cpus=config.cpus,
        kv_dtype=layout.dtype,
    )
    pool = shared_pool(config, num_blocks * layout.block_bytes)
    return EngineCore(loaded.model, loaded.identity, engine_config, pool.memory if pool else None), pool


# --- loading, on a thread of its own ----------------------------------------------------------------------------------


def _load(config: WorkerConfig, shutdown: Shutdown) -> LoadedModel:
    _pin(config.cpus)
    return load_model(
        config.model or bundled(),
        dtype=config.dtype,
        max_model_len=config.max_model_len,
        served_name=config.served_model_name,
        progress=_Progress(shutdown),
    )


def _pin(cpus: tuple[int, ...]) -> None:
    if cpus:
        os.sched_setaffinity(0, cpus)  # of this thread


class _Progress:
    """Tells the launcher how far the weights are, a few times a second and at the end."""

    def __init__(self, shutdown: Shutdown) -> None:
        self._shutdown = shutdown
        self._told_at = 0.0

    def __call__(self, done: int, total: int) -> None:
        if self._shutdown.begun:
            raise _Interrupted
        if done == total or time.monotonic() >= self._told_at + PROGRESS_S:
            self._told_at = time.monotonic()
            report(LOADING, bytes=done, total=total)


if __name__ == "__main__":
    sys.exit(main())
