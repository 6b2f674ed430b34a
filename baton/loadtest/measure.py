"""Figures of a run out of its outcomes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from baton.loadtest.record import Outcome
from baton.loadtest.slo import Slo
from baton.loadtest.timing import Timing, timing_of

SCALES = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0)
"""Factors on all SLOs at once, for the curve of attainment."""


@dataclass(frozen=True)
class Distribution:
    """Values that each stand for a number of tokens or requests; seconds."""

    weighted: tuple[tuple[float, int], ...]

    @classmethod
    def of(cls, values: Iterable[tuple[float, int]]) -> Distribution:
        return cls(tuple(sorted(values)))

    @cached_property
    def _upto(self) -> list[int]:
        return list(accumulate(weight for _, weight in self.weighted))

    @property
    def num(self) -> int:
        return self._upto[-1] if self._upto else 0

    @property
    def mean(self) -> float:
        return sum(value * weight for value, weight in self.weighted) / self.num

    @property
    def max(self) -> float:
        return self.weighted[-1][0]

    def percentile(self, percent: float) -> float:
        """Linear between the nearest values, as numpy's default has it."""
        place = (self.num - 1) * percent / 100
        low = int(place)
        return self._at(low) + (self._at(min(low + 1, self.num - 1)) - self._at(low)) * (place - low)

    def share_upto(self, value: float) -> float:
        """The part of all, 0 to 1, that is at most `value`."""
        place = bisect_right(self.weighted, value, key=lambda pair: pair[0])
        return self._upto[place - 1] / self.num if place else 0.0

    def _at(self, index: int) -> float:
        return self.weighted[bisect_left(self._upto, index + 1)][0]


@dataclass(frozen=True)
class Summary:
    """What a run showed. Rates are per second of `span_s`, from the first request's due time to the last one's end.

    Distributions and tokens are of successful requests alone; `errors` are counts by kind. Goodput counts requests that
    succeeded within every SLO, `missed` those over each. `late` is how long after its due time each request was sent.
    """

    num: int
    num_ok: int
    num_good: int
    span_s: float
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    latencies: dict[str, Distribution]
    late: Distribution
    errors: dict[str, int]
    missed: dict[str, int]
    counted_by: dict[str, int]
    attainment: tuple[tuple[float, float], ...]

    @property
    def success(self) -> float:
        return self.num_ok / self.num if self.num else 0.0

    @property
    def attained(self) -> float:
        """The part of all requests that succeeded within every SLO."""
        return self.num_good / self.num if self.num else 0.0

    def per_s(self, count: int) -> float:
        return count / self.span_s if self.span_s else 0.0


LATENCIES = ("ttft", "itl", "pause", "tpot", "e2e")


def summarise(outcomes: Sequence[Outcome], slo: Slo) -> Summary:
    """The figures of one run."""
    ok = [outcome for outcome in outcomes if not outcome.error]
    timings = [timing_of(outcome) for outcome in ok]
    failed = [slo.failed(timing) for timing in timings]
    return Summary(
        num=len(outcomes),
        num_ok=len(ok),
        num_good=failed.count(()),
        span_s=_span(outcomes),
        input_tokens=sum(outcome.input_len if outcome.prompt_tokens is None else outcome.prompt_tokens for outcome in ok),
        output_tokens=sum(outcome.output_tokens for outcome in ok),
        cached_tokens=sum(outcome.cached_tokens or 0 for outcome in ok),
        latencies=latencies(timings),
        late=Distribution.of((outcome.sent_s - outcome.intended_s, 1) for outcome in outcomes),
        errors=dict(Counter(outcome.error for outcome in outcomes if outcome.error).most_common()),
        missed={name: sum(name in names for names in failed) for name, _ in slo.limits},
        counted_by=dict(Counter(outcome.counted_by for outcome in ok)),
        attainment=tuple((scale, _attained(timings, len(outcomes), slo, scale)) for scale in SCALES),
    )


def latencies(timings: Sequence[Timing]) -> dict[str, Distribution]:
    """By name, those that have a value."""
    all_of = {
        "ttft": Distribution.of((timing.ttft_s, 1) for timing in timings),
        "itl": Distribution.of(pair for timing in timings for pair in timing.itls),
        "pause": Distribution.of((pause_s, 1) for timing in timings for pause_s in timing.pauses_s),
        "tpot": Distribution.of((timing.tpot_s, 1) for timing in timings if timing.tpot_s is not None),
        "e2e": Distribution.of((timing.e2e_s, 1) for timing in timings),
    }
    return {name: distribution for name, distribution in all_of.items() if distribution.num}


def _attained(timings: Sequence[Timing], num: int, slo: Slo, scale: float) -> float:
    return sum(not slo.failed(timing, scale) for timing in timings) / num if num else 0.0


def _span(outcomes: Sequence[Outcome]) -> float:
    if not outcomes:
        return 0.0
    return max(outcome.ended_s for outcome in outcomes) - min(outcome.intended_s for outcome in outcomes)
