"""One attempt at a lease on prefill, from start to handed off.

engine.prefill ──Computed──> outgoing.computed (KV leaves while the rest is computed)
               ──Sampled───> the first tokens are told at once, then outgoing.commit
                             decode answered: the blocks are released, HandedOff
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from baton.engine.api import (
    Broken,
    Computed,
    Engine,
    EngineEvent,
    EngineFailure,
    EngineStopped,
    Handle,
    NoRoom,
    Reservation,
    Sampled,
    Started,
)
from baton.engine.hold import hold
from baton.wire.errors import TransferError
from baton.wire.records import LeaseRecord
from baton.wire.types import DecodeTarget, Failed, Finished, FirstToken, HandedOff, Spans, StartPrefill
from kvtransfer.outgoing import Outgoing
from kvtransfer.sender import Sender

log = logging.getLogger(__name__)


class PrefillAttempt:
    """Owns its reservation while `run` runs. `end` may come at any time; after it nothing is told any more.

    `follow` makes the engine's events of a handle come to `feed`.
    """

    def __init__(
        self,
        engine: Engine,
        sender: Sender,
        record: LeaseRecord,
        command: StartPrefill,
        follow: Callable[[Handle, PrefillAttempt], None],
    ) -> None:
        self.ended = False
        self._engine = engine
        self._sender = sender
        self._record = record
        self._command = command
        self._follow = follow
        self._first: list[FirstToken] = []
        self._sampled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._outgoing: Outgoing | None = None
        self._spans = Spans()
        self._admitted_at = time.monotonic()

    async def run(self) -> None:
        """The whole attempt; its outcome is told in the record."""
        try:
            async with asyncio.timeout(self._command.spec.deadline_s):
                async with hold(self._engine, self._engine.prefill(self._command.spec)) as reservation:
                    await self._serve(reservation)
        except NoRoom as full:
            self._fail(full.reason, str(full))
        except TransferError as error:
            self._fail(error.reason, error.message)
        except TimeoutError:
            self._fail("deadline", "the request's deadline passed at prefill", retryable=False)
        except EngineStopped as error:
            self._fail("engine_stopped", str(error))
        except EngineFailure as error:
            self._fail("engine", str(error), retryable=error.retryable)
        except ValueError as error:
            self._fail("engine", str(error), retryable=False)
        except Exception as error:  # the edge of a request: it alone fails
            log.exception("a prefill attempt failed")
            self._fail("internal", type(error).__name__)
        else:
            self._tell(HandedOff(self._command.lease, self._command.epoch, self._spans))

    def end(self) -> None:
        """Nothing is told from now on; the caller cancels `run`."""
        self.ended = True

    async def _serve(self, reservation: Reservation) -> None:
        decode = self._command.decode
        if decode is None:
            self._follow(reservation.handle, self)
            await self._sampled
        else:
            await self._hand_off(reservation, decode)

    async def _hand_off(self, reservation: Reservation, decode: DecodeTarget) -> None:
        """The blocks are pinned until decode has answered, or the attempt is given up: `cancel` waits for the last read."""
        lease, epoch, spec = self._command.lease, self._command.epoch, self._command.spec
        cover = self._command.num_cached, spec.total_len
        self._outgoing = outgoing = self._sender.begin(lease, epoch, decode, reservation.block_ids, *cover)
        try:
            self._follow(reservation.handle, self)
            await self._sampled
            if any(first.finish is None for first in self._first):
                await outgoing.commit(len(spec.output_ids), tuple(self._first))
        finally:
            await outgoing.cancel()
        facts = outgoing.facts
        self._spans = replace(
            self._spans,
            transfer_s=facts.transfer_s,
            hidden_s=facts.hidden_s,
            transfer_bytes=facts.num_bytes,
            transport=facts.transport,
        )

    # --- what the engine says ------------------------------------------------------------------------------------

    def feed(self, event: EngineEvent) -> None:
        """One event of this attempt's request, on the loop."""
        match event:
            case Started(_, queue_s, num_cached):
                num_computed = self._command.spec.total_len - num_cached
                self._spans = Spans(queue_s=queue_s, num_cached=num_cached, num_computed=num_computed)
            case Computed(_, num_tokens):
                self._computed(num_tokens)
            case Sampled():
                self._take(event)
            case Broken():
                self._give_up(EngineFailure(event))

    def _computed(self, num_tokens: int) -> None:
        if self._outgoing is None:
            return
        if self._outgoing.error is not None:
            self._give_up(self._outgoing.error)  # computing the rest is of no use
        else:
            self._outgoing.computed(num_tokens)

    def _take(self, event: Sampled) -> None:
        """The first token leaves at once, before its KV has arrived anywhere."""
        if not self._first:
            since_admitted = time.monotonic() - self._admitted_at
            self._spans = replace(self._spans, compute_s=since_admitted - self._spans.queue_s)
        self._first.append(FirstToken(event.choice, event.token, event.finish))
        if not self.ended:
            self._record.output(event.choice, event.index, event.token, self._spans)
        if event.finish is not None:
            self._tell(Finished(self._command.lease, self._command.epoch, event.choice, event.finish, event.index + 1))
        if len(self._first) == len(self._command.spec.choices) and not self._sampled.done():
            self._sampled.set_result(None)

    def _give_up(self, error: Exception) -> None:
        if not self._sampled.done():
            self._sampled.set_exception(error)

    # --- what the router hears -----------------------------------------------------------------------------------

    def _fail(self, reason: str, message: str, *, retryable: bool = True) -> None:
        self._tell(Failed(self._command.lease, self._command.epoch, reason, message, retryable))

    def _tell(self, event: HandedOff | Failed | Finished) -> None:
        if not self.ended:
            self._record.answer(event)
