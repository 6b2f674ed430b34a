"""One lease on decode, from its reservation to the last token.

engine.reserve -> Reserved ... KV arrives ... commit -> engine.activate -> Tokens ... Finished
                  ^                                |
                  +---- fence: a higher epoch -----+ not after the commit
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

from baton.engine.api import (
    Broken,
    Engine,
    EngineEvent,
    EngineFailure,
    EngineStopped,
    Evicted,
    Handle,
    NoRoom,
    Reservation,
    Sampled,
    Started,
)
from baton.engine.hold import hold
from baton.wire.records import LeaseRecord
from baton.wire.types import (
    Commit,
    Committed,
    Event,
    Failed,
    Fence,
    Fenced,
    Finished,
    FinishReason,
    FirstToken,
    Gone,
    Preempted,
    Refused,
    Reserved,
    Spans,
    StartDecode,
)
from kvtransfer.receiver import Receiver

log = logging.getLogger(__name__)


class DecodeAttempt:
    """Owns its reservation while `run` runs; the receiver may write to the blocks until it has closed the lease.

    What was committed is remembered until the router's end, longer than the blocks: a late fence is answered Committed.
    `follow` makes the engine's events of a handle come to `feed`.
    """

    def __init__(
        self,
        engine: Engine,
        receiver: Receiver,
        record: LeaseRecord,
        command: StartDecode,
        follow: Callable[[Handle, DecodeAttempt], None],
    ) -> None:
        self.ended = False
        self.overrun_tokens = 0
        self._engine = engine
        self._receiver = receiver
        self._record = record
        self._lease = command.lease
        self._spec = command.spec
        self._follow = follow
        self._reservation: Reservation | None = None
        self._commit: Commit | None = None
        self._arrived = asyncio.Event()
        self._live = set(command.spec.choices)
        self._stops: asyncio.Queue[int | None] = asyncio.Queue()
        self._broken: Broken | None = None
        self._queue_s: float | None = None
        self._started_at = 0.0

    async def run(self, before: asyncio.Task[None] | None) -> None:
        """The whole lease, once the attempt `before` it has freed its blocks; what comes of it is told in the record."""
        try:
            async with asyncio.timeout(self._spec.deadline_s):
                if before is not None:
                    await asyncio.wait([before])
                async with hold(self._engine, self._engine.reserve(self._spec)) as reservation:
                    await self._serve(reservation)
        except NoRoom as full:
            self._tell(Refused(self._lease, self._record.epoch, full.reason, str(full)))
        except TimeoutError:
            self._fail("deadline", "the request's deadline passed at decode")
        except EngineStopped as error:
            self._fail("engine_stopped", str(error), retryable=True)
        except EngineFailure as error:
            self._fail("engine", str(error), retryable=error.retryable)
        except ValueError as error:
            self._fail("engine", str(error))
        except Exception as error:  # the edge of a request: it alone fails
            log.exception("a decode lease failed")
            self._fail("internal", type(error).__name__)

    async def _serve(self, reservation: Reservation) -> None:
        async with self._receiving(reservation):
            self._follow(reservation.handle, self)
            self._tell(Reserved(self._lease, self._record.epoch, reservation.num_cached))
            await self._arrived.wait()
            await self._engine.activate(reservation.handle, self._spec, self._going_on())
            await self._until_over(reservation.handle)

    @asynccontextmanager
    async def _receiving(self, reservation: Reservation) -> AsyncIterator[None]:
        """The receiver owns the blocks beyond the cached ones inside, until the commit."""
        self._receiver.expect(
            self._lease,
            self._record.epoch,
            reservation.block_ids,
            reservation.num_cached,
            self._spec.total_len,
            len(self._spec.output_ids),
            self._committed,
            choices=self._spec.choices,
            on_refused=self._tell,
        )
        self._reservation = reservation
        try:
            yield
        finally:
            self._reservation = None
            await self._receiver.close(self._lease)

    async def _until_over(self, handle: Handle) -> None:
        """Decodes; stops the choices that the router ended."""
        while (choice := await self._stops.get()) is not None:
            await self._engine.finish(handle, choice)
        if self._broken is not None:
            raise EngineFailure(self._broken)

    # --- what the router asks ------------------------------------------------------------------------------------

    async def fence(self, command: Fence) -> None:
        """Moves to `command.epoch`, or says why not. The engine's cover of the reservation must hold the accepted ids too."""
        verdict = await self._arbitrate(command)
        if isinstance(verdict, Fenced):
            self._spec = replace(self._spec, output_ids=command.output_ids)
            if not self.ended:
                self._record.restart(command.epoch)
        if verdict is not None:
            self._tell(verdict)

    async def _arbitrate(self, command: Fence) -> Fenced | Committed | Gone | None:
        if self._commit is not None:
            return Committed(self._lease, self._commit.epoch, self._commit.index, self._commit.first)
        reservation, total_len = self._reservation, len(self._spec.prompt_ids) + len(command.output_ids)
        block_size = self._engine.store.layout.block_size
        if reservation is None or total_len > len(reservation.block_ids) * block_size:
            return Gone(self._lease, command.epoch)
        return await self._receiver.fence(self._lease, command.epoch, total_len, len(command.output_ids))

    def finish(self, choices: Iterable[int]) -> None:
        """The router ended these choices: what they write from now on is overrun."""
        for choice in self._live.intersection(choices):
            self._stops.put_nowait(choice)
            self._close(choice)

    def end(self) -> None:
        """Nothing is told from now on; the caller cancels `run`."""
        self.ended = True

    # --- what the receiver says ----------------------------------------------------------------------------------

    def _committed(self, commit: Commit) -> None:
        """The blocks are live. The first tokens are told again: this may be the only copy that reaches the router."""
        self._commit = commit
        self._arrived.set()
        for first in commit.first:
            if not self.ended:
                self._record.output(first.choice, commit.index, first.token)
            if first.finish is not None:
                self._finished(first.choice, first.finish, commit.index + 1)

    def _going_on(self) -> list[FirstToken]:
        """The commit's first tokens; a choice that the router ended meanwhile has ended for the engine too."""
        first = self._commit.first if self._commit is not None else ()
        return [one if one.choice in self._live else replace(one, finish=one.finish or FinishReason.STOP) for one in first]

    # --- what the engine says ------------------------------------------------------------------------------------

    def feed(self, event: EngineEvent) -> None:
        """One event of this lease's request, on the loop."""
        match event:
            case Started(_, queue_s, _):
                self._queue_s, self._started_at = queue_s, time.monotonic()
            case Sampled():
                self._take(event)
            case Evicted(_, choice):
                self._tell(Preempted(self._lease, self._record.epoch, choice))
                self._close(choice)
            case Broken():
                self._broken = event
                self._stops.put_nowait(None)

    def _take(self, event: Sampled) -> None:
        if self.ended or event.choice not in self._live:
            self.overrun_tokens += 1
            return
        self._record.output(event.choice, event.index, event.token, self._first_step())
        if event.finish is not None:
            self._finished(event.choice, event.finish, event.index + 1)

    def _first_step(self) -> Spans | None:
        """The wait for the first decode step and its length, told once."""
        if self._queue_s is None:
            return None
        spans = Spans(queue_s=self._queue_s, compute_s=time.monotonic() - self._started_at)
        self._queue_s = None
        return spans

    def _finished(self, choice: int, reason: FinishReason, num_tokens: int) -> None:
        self._tell(Finished(self._lease, self._record.epoch, choice, reason, num_tokens))
        self._close(choice)

    def _close(self, choice: int) -> None:
        self._live.discard(choice)
        if not self._live:
            self._stops.put_nowait(None)

    # --- what the router hears -----------------------------------------------------------------------------------

    def _fail(self, reason: str, message: str, *, retryable: bool = False) -> None:
        self._tell(Failed(self._lease, self._record.epoch, reason, message, retryable))

    def _tell(self, event: Event) -> None:
        if not self.ended:
            self._record.answer(event)
