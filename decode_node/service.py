"""The decode half of a worker: one lease at a time over engine and receiver, told in the link's records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from baton.engine.api import Engine, EngineEvent, Handle
from baton.wire.records import LeaseRecord
from baton.wire.types import Fence, Gone, LeaseId, StartDecode
from decode_node.attempt import DecodeAttempt
from kvtransfer.receiver import Receiver


class DecodeService:
    """A `baton.wire.link_server.DecodeRole`. Entered before its first start; leaving it ends every lease and waits for them.

    The engine's events come in through `on_events`. Engine and receiver belong to the caller, who stops them afterwards.
    """

    def __init__(self, engine: Engine, receiver: Receiver) -> None:
        self._engine = engine
        self._receiver = receiver
        self._tasks = asyncio.TaskGroup()
        self._attempts: dict[LeaseId, tuple[DecodeAttempt, asyncio.Task[None]]] = {}
        self._by_handle: dict[Handle, DecodeAttempt] = {}
        self._overrun_tokens = 0

    @property
    def overrun_tokens(self) -> int:
        """Output tokens sampled after the router had ended their choice."""
        return self._overrun_tokens + sum(attempt.overrun_tokens for attempt in self._by_handle.values())

    async def __aenter__(self) -> DecodeService:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        for lease in list(self._attempts):
            self.end(lease)
        await self._tasks.__aexit__(None, None, None)  # what ended the caller goes on by itself, not in a group

    def start(self, record: LeaseRecord, command: StartDecode) -> None:
        _, before = self._attempts.get(command.lease, (None, None))
        self.end(command.lease)
        attempt = DecodeAttempt(self._engine, self._receiver, record, command, self._follow)
        self._attempts[command.lease] = attempt, self._tasks.create_task(self._run(attempt, before))

    def fence(self, record: LeaseRecord, command: Fence) -> None:
        attempt, _ = self._attempts.get(command.lease, (None, None))
        if attempt is None:
            record.answer(Gone(command.lease, command.epoch))
        else:
            self._tasks.create_task(attempt.fence(command))

    def finish(self, lease: LeaseId, choices: Iterable[int]) -> None:
        attempt, _ = self._attempts.get(lease, (None, None))
        if attempt is not None:
            attempt.finish(choices)

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

    def _follow(self, handle: Handle, attempt: DecodeAttempt) -> None:
        self._by_handle[handle] = attempt

    async def _run(self, attempt: DecodeAttempt, before: asyncio.Task[None] | None) -> None:
        try:
            await attempt.run(before)
        finally:
            self._overrun_tokens += attempt.overrun_tokens
            self._by_handle = {handle: other for handle, other in self._by_handle.items() if other is not attempt}
