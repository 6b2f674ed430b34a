"""The parts of a worker between its engine and its links, and how they start and stop together."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import grpc

from baton.cluster.config import WorkerConfig
from baton.engine.api import EngineEvent
from baton.engine.loop import EngineLoop
from baton.wire.link_server import LinkServer
from baton.wire.types import Capabilities, DecodeTarget, KvHello, LoadReport, WorkerInfo
from decode_node.service import DecodeService
from kvtransfer.receiver import Receiver
from kvtransfer.sender import Sender
from kvtransfer.transports.base import Connect
from kvtransfer.transports.grpc import connect, kv_handler
from prefill_node.service import PrefillService


class Parts:
    """Engine, sender and receiver with their services, for the config's role. Entered: they run; left: all leases have ended.

    `prefill`, `decode` are None where the role has none.
    """

    def __init__(self, config: WorkerConfig, engine: EngineLoop, wrap_transport: Callable[[Connect], Connect]) -> None:
        capabilities = Capabilities(engine.store.layout)
        capacity, slots = engine.core.config.capacity_tokens, config.max_num_seqs
        incarnation = os.urandom(16)
        self.info = WorkerInfo(incarnation, config.role, engine.identity, capabilities, engine.card, capacity, slots)
        self._engine = engine
        self._token = config.cluster_token
        self._sender = Sender(engine.store, self._hello, config.cluster_token, config.timeouts, wrap_transport(connect))
        self._receiver = Receiver(engine.store, self.info)
        self.prefill = PrefillService(engine, self._sender) if config.role.prefills else None
        self.decode = DecodeService(engine, self._receiver) if config.role.decodes else None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Parts:
        self._stack.callback(self._receiver.stop)
        self._stack.push_async_callback(self._engine.stop)
        await self._engine.start(self._on_events)
        self._stack.push_async_callback(self._sender.stop)
        for service in (self.prefill, self.decode):
            if service is not None:
                await self._stack.enter_async_context(service)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.__aexit__(*error)

    @property
    def kv_handlers(self) -> tuple[grpc.GenericRpcHandler[bytes, bytes], ...]:
        """What the worker's server needs to take KV."""
        return (kv_handler(self._receiver, self._token),) if self.decode is not None else ()

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

    def _hello(self, target: DecodeTarget) -> KvHello:
        return KvHello(self.info.incarnation, target.incarnation, self.info.identity, self.info.capabilities)

    def _on_events(self, events: Sequence[EngineEvent]) -> None:
        if self.prefill is not None:
            self.prefill.on_events(events)
        if self.decode is not None:
            self.decode.on_events(events)
