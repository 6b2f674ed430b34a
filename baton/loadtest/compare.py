"""Two results side by side: how each figure differs, and how sure that is.

The spread is a bootstrap over requests: each result's requests are drawn again with replacement, and all figures are taken
anew. A request brings its gaps with it, since gaps within one answer are alike. A maximum is one value and has no spread.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from baton.loadtest.errors import BenchError
from baton.loadtest.measure import LATENCIES, Distribution, latencies
from baton.loadtest.result import Result, Run
from baton.loadtest.timing import Timing, timing_of

NUM_RESAMPLES = 300
MAX_ITLS = 5000
"""Gaps of a whole run beyond which they are thinned for the bootstrap."""

RATES = ("success", "requests/s", "output tokens/s", "goodput/s")
POINTS = ("p50", "p90", "p99", "max")


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of both: latencies in seconds. `spread` bounds B's relative difference to A with 95 % confidence."""

    name: str
    a: float
    b: float
    spread: tuple[float, float] | None

    @property
    def relative(self) -> float:
        return self.b / self.a - 1 if self.a else 0.0

    @property
    def verdict(self) -> str:
        """`better` and `worse` only where the whole spread says so."""
        if self.spread is None:
            return "no spread to judge by"
        low, high = self.spread
        if low <= 0 <= high:
            return "no clear difference"
        return "better" if (low > 0) == (self.name in RATES) else "worse"


@dataclass(frozen=True, slots=True)
class _Sample:
    """One request, reduced to what figures need; no timing where it failed."""

    timing: Timing | None
    output_tokens: int
    good: bool


def compare(a: Result, b: Result, seed: int = 0) -> list[tuple[str, list[Difference]]]:
    """Differences by run. Runs are paired by label, or as they are where each result has one. Raises BenchError."""
    return [(label, _differences(run_a, run_b, random.Random(seed))) for label, run_a, run_b in _pairs(a, b)]


def _pairs(a: Result, b: Result) -> list[tuple[str, Run, Run]]:
    if len(a.runs) == len(b.runs) == 1:
        labels = dict.fromkeys((a.runs[0].label, b.runs[0].label))
        return [(" against ".join(labels), a.runs[0], b.runs[0])]
    of_b = {run.label: run for run in b.runs}
    pairs = [(run.label, run, of_b[run.label]) for run in a.runs if run.label in of_b]
    if not pairs:
        raise BenchError("the results have no run in common: run both with the same rates")
    return pairs


def _differences(a: Run, b: Run, rng: random.Random) -> list[Difference]:
    of_a, of_b = _samples(a, thin=False), _samples(b, thin=False)
    figures_a, figures_b = _figures(of_a, a.summary.span_s), _figures(of_b, b.summary.span_s)
    spreads = _spreads(a, b, rng)
    return [Difference(name, figures_a[name], figures_b[name], spreads.get(name)) for name in figures_a if name in figures_b]


def _spreads(a: Run, b: Run, rng: random.Random) -> dict[str, tuple[float, float]]:
    """The middle 95 % of each relative difference over resamples."""
    samples_a, samples_b = _samples(a, thin=True), _samples(b, thin=True)
    drawn: dict[str, list[float]] = {}
    for _ in range(NUM_RESAMPLES if samples_a and samples_b else 0):
        figures_a = _figures(rng.choices(samples_a, k=len(samples_a)), a.summary.span_s)
        figures_b = _figures(rng.choices(samples_b, k=len(samples_b)), b.summary.span_s)
        for name, value in figures_a.items():
            if value and name in figures_b and not name.endswith("max"):
                drawn.setdefault(name, []).append(figures_b[name] / value - 1)
    spreads = {name: Distribution.of((value, 1) for value in values) for name, values in drawn.items()}
    return {name: (spread.percentile(2.5), spread.percentile(97.5)) for name, spread in spreads.items()}


def _figures(samples: Sequence[_Sample], span_s: float) -> dict[str, float]:
    """All figures of samples that took `span_s`."""
    ok = [sample for sample in samples if sample.timing is not None]
    counts = (len(ok), sum(sample.output_tokens for sample in ok), sum(sample.good for sample in ok))
    rates = (len(ok) / len(samples) if samples else 0.0, *(count / span_s if span_s else 0.0 for count in counts))
    figures = dict(zip(RATES, rates, strict=True))
    by_name = latencies([sample.timing for sample in ok if sample.timing])
    for name in LATENCIES:
        if (distribution := by_name.get(name)) is not None:
            values = (*(distribution.percentile(percent) for percent in (50, 90, 99)), distribution.max)
            figures |= {f"{name.upper()} {point}": value for point, value in zip(POINTS, values, strict=True)}
    return figures


def _samples(run: Run, *, thin: bool) -> list[_Sample]:
    timings = [None if outcome.error else timing_of(outcome) for outcome in run.outcomes]
    num_itls = sum(len(timing.itls) for timing in timings if timing)
    step = max(1, num_itls // MAX_ITLS) if thin else 1
    return [
        _Sample(timing and _thinned(timing, step), outcome.output_tokens, timing is not None and not run.slo.failed(timing))
        for timing, outcome in zip(timings, run.outcomes, strict=True)
    ]


def _thinned(timing: Timing, step: int) -> Timing:
    """Every step-th gap in order of size, so that what is left spreads as before."""
    if step == 1:
        return timing
    itls, pauses_s = sorted(timing.itls), sorted(timing.pauses_s)
    return replace(timing, itls=tuple(itls[step // 2 :: step]), pauses_s=tuple(pauses_s[step // 2 :: step]))
