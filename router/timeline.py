"""Where a request's time went: phases on the router's clock, divided by what the workers measured themselves.

    queue | reserve | prefill | handoff | decode        the sum of all phases is the time since arrival, at any moment
                    ^first token  ^second token
    recovery        from a failure to the next accepted token; a refused reservation goes back to queue

A worker's durations only divide a phase of the router's clock; they never add to it, so that the parts always sum up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum

from baton.wire.types import Spans
from router.request import TimelineView

Clock = Callable[[], float]


class Phase(StrEnum):
    """What a request waits for."""

    QUEUE = "queue"
    RESERVE = "reserve"
    PREFILL = "prefill"
    HANDOFF = "handoff"
    DECODE = "decode"
    RECOVERY = "recovery"


class Timeline:
    """One request's. Times are of `clock`; marks are set once and stay."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._phase = Phase.QUEUE
        self._since = self._start = clock()
        self._spent = dict.fromkeys(Phase, 0.0)
        self._prefill = Spans()
        self._handoff = Spans()
        self.first_token_s: float | None = None
        self.second_token_s: float | None = None
        self.recoveries: list[str] = []

    def enter(self, phase: Phase) -> None:
        """`phase` begins now. A recovery lasts until a token is accepted, whatever is tried meanwhile."""
        if self._phase is not Phase.RECOVERY:
            self._move(phase)

    def recover(self, kind: str) -> None:
        """An attempt failed; `kind` says how it goes on."""
        self.recoveries.append(kind)
        self._move(Phase.RECOVERY)

    def token(self, index: int) -> None:
        """Output token `index` of some choice was accepted."""
        if self._phase is Phase.DECODE:
            return  # nothing changes with it any more
        now = self._clock() - self._start
        if self.first_token_s is None:
            self.first_token_s = now
            self._move(Phase.HANDOFF)
        elif index > 0 and self.second_token_s is None:
            self.second_token_s = now
        if self.second_token_s is not None:
            self._move(Phase.DECODE)
        elif self._phase is Phase.RECOVERY:
            self._move(Phase.HANDOFF)

    def prefilled(self, spans: Spans) -> None:
        """What prefill measured until it sampled the first tokens."""
        self._prefill = spans

    def handed_off(self, spans: Spans) -> None:
        """What prefill measured of the transfer."""
        self._handoff = spans

    def finish(self) -> None:
        """The request ended: nothing is counted any more."""
        self._move(self._phase)
        self._clock = lambda: self._since

    @property
    def total_s(self) -> float:
        return self._clock() - self._start

    @property
    def queue_s(self) -> float:
        return self._spent[Phase.QUEUE]

    def parts(self) -> Iterator[tuple[str, float]]:
        """Named durations in order; they sum up to the time between arrival and the end."""
        spent = self._spent | {self._phase: self._spent[self._phase] + self._clock() - self._since}
        yield "queue", spent[Phase.QUEUE]
        yield "reserve", spent[Phase.RESERVE]
        yield from _divide(
            spent[Phase.PREFILL],
            ("prefill_queue", self._prefill.queue_s),
            ("prefill_compute", self._prefill.compute_s),
            rest="prefill_link",
        )
        exposed = max(0.0, self._handoff.transfer_s - self._handoff.hidden_s)
        yield from _divide(spent[Phase.HANDOFF], ("transfer", exposed), rest="first_decode_step")
        yield "decode", spent[Phase.DECODE]
        yield "recovery", spent[Phase.RECOVERY]

    @property
    def transfer(self) -> Spans:
        """The last handoff's bytes, transport and durations."""
        return self._handoff

    @property
    def num_cached(self) -> int:
        """Prompt positions that prefill did not compute."""
        return self._prefill.num_cached

    def view(self) -> TimelineView:
        """As a client sees it."""
        return TimelineView(
            spans=tuple(self.parts()),
            ttft_s=self.first_token_s or 0.0,
            second_token_s=self.second_token_s or 0.0,
            total_s=self.total_s,
            transfer_bytes=self._handoff.transfer_bytes,
            transport=self._handoff.transport,
            recoveries=len(self.recoveries),
        )

    def _move(self, phase: Phase) -> None:
        now = self._clock()
        self._spent[self._phase] += now - self._since
        self._phase, self._since = phase, now


def _divide(whole: float, *claims: tuple[str, float], rest: str) -> Iterator[tuple[str, float]]:
    """Splits `whole` by what workers claim of it, none beyond what is left."""
    for name, claimed in claims:
        part = min(max(0.0, claimed), whole)
        whole -= part
        yield name, part
    yield rest, whole
