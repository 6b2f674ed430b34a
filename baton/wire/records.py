"""What a worker remembers of a lease: its answers and its output, with a cursor for the link. Never a queue.

    entries   Reserved | tokens of choice 0 | tokens of choice 1 | Finished(0) | ...
    unsent    ------------------------------^ what the link has not taken yet; a slow link finds longer runs, not more of them

The record outlives the work: it stays until the router ends the lease, so that a resumed link finds everything again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from baton.wire.types import Event, Finished, LeaseId, Preempted, Spans, Token, Tokens

EVENT_BYTES = 64
TOKEN_BYTES = 16
ALTERNATIVE_BYTES = 16
"""Upper estimates of encoded sizes: what keeps a message under its limit without encoding it twice."""


class Side(StrEnum):
    """The half of a worker that a record belongs to: a worker with both roles may hold one lease twice."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(slots=True)
class _Run:
    """Consecutive tokens of one choice, of which `sent` were taken."""

    choice: int
    index: int
    tokens: list[Token]
    spans: Spans | None
    sent: int = 0


@dataclass(slots=True)
class _Answer:
    event: Event
    size: int


_Entry = _Run | _Answer


@dataclass(slots=True, eq=False)
class LeaseRecord:
    """One lease on one side of a worker. `touched` is called whenever there is something to send.

    Written by the role's service, read by the link. `epoch` is the attempt that the service works on, -1 before the first.
    """

    lease: LeaseId
    side: Side
    touched: Callable[[LeaseRecord], None]
    epoch: int = -1
    _entries: list[_Entry] = field(default_factory=list)
    _unsent: list[_Entry] = field(default_factory=list)
    _open: dict[int, _Run] = field(default_factory=dict)

    def restart(self, epoch: int) -> None:
        """A higher epoch: nothing of the lower is told any more."""
        self.epoch = epoch
        self._entries.clear()
        self._unsent.clear()
        self._open.clear()

    def answer(self, event: Event) -> None:
        """Tells `event` after everything that was told before, and again at every resumption."""
        if isinstance(event, Finished | Preempted):
            self._open.pop(event.choice, None)
        else:
            self._open.clear()
        size = EVENT_BYTES + 4 * len(getattr(event, "message", "")) + TOKEN_BYTES * len(getattr(event, "first", ()))
        self._append(_Answer(event, size))

    def output(self, choice: int, index: int, token: Token, spans: Spans | None = None) -> None:
        """Tells the token at output `index` of a choice, with this worker's part of the timeline if there is news of it."""
        run = self._open.get(choice)
        if run is None or spans is not None or index != run.index + len(run.tokens):
            run = self._open[choice] = _Run(choice, index, [token], spans)
            self._append(run)
            return
        if run.sent == len(run.tokens):
            self._unsent.append(run)
        run.tokens.append(token)
        self.touched(self)

    def take(self, budget: int) -> tuple[list[Event], int]:
        """The next unsent events, in order, of about `budget` bytes (at least one token or answer), and their size."""
        events: list[Event] = []
        size = 0
        while self._unsent and (size < budget or not events):
            entry = self._unsent[0]
            event, cost = (entry.event, entry.size) if isinstance(entry, _Answer) else self._take_run(entry, budget - size)
            events.append(event)
            size += cost
            if isinstance(entry, _Answer) or entry.sent == len(entry.tokens):
                self._unsent.pop(0)
        return events, size

    @property
    def choices(self) -> frozenset[int]:
        """The choices that have output."""
        return frozenset(entry.choice for entry in self._entries if isinstance(entry, _Run))

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def resume(self, next_index: Mapping[int, int]) -> None:
        """Rewinds to what the router lacks: `next_index` by live choice, the others are over. Answers are told again."""
        self._unsent.clear()
        for entry in self._entries:
            if isinstance(entry, _Run):
                wanted = next_index.get(entry.choice)
                entry.sent = len(entry.tokens) if wanted is None else min(max(wanted - entry.index, 0), len(entry.tokens))
                if entry.sent == len(entry.tokens):
                    continue
            self._unsent.append(entry)
        if self._unsent:
            self.touched(self)

    def _append(self, entry: _Entry) -> None:
        self._entries.append(entry)
        self._unsent.append(entry)
        self.touched(self)

    def _take_run(self, run: _Run, budget: int) -> tuple[Tokens, int]:
        start, size = run.sent, EVENT_BYTES
        while run.sent < len(run.tokens) and (size < budget or run.sent == start):
            size += _token_bytes(run.tokens[run.sent])
            run.sent += 1
        spans = run.spans if start == 0 else None
        tokens: Sequence[Token] = run.tokens[start : run.sent]
        return Tokens(self.lease, self.epoch, run.choice, run.index + start, tuple(tokens), spans), size


def _token_bytes(token: Token) -> int:
    return TOKEN_BYTES + ALTERNATIVE_BYTES * len(token.top)
