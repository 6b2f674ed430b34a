"""`baton router`, `baton prefill` and `baton decode`: one process of a cluster, started by hand."""

from __future__ import annotations

from baton.cli.options import Given
from baton.cluster.config import RouterConfig, WorkerConfig
from baton.cluster.lifecycle import fail
from baton.cluster.sources import ConfigError, load
from baton.wire.types import Role


def run_worker(role: Role, flags: Given, file: str | None) -> int:
    """Runs a worker in this process; its exit status. Needs the engine, so an install without torch is told so."""
    try:
        config = load(WorkerConfig, flags | {"role": role}, file)
    except ConfigError as error:
        fail(str(error), told=False)
        return 2
    try:
        from baton.cli.worker import run
    except ModuleNotFoundError as error:
        fail(f"a worker needs the engine, and {error.name} is not installed; run pip install 'baton-serve[engine]'", told=False)
        return 1
    return run(config)


def run_router(flags: Given, file: str | None) -> int:
    """Runs a router in this process; its exit status."""
    try:
        config = load(RouterConfig, flags, file)
    except ConfigError as error:
        fail(str(error), told=False)
        return 2
    from router.main import run

    return run(config)
