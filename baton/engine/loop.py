"""The engine's thread: commands go in between steps, events come out once per step, and nothing runs while there is no work."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from collections.abc import Sequence as Many
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import torch

from baton.engine.api import BlockStore, EngineEvent, EngineStats, EngineStopped, Handle, NoRoom, Reservation
from baton.engine.core import EngineCore
from baton.wire.types import FirstToken, Identity, ModelCard, RequestSpec

_log = logging.getLogger(__name__)
_STOP_S = 60.0  # a step in progress is never interrupted, and a long chunk on a slow machine takes seconds

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Command:
    """Something to do between two steps, and who waits for it."""

    action: Callable[[], Any]
    future: asyncio.Future[Any]

    def run(self) -> _Reply:
        try:
            return _Reply(self.future, self.action())
        except (NoRoom, ValueError) as error:
            return _Reply(self.future, error=error)
        except Exception as error:  # the edge of the thread: whoever waits is answered, and the engine steps on
            _log.exception("an engine command failed")
            return _Reply(self.future, error=error)


@dataclass(frozen=True, slots=True)
class _Reply:
    future: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None


class EngineLoop:
    """Implements Engine over a core. Owned by one asyncio loop, which must call `stop` before it closes."""

    def __init__(
        self, core: EngineCore, card: ModelCard, identity: Identity, step_gate: Callable[[], None] | None = None
    ) -> None:
        """`step_gate` is called on the engine's thread before each step, and may take its time."""
        self.core = core
        self.card = card
        self.identity = identity
        self.store: BlockStore = core.pool
        self._step_gate = step_gate
        self._commands: SimpleQueue[_Command | None] = SimpleQueue()  # None stops the thread
        self._thread = Thread(target=self._main, name="engine", daemon=True)
        self._stats = core.stats()
        self._is_stopping = False
        self._failure: asyncio.Future[str]

    # --- on the asyncio loop -----------------------------------------------------------------------------------------

    async def start(self, on_events: Callable[[Many[EngineEvent]], None]) -> None:
        """Starts the thread. OSError if it may not run on the configured cpus."""
        self._loop = asyncio.get_running_loop()
        self._on_events = on_events
        self._failure = self._loop.create_future()
        self._thread.start()
        await self._call(self._pin)

    async def stop(self) -> None:
        """Ends the thread after the step in progress. Requests that are still here get no more events."""
        if not self._thread.is_alive():
            return
        if not self._is_stopping:
            self._is_stopping = True
            self._commands.put(None)
        await asyncio.to_thread(self._thread.join, _STOP_S)
        if self._thread.is_alive():
            raise TimeoutError(f"the engine is still in a step after {_STOP_S:.0f} s")

    async def failed(self) -> str:
        return await asyncio.shield(self._failure)

    async def prefill(self, spec: RequestSpec) -> Reservation:
        return await self._admit(partial(self.core.prefill, spec))

    async def generate(self, spec: RequestSpec) -> Reservation:
        return await self._admit(partial(self.core.generate, spec))

    async def reserve(self, spec: RequestSpec) -> Reservation:
        return await self._admit(partial(self.core.reserve, spec))

    async def activate(self, handle: Handle, spec: RequestSpec, first: Many[FirstToken]) -> None:
        await self._call(partial(self.core.activate, handle, spec, first))

    async def finish(self, handle: Handle, choice: int) -> None:
        await self._call(partial(self.core.finish, handle, choice))

    async def release(self, handle: Handle) -> None:
        with suppress(EngineStopped):  # an engine that is gone holds nothing for anyone
            await self._call(partial(self.core.release, handle))

    def stats(self) -> EngineStats:
        return self._stats

    async def _admit(self, action: Callable[[], Reservation]) -> Reservation:
        future = self._post(action)
        try:
            return await future
        except asyncio.CancelledError:
            # answered, but the caller left before it saw the handle: nobody else knows what to release
            if not future.cancelled() and future.exception() is None:
                self._discard(future.result())
            raise

    async def _call(self, action: Callable[[], T]) -> T:
        return await self._post(action)

    def _post(self, action: Callable[[], T]) -> asyncio.Future[T]:
        if self._is_stopping:
            raise EngineStopped("the engine has stopped")
        future: asyncio.Future[T] = self._loop.create_future()
        self._commands.put(_Command(action, future))
        return future

    def _answer(self, replies: Many[_Reply]) -> None:
        for reply in replies:
            if reply.future.cancelled():
                self._discard(reply.result)
            elif reply.error is not None:
                reply.future.set_exception(reply.error)
            else:
                reply.future.set_result(reply.result)

    def _discard(self, result: object) -> None:
        if isinstance(result, Reservation) and not self._is_stopping:
            self._post(partial(self.core.release, result.handle))

    # --- on the engine's thread --------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as error:  # the edge of the thread: a fault of ours must leave no request waiting
            _log.critical("the engine failed", exc_info=True)
            self._end(f"the engine failed: {type(error).__name__}: {error}")

    def _turn(self) -> bool:
        """Commands, then a step if there is anything to do. False: stop."""
        commands = self._take()
        replies = [command.run() for command in commands if command is not None]
        self._stats = self.core.stats()
        if replies:
            self._loop.call_soon_threadsafe(self._answer, replies)
        if None in commands:
            return False
        if self.core.has_work:
            if self._step_gate is not None:
                self._step_gate()
            self._publish(self.core.step())
        return True

    def _take(self) -> list[_Command | None]:
        """All commands there are; waits for one if there is nothing else to do."""
        commands = [] if self.core.has_work else [self._commands.get()]
        try:
            while True:
                commands.append(self._commands.get_nowait())
        except Empty:
            return commands

    def _publish(self, events: list[EngineEvent]) -> None:
        self._stats = self.core.stats()
        if events:
            # one turn of the loop later than a reply: whoever awaits a reservation knows its handle before its first event
            self._loop.call_soon_threadsafe(self._loop.call_soon, self._on_events, events)

    def _end(self, message: str) -> None:
        """Breaks what is here, tells who watches, and refuses every command until `stop`."""
        try:
            self._publish(self.core.break_all(message))
        except Exception:  # a core that lost its own order: who waits for its events learns it from the end of the process
            _log.critical("the engine cannot break its requests", exc_info=True)
        self._loop.call_soon_threadsafe(self._failure.set_result, message)
        for command in iter(self._commands.get, None):
            reply = _Reply(command.future, error=EngineStopped(message))
            self._loop.call_soon_threadsafe(self._answer, [reply])

    def _pin(self) -> None:
        """Pins this thread, and with it the threads that torch starts from it."""
        config = self.core.config
        if config.cpus:
            os.sched_setaffinity(0, config.cpus)
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
