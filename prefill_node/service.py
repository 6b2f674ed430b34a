"""The prefill half of a worker: one attempt a lease over the engine, told in the link's records."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from baton.engine.api import Engine, EngineEvent, Handle
from baton.wire.records import LeaseRecord
from baton.wire.types import LeaseId, StartPrefill
from kvtransfer.sender import Sender
from prefill_node.attempt import PrefillAttempt


class PrefillService:
    """A `baton.wire.link_server.PrefillRole`. Entered before its first start; leaving it ends every attempt and waits for them.

    The engine's events come in through `on_events`. Engine and sender belong to the caller, who stops them afterwards.
    """

    def __init__(self, engine: Engine, sender: Sender) -> None:
        self._engine = engine
        self._sender = sender
        self._tasks = asyncio.TaskGroup()
        self._attempts: dict[LeaseId, tuple[PrefillAttempt, asyncio.Task[None]]] = {}
        self._by_handle: dict[Handle, PrefillAttempt] = {}

    async def __aenter__(self) -> PrefillService:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        for lease in list(self._attempts):
            self.end(lease)
        await self._tasks.__aexit__(None, None, None)  # what ended the caller goes on by itself, not in a group

    def start(self, record: LeaseRecord, command: StartPrefill) -> None:
        self.end(command.lease)
        attempt = PrefillAttempt(self._engine, self._sender, record, command, self._follow)
        self._attempts[command.lease] = attempt, self._tasks.create_task(self._run(attempt))

    def end(self, lease: LeaseId) -> None:
        attempt, task = self._attempts.pop(lease, (None, None))
        if attempt is not None and task is not None:
            attempt.end()
            task.cancel()

    def on_events(self, events: Sequence[EngineEvent]) -> None:
        """What an engine step brought, for all of the engine's requests."""
        for event in events:
            attempt = self._by_handle.get(event.handle)
            if attempt is not None:
                attempt.feed(event)

    async def _run(self, attempt: PrefillAttempt) -> None:
        try:
            await attempt.run()
        finally:
            self._by_handle = {handle: other for handle, other in self._by_handle.items() if other is not attempt}

    def _follow(self, handle: Handle, attempt: PrefillAttempt) -> None:
        self._by_handle[handle] = attempt
