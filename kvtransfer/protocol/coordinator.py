"""The router's part of a request's life: which worker does what next, and which tokens count. Pure: inputs in, actions out.

begin -> PLACING -> RESERVING -> RUNNING -> DONE
            ^           |           | prefill failed, died, or its commit was refused
            |           |           v
            +-----------+------- FENCING        decode answers: fenced -> PLACING(prefill), committed -> RUNNING,
              new lease                         gone or died -> new lease
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from baton.wire import types as wire
from baton.wire.types import DecodeTarget, Event, LeaseId, RequestSpec
from kvtransfer.protocol.actions import (
    Accept,
    Action,
    Done,
    Fail,
    Place,
    PlaceKind,
    Propose,
    Replay,
    Requeue,
    Send,
    Split,
    WorkerId,
)
from kvtransfer.protocol.choices import Choice, Choices
from kvtransfer.protocol.phase import Phase

REQUEUED_REFUSALS = frozenset({"no_blocks", "busy", "draining"})


class Coordinator:
    """One request, or one choice that was split from it: one lease at a time, at most `max_attempts` attempts.

    Every method returns the actions to perform, in order (see actions.py). Exactly one `Done` or `Fail` is ever returned; after
    it every method returns nothing. Before it, every worker that was started and not lost was sent one `End`.
    """

    def __init__(
        self, spec: RequestSpec, *, max_attempts: int = 3, attempt: int = 1, exclude: frozenset[WorkerId] = frozenset()
    ):
        self._spec = spec
        self._max_attempts = max_attempts
        self._exclude = exclude
        self._choices = Choices(spec.choices, spec.output_ids, spec.params.max_tokens)
        self._phase = Phase.NEW
        self._kind = PlaceKind.PAIR
        self._target: DecodeTarget | None = None
        self._num_cached = 0
        self._committed = False
        self._failure = ("", "")
        self._started: tuple[WorkerId, ...] = ()
        self._held: list[tuple[WorkerId, Event]] = []
        self.attempt = attempt
        self.lease: LeaseId | None = None
        self.epoch = 0
        self.prefill: WorkerId | None = None
        self.decode: WorkerId | None = None

    # --- what it knows ---------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Done or Fail was returned."""
        return self._phase is Phase.DONE

    @property
    def reserving(self) -> bool:
        """Decode was asked to reserve and has not answered: the reserve timeout runs."""
        return self._phase is Phase.RESERVING

    @property
    def spec(self) -> RequestSpec:
        """The request as the next worker would be given it: accepted ids of a single choice are its `output_ids`."""
        if self._choices.many or not self._choices.only.ids:
            return self._spec
        return replace(self._spec, output_ids=tuple(self._choices.only.ids))

    @property
    def positions(self) -> tuple[wire.Position, ...]:
        """What a resuming link names: the current lease's choices that are not done. During a fence the old epoch."""
        if self.lease is None:
            return ()
        return tuple(
            wire.Position(self.lease, self.epoch, choice.number, len(choice.ids)) for choice in self._choices.unfinished
        )

    # --- the router's side -----------------------------------------------------------------------------------------

    def begin(self) -> list[Action]:
        """First call, once: asks for a placement."""
        return self._place_lease()

    def placed(
        self, lease: LeaseId, prefill: WorkerId, decode: DecodeTarget | None = None, deadline_s: float | None = None
    ) -> list[Action]:
        """Answers the latest Place. `lease`: freshly drawn for PAIR and ALONE, `self.lease` for PREFILL. `decode`: PAIR only;
        its address is its worker id. `deadline_s`: seconds left for the request, put into the specs sent from now on.

        Raises ValueError if no Place waits for an answer, or the workers do not fit its kind.
        """
        if self._phase is not Phase.PLACING:
            raise ValueError("no placement was asked for")
        if (self._kind is PlaceKind.PAIR) is (decode is None) or (self._kind is PlaceKind.PREFILL and lease != self.lease):
            raise ValueError(f"placement does not fit {self._kind}")
        if deadline_s is not None:
            self._spec = replace(self._spec, deadline_s=deadline_s)
        self.lease, self.prefill = lease, prefill
        if decode is None:
            return self._start_prefill(prefill)
        self._target, self.decode = decode, decode.address
        self._phase = Phase.RESERVING
        return [self._start(decode.address, wire.StartDecode(lease, self.epoch, self.spec))]

    def move(self) -> list[Action]:
        """Answers a Place of kind PREFILL otherwise: no prefill can reach this decode. The lease is given up for another pair.

        Raises ValueError if no such Place waits for an answer.
        """
        if self._phase is not Phase.PLACING or self._kind is not PlaceKind.PREFILL:
            raise ValueError("no prefill was asked for")
        return [*self._end_lease(), *self._place_lease()]

    def reserve_timeout(self) -> list[Action]:
        """Decode did not answer the reservation in time. Nothing happens unless `reserving`."""
        if self._phase is not Phase.RESERVING:
            return []
        return self._lease_failed("reserve_timeout", "decode did not answer a reservation in time", self.decode)

    def choice_done(self, choice: int, num_tokens: int) -> list[Action]:
        """The router's text ended `choice` with its output token `num_tokens - 1` (end token, stop string or length)."""
        ended = self._choices.get(choice)
        if ended is None or self._phase is Phase.DONE:
            return []
        ended.done = True
        del ended.ids[num_tokens:]
        return self._finish_if_done() or self._stop(choice)

    def cancel(self) -> list[Action]:
        """The client left, or the deadline passed: ends the lease everywhere, then Done."""
        return [] if self._phase is Phase.DONE else self._finish(Done())

    # --- the workers' side -----------------------------------------------------------------------------------------

    def lost(self, worker: WorkerId, lease: LeaseId | None = None) -> list[Action]:
        """The link to `worker` was declared dead: what it held for this request is gone, and it needs no End.

        `lease`: what was attached there, if known; the loss of an older one says nothing. Losses are to be given in the
        order in which they arrived, before any later placement.
        """
        if self._phase is Phase.DONE or (lease is not None and lease != self.lease):
            return []
        self._started = tuple(other for other in self._started if other != worker)
        if worker == self.decode:
            return self._lease_failed("decode_lost", f"lost decode worker {worker}", worker)
        if worker == self.prefill:
            return self._prefill_failed("prefill_lost", f"lost prefill worker {worker}")
        return []

    def event(self, source: WorkerId, event: Event) -> list[Action]:
        """An event that arrived from `source`. Those of other leases and epochs are dropped, or held during a fence."""
        if self._phase is Phase.DONE or event.lease != self.lease:
            return []
        if self._phase is Phase.FENCING:
            return self._while_fencing(source, event)
        if event.epoch != self.epoch:
            return []
        return self._current(source, event)

    # --- events of the current epoch -------------------------------------------------------------------------------

    def _current(self, source: WorkerId, event: Event) -> list[Action]:
        match event:
            case wire.Tokens():
                return self._tokens(source, event)
            case wire.Finished():
                return self._finished(event)
            case wire.Reserved():
                return self._reserved(event.num_cached) if self._phase is Phase.RESERVING else []
            case wire.Refused():
                return self._refused(source, event)
            case wire.HandedOff():
                return self._handed_off()
            case wire.Failed():
                return self._failed(source, event)
            case wire.Preempted():
                return self._preempted(event.choice)
            case wire.Fenced() | wire.Committed() | wire.Gone():
                return []  # an answer said again over a resumed link

    def _tokens(self, source: WorkerId, event: wire.Tokens) -> list[Action]:
        choice = self._choices.get(event.choice)
        if choice is None:
            return []
        if choice.differs(event.index, event.tokens):
            return self._differing(choice, source)
        self._committed |= source == self.decode
        accepted: list[Action] = [Accept(choice.number, *taken) for taken in choice.take(event.index, event.tokens)]
        return accepted + _due([choice])

    def _finished(self, event: wire.Finished) -> list[Action]:
        choice = self._choices.get(event.choice)
        if choice is None:
            return []
        choice.propose(event.num_tokens, event.reason)
        return _due([choice])

    def _reserved(self, num_cached: int) -> list[Action]:
        self._num_cached = num_cached
        return self._place(PlaceKind.PREFILL) if self.prefill is None else self._start_prefill(self.prefill)

    def _refused(self, source: WorkerId, event: wire.Refused) -> list[Action]:
        if self._phase is not Phase.RESERVING:
            return self._prefill_failed(event.reason, event.message)
        if event.reason not in REQUEUED_REFUSALS:
            return self._lease_failed(event.reason, event.message, source)
        return [*self._end_lease(), Requeue(event.reason, source), *self._place_lease()]

    def _handed_off(self) -> list[Action]:
        self._committed = True
        if self._kind is not PlaceKind.ALONE:
            return []
        if not self._choices.complete:
            return self._prefill_failed("no_token", "prefill ended without its token")
        return [Propose(choice.number, wire.FinishReason.LENGTH) for choice in self._choices.unfinished]

    def _failed(self, source: WorkerId, event: wire.Failed) -> list[Action]:
        if source == self.prefill != self.decode and self._handoff_stands:
            return []
        if not event.retryable:
            return self._finish(Fail(event.reason, event.message, retryable=False))
        if source == self.decode:
            return self._lease_failed(event.reason, event.message, source)
        return self._prefill_failed(event.reason, event.message)

    def _preempted(self, number: int) -> list[Action]:
        """Decode was short of blocks: nobody failed, so this is not an attempt."""
        choice = self._choices.get(number)
        if choice is None:
            return []
        if self._choices.many:
            return [self._split([choice]), *self._finish_if_done()]
        return [*self._end_lease(), *self._place_lease()]

    # --- an attempt failed -----------------------------------------------------------------------------------------

    def _prefill_failed(self, reason: str, message: str) -> list[Action]:
        """Prefill cannot go on with this epoch: decode, the arbiter, is asked whether it took the work already."""
        if self._phase is Phase.RESERVING:
            self.prefill = None  # lost before it was started: another is placed when decode has answered
        if self._phase is not Phase.RUNNING or self._handoff_stands:
            return []
        if self.decode is None or self.prefill == self.decode or self._choices.one_token_remains:
            return self._lease_failed(reason, message, self.prefill)
        return self._fence(self.decode, reason, message)

    def _fence(self, decode: WorkerId, reason: str, message: str) -> list[Action]:
        """The old prefill is ended here, whatever decode answers: a commit that was taken carries its first tokens."""
        self._phase = Phase.FENCING
        self._failure = (reason, message)
        self._blame(self.prefill)
        ends = self._end([self.prefill])
        self.prefill = None
        output_ids = self.spec.output_ids
        return [*ends, Send(decode, wire.Fence(self._leased, self.epoch + 1, output_ids))]

    def _while_fencing(self, source: WorkerId, event: Event) -> list[Action]:
        """Nothing is accepted until decode answers: what it says decides whether the old epoch's events count."""
        match event:
            case wire.Fenced() if event.epoch == self.epoch + 1:
                return self._fenced(event.num_cached)
            case wire.Gone() if event.epoch == self.epoch + 1:
                return self._lease_failed(*self._failure, self.decode)
            case wire.Committed() if event.epoch == self.epoch:
                return self._was_committed(source, event)
            case _ if event.epoch == self.epoch:
                self._held.append((source, event))
        return []

    def _fenced(self, num_cached: int) -> list[Action]:
        self._held.clear()
        if self._choices.apart or self.attempt >= self._max_attempts:
            return self._lease_failed(*self._failure, None)
        self.attempt += 1
        self.epoch += 1
        self._num_cached = num_cached
        self._choices.forget_unaccepted()
        return self._place(PlaceKind.PREFILL)

    def _was_committed(self, source: WorkerId, event: wire.Committed) -> list[Action]:
        self._phase = Phase.RUNNING
        self._committed = True
        unfinished = {choice.number: choice for choice in self._choices.unfinished}
        first = [(unfinished[one.choice], one) for one in event.first if one.choice in unfinished]
        for choice, one in first:
            if choice.differs(event.index, [one.token]):
                return self._differing(choice, source)
        accepted = [
            Accept(choice.number, index, token)
            for choice, one in first
            for index, token in choice.take(event.index, [one.token])
        ]
        for choice, one in first:
            if one.finish is not None:
                choice.propose(event.index + 1, one.finish)
        held, self._held = self._held, []
        return [*accepted, *_due(unfinished.values()), *(Replay(*one) for one in held)]

    def _differing(self, choice: Choice, source: WorkerId) -> list[Action]:
        return self._lease_failed("differing_token", f"two tokens at one index of choice {choice.number}", source)

    def _lease_failed(self, reason: str, message: str, culprit: WorkerId | None) -> list[Action]:
        """This lease is over. What was accepted stands and goes on under a new one, while attempts last."""
        self._blame(culprit)
        if self.attempt >= self._max_attempts:
            return self._finish(Fail(reason, f"{self.attempt} attempts failed, the last: {message or reason}", retryable=True))
        self.attempt += 1
        ends = self._end_lease()
        if self._choices.apart:
            return [*ends, self._split(self._choices.unfinished), *self._finish_if_done()]
        return [*ends, *self._place_lease()]

    # --- steps -----------------------------------------------------------------------------------------------------

    def _place_lease(self) -> list[Action]:
        self._choices.forget_unaccepted()
        return self._place(PlaceKind.ALONE if self._choices.one_token_remains else PlaceKind.PAIR)

    def _place(self, kind: PlaceKind) -> list[Action]:
        self._phase = Phase.PLACING
        self._kind = kind
        return [Place(kind, self._exclude, self._num_cached)]

    def _start_prefill(self, prefill: WorkerId) -> list[Action]:
        self._phase = Phase.RUNNING
        return [self._start(prefill, wire.StartPrefill(self._leased, self.epoch, self.spec, self._num_cached, self._target))]

    def _start(self, worker: WorkerId, command: wire.StartDecode | wire.StartPrefill) -> Send:
        if worker not in self._started:
            self._started = (*self._started, worker)
        return Send(worker, command)

    def _end(self, workers: Iterable[WorkerId | None]) -> list[Action]:
        """Ends the lease at those of `workers` that were started, and remembers that none is left to end there."""
        ending = [worker for worker in self._started if worker in tuple(workers)]
        self._started = tuple(worker for worker in self._started if worker not in ending)
        return [Send(worker, wire.End(self._leased)) for worker in ending]

    def _end_lease(self) -> list[Action]:
        ends = self._end(self._started)
        self.lease, self.epoch = None, 0
        self.prefill = self.decode = self._target = None
        self._num_cached = 0
        self._committed = False
        self._held.clear()
        return ends

    def _stop(self, choice: int) -> list[Action]:
        return [Send(self.decode, wire.Finish(self._leased, choice))] if self.decode in self._started and self.decode else []

    def _split(self, choices: Iterable[Choice]) -> Split:
        moved = list(choices)
        for choice in moved:
            choice.done = True
        specs = tuple(replace(self._spec, choices=(choice.number,), output_ids=tuple(choice.ids)) for choice in moved)
        return Split(specs, self.attempt, self._exclude)

    def _finish_if_done(self) -> list[Action]:
        return [] if self._choices.unfinished else self._finish(Done())

    def _finish(self, ending: Done | Fail) -> list[Action]:
        ends = self._end_lease()
        self._phase = Phase.DONE
        return [*ends, ending]

    @property
    def _leased(self) -> LeaseId:
        if self.lease is None:
            raise ValueError("no lease")
        return self.lease

    @property
    def _handoff_stands(self) -> bool:
        """Decode holds the KV and runs: prefill is not needed any more."""
        return self._committed and self._kind is not PlaceKind.ALONE and self.prefill != self.decode

    def _blame(self, worker: WorkerId | None) -> None:
        if worker is not None:
            self._exclude |= {worker}


def _due(choices: Iterable[Choice]) -> list[Action]:
    due = [(choice.number, choice.due_proposal()) for choice in choices]
    return [Propose(number, reason) for number, reason in due if reason is not None]
