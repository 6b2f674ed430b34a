"""Decode's part of a handoff: what may be written to a lease's blocks, and when they may be read. Pure.

RECEIVING --verified commit--> COMMITTED (the blocks are live)
  ^   | bad frame or commit
  |   v
  +- REFUSED       fence: back to RECEIVING at a higher epoch          end, from anywhere: ENDED
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from baton.wire.types import Commit, Committed, Fenced, FrameHeader, Gone, KvAnswer, LeaseId, Refused
from kvtransfer.protocol.cover import Cover

Combine = Callable[[Sequence[int]], int]
"""The commit's digest over the frames' digests in sequence order."""


@dataclass(frozen=True, slots=True)
class Write:
    """Put the frame's payload into the lease's blocks, then call `written`, whatever came of it."""

    header: FrameHeader


@dataclass(frozen=True, slots=True)
class Answer:
    """To the sender. Not ok: a refusal, to be counted by its reason."""

    answer: KvAnswer


@dataclass(frozen=True, slots=True)
class Report:
    """To the router."""

    event: Refused | Fenced | Committed | Gone


@dataclass(frozen=True, slots=True)
class Live:
    """The cover was verified: the blocks may be read and published from now on. Comes once, before the ok."""

    commit: Commit


@dataclass(frozen=True, slots=True)
class Free:
    """No write can reach the blocks any more and nobody will read them: give them back. Comes once."""


Action = Write | Answer | Report | Live | Free


@dataclass(frozen=True, slots=True)
class Expected:
    """What an attempt must bring: KV of [num_cached, total_len), first tokens at output `index` for each of `choices`."""

    epoch: int
    num_cached: int
    total_len: int
    index: int
    choices: tuple[int, ...] = (0,)


class State(Enum):
    RECEIVING = "receiving"
    REFUSED = "refused"
    COMMITTED = "committed"
    ENDED = "ended"


class ReceiveLease:
    """One lease at decode, from its reservation to its end. It alone decides what makes bytes live.

    Writes may take their time; while one is in flight the blocks are neither read, nor given to another attempt, nor freed: a
    commit and a fence are answered, and `Free` comes, when the last has returned.
    """

    def __init__(self, lease: LeaseId, expected: Expected, num_layers: int, combine: Combine):
        self.lease = lease
        self.state = State.RECEIVING
        self.freed = False
        self._num_layers = num_layers
        self._combine = combine
        self._writing: set[tuple[int, int]] = set()  # (epoch, sequence)
        self._commit: Commit | None = None  # pending, then taken
        self._fencing = False
        self._expect(expected)

    @property
    def epoch(self) -> int:
        return self.expected.epoch

    @property
    def writing(self) -> bool:
        """A write is in flight."""
        return bool(self._writing)

    # --- from the sender -------------------------------------------------------------------------------------------

    def frame(self, header: FrameHeader, digest_ok: bool = True) -> list[Action]:
        """A frame arrived. `digest_ok`: its digest fits, if it can be known before the bytes are in place (else `written`
        says). Either one Write, or a refusal: of this frame alone if its epoch is not current, else of the attempt."""
        foreign = self._foreign(header.epoch)
        if foreign is not None:
            return [self._no(header.epoch, foreign)]
        wrong = self._wrong_frame(header, digest_ok)
        if wrong is not None:
            return self._refuse(wrong)
        self._digests.append(header.digest)
        self._writing.add((header.epoch, header.sequence))
        return [Write(header)]

    def written(self, epoch: int, sequence: int, digest_ok: bool = True) -> list[Action]:
        """A Write returned. Not `digest_ok`: what was written is not what was sent, or could not be written."""
        self._writing.discard((epoch, sequence))
        refused = self._refuse("digest") if not digest_ok and epoch == self.epoch and self.state is State.RECEIVING else []
        return [*refused, *self._settle()]

    def commit(self, commit: Commit) -> list[Action]:
        """The sender holds that everything was sent. Said again after it was taken, it is answered ok again."""
        if self.state is State.COMMITTED and commit == self._commit:
            return [self._yes(commit.epoch)]
        foreign = self._foreign(commit.epoch)
        if foreign is not None:
            return [self._no(commit.epoch, foreign)]
        if self._commit is not None:
            return self._refuse("second_commit")
        self._commit = commit
        return self._settle()

    # --- from the router -------------------------------------------------------------------------------------------

    def fence(self, epoch: int, total_len: int, index: int) -> list[Action]:
        """Moves to `epoch` unless a commit was taken. Only the pinned cached prefix of what was received counts then.

        Said again it is answered again; one below the current epoch is left over from before and says nothing.
        """
        if self.state is State.ENDED:
            return [Report(Gone(self.lease, epoch))]
        if self.state is State.COMMITTED:
            return self._report_committed()
        if epoch < self.epoch:
            return []
        if epoch > self.epoch:
            old = self.expected
            self._expect(Expected(epoch, old.num_cached, total_len, index, old.choices))
            self._fencing = True
        elif not self._fencing:
            return [Report(Fenced(self.lease, epoch, self.expected.num_cached))]
        return self._settle()

    def finished(self) -> list[Action]:
        """Every choice ended here: the blocks go, the record of the handoff stays until `end`."""
        return self._free() if self.state is State.COMMITTED else []

    def end(self) -> list[Action]:
        """The router's end, the end of its grace, or the request broke here. Idempotent."""
        self.state = State.ENDED
        self._fencing = False
        return self._settle()

    # --- inside ----------------------------------------------------------------------------------------------------

    def _expect(self, expected: Expected) -> None:
        self.expected = expected
        self.state = State.RECEIVING
        self._cover = Cover(expected.num_cached, expected.total_len, self._num_layers)
        self._digests: list[int] = []
        self._commit = None

    def _foreign(self, epoch: int) -> str | None:
        """Why something of `epoch` is not for the current attempt; it does the current attempt no harm."""
        if self.state is State.ENDED:
            return "ended"
        if epoch < self.epoch:
            return "stale_epoch"
        if epoch > self.epoch or self._fencing:
            return "future_epoch"  # only a fence raises an epoch
        if self.state is State.COMMITTED:
            return "committed"
        return "refused" if self.state is State.REFUSED else None

    def _wrong_frame(self, header: FrameHeader, digest_ok: bool) -> str | None:
        tokens, layers = (header.token_start, header.token_end), (header.layer_start, header.layer_end)
        if not digest_ok:
            return "digest"
        if self._commit is not None:
            return "frame_after_commit"
        if header.sequence != len(self._digests):
            return "sequence"
        if not self._cover.contains(tokens, layers):
            return "range"
        return None if self._cover.add(tokens, layers) else "overlap"

    def _wrong_commit(self, commit: Commit) -> str | None:
        expected = self.expected
        if (commit.cover_start, commit.cover_end, commit.num_layers) != (
            expected.num_cached,
            expected.total_len,
            self._num_layers,
        ):
            return "range"
        if commit.index != expected.index or sorted(one.choice for one in commit.first) != sorted(expected.choices):
            return "index"
        if not self._cover.complete or commit.num_frames != len(self._digests):
            return "cover"
        return None if commit.digest == self._combine(self._digests) else "digest"

    def _settle(self) -> list[Action]:
        """What had to wait for the writes in flight."""
        if self._writing:
            return []
        if self.state is State.ENDED:
            return self._free()
        if self._fencing:
            self._fencing = False
            return [Report(Fenced(self.lease, self.epoch, self.expected.num_cached))]
        if self.state is State.RECEIVING and self._commit is not None:
            return self._decide(self._commit)
        return []

    def _decide(self, commit: Commit) -> list[Action]:
        wrong = self._wrong_commit(commit)
        if wrong is not None:
            return self._refuse(wrong)
        self.state = State.COMMITTED
        return [Live(commit), self._yes(commit.epoch)]

    def _refuse(self, reason: str) -> list[Action]:
        """Gives the attempt up: the router hears of it and fences."""
        self.state = State.REFUSED
        return [self._no(self.epoch, reason), Report(Refused(self.lease, self.epoch, reason))]

    def _free(self) -> list[Action]:
        if self.freed:
            return []
        self.freed = True
        return [Free()]

    def _report_committed(self) -> list[Action]:
        commit = self._commit
        return [] if commit is None else [Report(Committed(self.lease, commit.epoch, commit.index, commit.first))]

    def _yes(self, epoch: int) -> Answer:
        return Answer(KvAnswer(self.lease, epoch, ok=True))

    def _no(self, epoch: int, reason: str) -> Answer:
        return Answer(KvAnswer(self.lease, epoch, ok=False, reason=reason))
