"""The times of one request. An open loop's count from when the request was due: a server that stalls delays later ones too.

TTFT   until the first message with output (a chat's opening role is none)
E2E    until the end of the answer
TPOT   from the first message to the last, by the tokens that came after the first message: several tokens in the first
       message count as output, not as gaps of zero
ITL    the gap between messages, shared evenly by the tokens of the later one: one value for each of its tokens
wait   the gap between messages as it is
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from baton.loadtest.record import Outcome


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. TPOT is None where only one message came. `itls` are (value, number of tokens that have it)."""

    ttft_s: float
    e2e_s: float
    tpot_s: float | None
    itls: tuple[tuple[float, int], ...]
    waits_s: tuple[float, ...]

    @property
    def slow_itl_s(self) -> float:
        """Mean of the slowest tenth of the waits, at least one; 0 without any."""
        slowest = sorted(self.waits_s, reverse=True)[: math.ceil(len(self.waits_s) / 10)]
        return sum(slowest) / len(slowest) if slowest else 0.0

    def of(self, name: str) -> float:
        """The value that an SLO of that name is held by."""
        return {"ttft": self.ttft_s, "itl": self.slow_itl_s, "tpot": self.tpot_s or 0.0, "e2e": self.e2e_s}[name]


def timing_of(outcome: Outcome) -> Timing:
    """`outcome` succeeded, so it has at least one message."""
    messages = outcome.messages
    gaps = [(later.at_s - earlier.at_s, later.num_tokens) for earlier, later in pairwise(messages)]
    tokens_after = sum(num for _, num in gaps)
    return Timing(
        ttft_s=messages[0].at_s - outcome.intended_s,
        e2e_s=outcome.ended_s - outcome.intended_s,
        tpot_s=(messages[-1].at_s - messages[0].at_s) / tokens_after if tokens_after else None,
        itls=tuple((gap_s / num, num) for gap_s, num in gaps if num),
        waits_s=tuple(gap_s for gap_s, _ in gaps),
    )
