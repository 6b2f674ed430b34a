"""Prefill's part of a handoff: one attempt's frames, its commit, and the pin on the blocks they are read from. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from baton.wire.types import Commit, Failed, FirstToken, FrameHeader, HandedOff, KvAnswer, LeaseId

Combine = Callable[[Sequence[int]], int]
"""The commit's digest over the frames' digests in sequence order."""


@dataclass(frozen=True, slots=True)
class Ship:
    """KV of tokens [token_start, token_end) is ready: cut it into frames, each numbered by `frame` and closed by `sent`."""

    token_start: int
    token_end: int


@dataclass(frozen=True, slots=True)
class SendCommit:
    """Everything was sent: send this on the same channel, behind the frames."""

    commit: Commit


@dataclass(frozen=True, slots=True)
class Report:
    """To the router; comes at most once an attempt."""

    event: HandedOff | Failed


@dataclass(frozen=True, slots=True)
class Unpin:
    """Nothing will be read from the blocks any more: the pin goes back to the engine. Comes once."""


Action = Ship | SendCommit | Report | Unpin


class State(Enum):
    SHIPPING = "shipping"
    COMMITTING = "committing"
    OVER = "over"


class SendAttempt:
    """Ships [cover_start, cover_end) of `num_layers` layers for one (lease, epoch). The caller pins the blocks before.

    A frame is being read from `frame` to `sent`; `Unpin` comes when the attempt is over and no frame is being read.
    """

    def __init__(self, lease: LeaseId, epoch: int, cover_start: int, cover_end: int, num_layers: int, combine: Combine):
        self.lease, self.epoch = lease, epoch
        self.state = State.SHIPPING
        self.unpinned = False
        self._cover_start, self._cover_end, self._num_layers = cover_start, cover_end, num_layers
        self._combine = combine
        self._offered = cover_start  # tokens below it were given out by Ship
        self._missing = (cover_end - cover_start) * num_layers  # cells not sent yet
        self._digests: list[int | None] = []  # by sequence; None while the frame is being read
        self._first: tuple[int, tuple[FirstToken, ...]] | None = None

    @property
    def over(self) -> bool:
        return self.state is State.OVER

    @property
    def reading(self) -> bool:
        """A frame is being read from the blocks."""
        return None in self._digests

    # --- from the engine -------------------------------------------------------------------------------------------

    def computed(self, num_tokens: int) -> list[Action]:
        """KV of [0, num_tokens) is in the blocks."""
        start, end = self._offered, min(num_tokens, self._cover_end)
        if self.state is not State.SHIPPING or end <= start:
            return []
        self._offered = end
        return [Ship(start, end)]

    def sampled(self, index: int, first: tuple[FirstToken, ...]) -> list[Action]:
        """Every choice's token at output `index`. If each already ends its choice there is nothing to hand off."""
        if self.state is not State.SHIPPING:
            return []
        if all(one.finish is not None for one in first):
            return self._over(HandedOff(self.lease, self.epoch))
        self._first = (index, first)
        return self._commit_if_sent()

    # --- from the channel ------------------------------------------------------------------------------------------

    def frame(self, token_start: int, token_end: int, layer_start: int, layer_end: int) -> FrameHeader | None:
        """Numbers the next frame, whose bytes are read from now on; None if the attempt is over: read nothing."""
        if self.state is not State.SHIPPING:
            return None
        sequence = len(self._digests)
        self._digests.append(None)
        return FrameHeader(self.lease, self.epoch, sequence, token_start, token_end, layer_start, layer_end)

    def sent(self, header: FrameHeader) -> list[Action]:
        """The frame's bytes left the blocks (`header` with its digest): they will not be read again."""
        self._digests[header.sequence] = header.digest
        self._missing -= (header.token_end - header.token_start) * (header.layer_end - header.layer_start)
        return self._unpin_if_quiet() if self.over else self._commit_if_sent()

    def answer(self, answer: KvAnswer) -> list[Action]:
        """Decode took the commit, or refused the attempt."""
        if self.over or (answer.lease, answer.epoch) != (self.lease, self.epoch):
            return []
        if not answer.ok:
            return self._over(Failed(self.lease, self.epoch, answer.reason))
        return self._over(HandedOff(self.lease, self.epoch)) if self.state is State.COMMITTING else []

    def lost(self, reason: str, message: str = "") -> list[Action]:
        """The channel broke (`channel_lost`) or stood still too long (`stalled`). Decode knows whether it took the commit."""
        return [] if self.over else self._over(Failed(self.lease, self.epoch, reason, message))

    # --- from the router, or the engine's failure ------------------------------------------------------------------

    def broken(self, reason: str, message: str = "", *, retryable: bool = True) -> list[Action]:
        """The engine could not compute it."""
        return [] if self.over else self._over(Failed(self.lease, self.epoch, reason, message, retryable))

    def end(self) -> list[Action]:
        """The router's end, the end of its grace, or a higher epoch: nothing is reported. Idempotent."""
        self.state = State.OVER
        return self._unpin_if_quiet()

    # --- inside ----------------------------------------------------------------------------------------------------

    def _commit_if_sent(self) -> list[Action]:
        if self._first is None or self._missing or self.reading:
            return []
        self.state = State.COMMITTING
        index, first = self._first
        digests = [digest for digest in self._digests if digest is not None]
        return [
            SendCommit(
                Commit(
                    lease=self.lease,
                    epoch=self.epoch,
                    index=index,
                    first=first,
                    cover_start=self._cover_start,
                    cover_end=self._cover_end,
                    num_layers=self._num_layers,
                    num_frames=len(digests),
                    digest=self._combine(digests),
                )
            )
        ]

    def _over(self, event: HandedOff | Failed) -> list[Action]:
        self.state = State.OVER
        return [Report(event), *self._unpin_if_quiet()]

    def _unpin_if_quiet(self) -> list[Action]:
        if self.unpinned or self.reading:
            return []
        self.unpinned = True
        return [Unpin()]
