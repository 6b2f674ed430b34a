"""Which registry a process uses, by its config."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext

from baton.cluster.announce import announced
from baton.cluster.config import RouterConfig, WorkerConfig
from baton.cluster.lifecycle import StartupError
from baton.cluster.registry import Announcer, MemoryRegistry, Registry
from baton.wire.registry import RegistryCalls
from baton.wire.types import Endpoint, Registration, Role


def registry_of(config: RouterConfig) -> Registry:
    """What the router follows. Raises StartupError if it needs redis-py and that is not installed."""
    if config.registry:
        with _redis_installed():
            from baton.cluster.registry_redis import RedisRegistry
        return RedisRegistry(config.registry, config.registry_password, config.timeouts.registry_ttl_s)
    return MemoryRegistry(Endpoint(address, Role.BOTH) for address in config.workers)


def registered(config: WorkerConfig, registration: Registration) -> AbstractAsyncContextManager[None]:
    """The worker is known to its registry inside, if it was told of one. Raises StartupError like `registry_of`."""
    announcer = _announcer(config)
    if announcer is None:
        return nullcontext()
    return announced(announcer, registration, config.timeouts.registry_ttl_s)


def _announcer(config: WorkerConfig) -> Announcer | None:
    if config.registry:
        with _redis_installed():
            from baton.cluster.registry_redis import RedisAnnouncer
        return RedisAnnouncer(config.registry, config.registry_password)
    return RegistryCalls(config.router, config.cluster_token) if config.router else None


@contextmanager
def _redis_installed() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise StartupError(f"--registry needs {error.name}; run pip install 'baton-serve[redis]'") from error
