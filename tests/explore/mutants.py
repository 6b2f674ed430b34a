"""Machines with one rule broken each. The search must find every one of them out, or it proves nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace

from baton.wire.types import Commit, End, Event, Fenced, FrameHeader, RequestSpec, Tokens
from kvtransfer.protocol.actions import Action, PlaceKind, Send, WorkerId
from kvtransfer.protocol.coordinator import Coordinator
from kvtransfer.protocol.receiver import Action as ReceiveAction
from kvtransfer.protocol.receiver import Free, ReceiveLease, Report, State
from kvtransfer.protocol.sender import Action as SendAction
from kvtransfer.protocol.sender import SendAttempt, Unpin
from tests.explore.world import Scenario


class AcceptsDuringFence(Coordinator):
    """Leaves the old prefill attached, and takes what it still says."""

    def _fence(self, decode: WorkerId, reason: str, message: str) -> list[Action]:
        return super()._fence(decode, reason, message)[-1:]

    def _while_fencing(self, source: WorkerId, event: Event) -> list[Action]:
        answers = super()._while_fencing(source, event)
        if self._held:
            self._held.clear()
            return self._current(source, event)
        return answers


class AcceptsAnyEpoch(Coordinator):
    def event(self, source: WorkerId, event: Event) -> list[Action]:
        if isinstance(event, Tokens):
            event = replace(event, epoch=self.epoch)
        return super().event(source, event)


class DropsDuringFence(Coordinator):
    """Forgets what it should hold: after `committed` those tokens never come again."""

    def _while_fencing(self, source: WorkerId, event: Event) -> list[Action]:
        actions = super()._while_fencing(source, event)
        self._held.clear()
        return actions


class NeverFences(Coordinator):
    """Starts another prefill in the same epoch without asking decode."""

    def _fence(self, decode: WorkerId, reason: str, message: str) -> list[Action]:
        if self.attempt >= self._max_attempts:
            return self._lease_failed(reason, message, self.prefill)
        self.attempt += 1
        ends = self._end([self.prefill])
        self._blame(self.prefill)
        return [*ends, *self._place(PlaceKind.PREFILL)]


class ForgetsAccepted(Coordinator):
    """Recovers from the prompt alone."""

    @property
    def spec(self) -> RequestSpec:
        return self._spec


class ForgetsAnEnd(Coordinator):
    """Ends prefill and not decode."""

    def _end_lease(self) -> list[Action]:
        decode = self.decode
        ends = super()._end_lease()
        return [action for action in ends if not (isinstance(action, Send) and action.worker == decode)]


class EndsTooLittle(Coordinator):
    """Ends nothing when the client leaves."""

    def cancel(self) -> list[Action]:
        return [action for action in super().cancel() if not (isinstance(action, Send) and isinstance(action.command, End))]


class IgnoresEpochs(ReceiveLease):
    def _foreign(self, epoch: int) -> str | None:
        return "ended" if self.state is State.ENDED else None


class TrustsEveryFrame(ReceiveLease):
    def frame(self, header: FrameHeader, digest_ok: bool = True) -> list[ReceiveAction]:
        return super().frame(header)


class ChecksNoCover(ReceiveLease):
    """Takes any commit of the current epoch, and frames in any order."""

    def _foreign(self, epoch: int) -> str | None:
        foreign = super()._foreign(epoch)
        return None if foreign == "refused" else foreign

    def _wrong_commit(self, commit: Commit) -> str | None:
        return None

    def _settle(self) -> list[ReceiveAction]:
        if self.state is State.REFUSED:
            self.state = State.RECEIVING
        return super()._settle()


class FencesAtOnce(ReceiveLease):
    """Does not wait for the old epoch's writes."""

    def fence(self, epoch: int, total_len: int, index: int) -> list[ReceiveAction]:
        actions = super().fence(epoch, total_len, index)
        if not self._fencing:
            return actions
        self._fencing = False
        return [Report(Fenced(self.lease, self.epoch, self.expected.num_cached))]


class FreesAtOnce(ReceiveLease):
    """Does not wait for writes in flight."""

    def end(self) -> list[ReceiveAction]:
        actions = super().end()
        if self.freed:
            return actions
        self.freed = True
        return [Free()]


class FencesWhatItCommitted(ReceiveLease):
    def _report_committed(self) -> list[ReceiveAction]:
        old = self.expected
        self._expect(replace(old, epoch=old.epoch + 1))
        return [Report(Fenced(self.lease, self.epoch, old.num_cached))]


class ForgetsUnpin(SendAttempt):
    def end(self) -> list[SendAction]:
        self.state = self.state.OVER
        return []


class StaysSilent(SendAttempt):
    """Does not tell the router that its channel broke."""

    def lost(self, reason: str, message: str = "") -> list[SendAction]:
        return [action for action in super().lost(reason, message) if isinstance(action, Unpin)]


@dataclass(frozen=True)
class Mutant:
    """A broken machine and the least scenario in which it does harm."""

    machine: type[Coordinator | ReceiveLease | SendAttempt]
    faults: tuple[str, ...]
    num_faults: int = 1
    slow_writes: bool = False
    num_workers: int = 2

    @property
    def scenario(self) -> Scenario:
        scenario = Scenario(
            self.machine.__name__,
            faults=self.faults,
            num_faults=self.num_faults,
            slow_writes=self.slow_writes,
            num_workers=self.num_workers,
            chunk=3,
        )
        if issubclass(self.machine, Coordinator):
            return replace(scenario, coordinator=self.machine)
        if issubclass(self.machine, ReceiveLease):
            return replace(scenario, receiver=self.machine)
        return replace(scenario, sender=self.machine)


MUTANTS = (
    Mutant(AcceptsDuringFence, ("corrupt",)),
    Mutant(AcceptsAnyEpoch, ("corrupt",), num_workers=1),
    Mutant(ForgetsAccepted, ("kill",)),
    Mutant(DropsDuringFence, ("break_kv",)),
    Mutant(NeverFences, ("break_kv",)),
    Mutant(ForgetsAnEnd, ()),
    Mutant(EndsTooLittle, ("cancel",)),
    Mutant(IgnoresEpochs, ("break_kv",)),
    Mutant(TrustsEveryFrame, ("corrupt",)),
    Mutant(ChecksNoCover, ("corrupt",)),
    Mutant(FencesAtOnce, ("break_kv",), slow_writes=True),
    Mutant(FreesAtOnce, ("cancel",), slow_writes=True),
    Mutant(FencesWhatItCommitted, ("break_kv",)),
    Mutant(ForgetsUnpin, ("cancel",)),
    Mutant(StaysSilent, ("cut_kv",)),
)
