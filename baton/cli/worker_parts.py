"""The parts of a worker between its engine and its links, and how they start and stop together."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import grpc

from baton.cli.worker_wires import Listeners, dialer, transports_of
from baton.cluster.config import WorkerConfig
from baton.engine.api import EngineEvent
from baton.engine.loop import EngineLoop
from baton.wire.link_server import LinkServer
from baton.wire.types import Capabilities, DecodeTarget, KvHello, LoadReport, WorkerInfo
from decode_node.service import DecodeService
from kvtransfer.memory import SharedPool
from kvtransfer.receiver import Receiver
from kvtransfer.sender import Sender
from kvtransfer.transports.base import Connect
from kvtransfer.transports.grpc import kv_handler
from prefill_node.service import PrefillService


class Parts:
    """Engine, sender and receiver with their services, for the config's role. Entered: they run; left: all leases have ended.

    `prefill`, `decode` are None where the role has none.
    """

    def __init__(
        self,
        config: WorkerConfig,
        engine: EngineLoop,
        pool: SharedPool | None,
        wrap_transport: Callable[[Connect], Connect],
    ) -> None:
        """`pool`: the memory that the engine's pool lies in, if it can be shared; closed with the parts."""
        layout = engine.store.layout
        capabilities = Capabilities(layout, transports_of(config))
        capacity, slots = engine.core.config.capacity_tokens, config.max_num_seqs
        incarnation = os.urandom(16)
        self.info = WorkerInfo(incarnation, config.role, engine.identity, capabilities, engine.card, capacity, slots)
        self._engine = engine
        self._token = config.cluster_token
        self._receiver = Receiver(engine.store, self.info, self._step_s)
        out = dialer(config, pool, layout, self._receiver)
        connect = wrap_transport(out.connect)
        self._sender = Sender(engine.store, self._hello, config.cluster_token, config.timeouts, connect, out.failed)
        self._listeners = Listeners(config, incarnation, self._receiver) if config.role.decodes else None
        self._pool = pool
        self.prefill = PrefillService(engine, self._sender) if config.role.prefills else None
        self.decode = DecodeService(engine, self._receiver) if config.role.decodes else None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Parts:
        if self._pool is not None:
            self._stack.callback(self._pool.close)
        self._stack.callback(self._receiver.stop)
        self._stack.push_async_callback(self._engine.stop)
        await self._engine.start(self._on_events)
        self._stack.push_async_callback(self._sender.stop)
        for service in (self.prefill, self.decode):
            if service is not None:
                await self._stack.enter_async_context(service)
        if self._listeners is not None:
            await self._stack.enter_async_context(self._listeners)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.__aexit__(*error)

    @property
    def kv_handlers(self) -> tuple[grpc.GenericRpcHandler[bytes, bytes], ...]:
        """What the worker's server needs to take KV."""
        if self._listeners is None:
            return ()
        return (kv_handler(self._receiver, self._token, self._listeners.offers),)

    def load(self, links: LinkServer) -> LoadReport:
        """The worker's load as of now."""
        stats, sender, receiver = self._engine.stats(), self._sender, self._receiver
        overrun = self.decode.overrun_tokens if self.decode is not None else 0
        return LoadReport(
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            kv_blocks_used=stats.kv_blocks_used,
            kv_blocks_total=stats.kv_blocks_total,
            kv_blocks_cached=stats.kv_blocks_cached,
            queued_prefill_tokens=stats.queued_prefill_tokens,
            num_leases=links.num_leases,
            draining=links.draining,
            prompt_tokens_total=stats.prompt_tokens_total,
            generated_tokens_total=stats.generated_tokens_total - overrun,
            overrun_tokens_total=overrun,
            prefix_hit_tokens_total=stats.prefix_hit_tokens_total,
            prefix_query_tokens_total=stats.prefix_query_tokens_total,
            preemptions_total=stats.preemptions_total,
            transfer_bytes_total=sender.sent_bytes + receiver.received_bytes,
            transfers_total=sender.transfers + receiver.transfers,
            transfers_failed_total=sender.transfers_failed,
            frames_refused_total=receiver.refused.total(),
            aborted_total=stats.aborted_total,
            last_step_s=stats.last_step_s,
        )

    def _step_s(self) -> float:
        """What receiving must not take the core from: a batch on decode. With both roles on one core there is no sparing it."""
        stats = self._engine.stats()
        return stats.last_step_s if self.prefill is None and stats.num_running else 0.0

    def _hello(self, target: DecodeTarget) -> KvHello:
        return KvHello(self.info.incarnation, target.incarnation, self.info.identity, self.info.capabilities)

    def _on_events(self, events: Sequence[EngineEvent]) -> None:
        if self.prefill is not None:
            self.prefill.on_events(events)
        if self.decode is not None:
            self.decode.on_events(events)
