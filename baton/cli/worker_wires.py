"""How a worker's KV comes and goes: the transports it offers, in order, its ways out and its ways in."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from baton.cluster.config import WorkerConfig
from baton.wire.types import Incarnation, KvEndpoint, KvLayout
from kvtransfer.dialer import Dialer
from kvtransfer.memory import BlockMemory, SharedPool
from kvtransfer.receiver import Receiver
from kvtransfer.transports import grpc, shm, tcp
from kvtransfer.transports.base import Connect
from kvtransfer.transports.local import LocalConnect

IN_ORDER = ("shm", "tcp", "grpc")


def transports_of(config: WorkerConfig) -> tuple[str, ...]:
    """What the worker offers, best first."""
    return IN_ORDER if config.kv_transport == "auto" else (config.kv_transport,)


def shared_pool(config: WorkerConfig, num_bytes: int) -> SharedPool | None:
    """Memory for the pool where senders' blocks are read from outside; None: the engine's own will do."""
    return SharedPool(num_bytes) if config.role.prefills and "shm" in transports_of(config) else None


def dialer(config: WorkerConfig, pool: SharedPool | None, layout: KvLayout, receiver: Receiver) -> Dialer:
    """The sender's way to any receiver, this worker's own included."""
    all_ways: dict[str, Connect] = {"tcp": tcp.connect, "grpc": grpc.connect}
    if pool is not None:
        all_ways["shm"] = shm.ShmConnect(pool)
    ways = {transport: all_ways[transport] for transport in transports_of(config) if transport in all_ways}
    return Dialer(ways, grpc.ask, usable=_usable, local=_local(config, pool, layout, receiver))


def _local(config: WorkerConfig, pool: SharedPool | None, layout: KvLayout, receiver: Receiver) -> Connect | None:
    if pool is None or not config.role.decodes:
        return None
    return LocalConnect(receiver, BlockMemory(memoryview(pool.memory), layout))


def _usable(endpoint: KvEndpoint) -> bool:
    return endpoint.transport != "shm" or shm.reachable(endpoint.address)


class Listeners:
    """The receiver's ways in besides the internal port. Entered: they listen."""

    def __init__(self, config: WorkerConfig, incarnation: Incarnation, receiver: Receiver) -> None:
        self._servers: list[shm.ShmServer | tcp.TcpServer] = []
        self._transports = transports_of(config)
        if "shm" in self._transports:
            self._servers.append(shm.ShmServer(receiver, config.cluster_token, f"baton-kv-{incarnation.hex()}"))
        if "tcp" in self._transports:
            self._servers.append(tcp.TcpServer(receiver, config.cluster_token, config.host))
        self._stack = AsyncExitStack()

    def offers(self) -> tuple[KvEndpoint, ...]:
        """What a sender may choose from."""
        internal = (KvEndpoint("grpc"),) if "grpc" in self._transports else ()
        return (*(server.endpoint for server in self._servers), *internal)

    async def __aenter__(self) -> Listeners:
        for server in self._servers:
            await self._stack.enter_async_context(server)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.__aexit__(*error)
