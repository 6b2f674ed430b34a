"""The prefill half of a worker: one attempt a lease over the engine, told in the link's records."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

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
        self._opening: set[PrefillAttempt] = set()  # the engine was asked and has not answered
        self._early: list[EngineEvent] = []  # of handles that nobody knows yet

    async def __aenter__(self) -> PrefillService:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for lease in list(self._attempts):
            self.end(lease)
        await self._tasks.__aexit__(*error)

    def start(self, record: LeaseRecord, command: StartPrefill) -> None:
        self.end(command.lease)
        attempt = PrefillAttempt(self._engine, self._sender, record, command, self._follow)
        self._attempts[command.lease] = attempt, self._tasks.create_task(self._run(attempt))
        self._opening.add(attempt)

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
            elif self._opening:
                self._early.append(event)

    async def _run(self, attempt: PrefillAttempt) -> None:
        try:
            await attempt.run()
        finally:
            self._opened(attempt)
            self._by_handle = {handle: other for handle, other in self._by_handle.items() if other is not attempt}

    def _follow(self, handle: Handle, attempt: PrefillAttempt) -> None:
        """The engine may have begun before its answer was read: what it told meanwhile comes first."""
        self._by_handle[handle] = attempt
        for event in self._early:
            if event.handle == handle:
                attempt.feed(event)
        self._opened(attempt)

    def _opened(self, attempt: PrefillAttempt) -> None:
        self._opening.discard(attempt)
        if not self._opening:
            self._early.clear()
