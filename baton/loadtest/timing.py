"""The times of one request. An open loop's count from when the request was due: a server that stalls delays later ones too.

TTFT   until the first message with output (a chat's opening role is none)
E2E    until the end of the answer
TPOT   from the first message to the last, by the tokens that came after the first message: several tokens in the first
       message count as output, not as gaps of zero
ITL    the gap between messages, shared evenly by the tokens of the later one: one value for each of its tokens
pause  the gap between messages as it is: a stall stays whole, however many tokens come after it
"""

from __future__ import annotations

import math
from collections.abc import Iterable
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
    pauses_s: tuple[float, ...]

    def of(self, name: str) -> float:
        """The value that an SLO of that name is held by; 0 where there is none."""
        match name:
            case "itl":
                return slowest_tenth(self.itls)
            case "pause":
                return slowest_tenth((pause_s, 1) for pause_s in self.pauses_s)
            case "tpot":
                return self.tpot_s or 0.0
            case "ttft":
                return self.ttft_s
            case _:
                return self.e2e_s


def slowest_tenth(values: Iterable[tuple[float, int]]) -> float:
    """Mean of the largest tenth of weighted values, at least one; 0 without any."""
    by_size = sorted(values, reverse=True)
    wanted = left = math.ceil(sum(weight for _, weight in by_size) / 10)
    total = 0.0
    for value, weight in by_size:
        total += value * min(weight, left)
        left -= min(weight, left)
    return total / wanted if wanted else 0.0


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
        pauses_s=tuple(gap_s for gap_s, _ in gaps),
    )
