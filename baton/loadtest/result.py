"""A whole load test: where and how it ran, and every run's outcomes. All figures are derived from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from baton.loadtest.measure import Summary, summarise
from baton.loadtest.record import Outcome
from baton.loadtest.slo import Slo

GOAL = 0.9
"""The part of requests that should keep every SLO, as goodput is usually judged."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the harness alone drove against a stub that answers at once: per second."""

    requests_per_s: float
    tokens_per_s: float


@dataclass(frozen=True)
class Run:
    """`rate` is the open loop's offered load in requests per second, None in a closed one. `facts` say how it ran."""

    label: str
    rate: float | None
    facts: Mapping[str, str]
    slo: Slo
    outcomes: tuple[Outcome, ...]

    @cached_property
    def summary(self) -> Summary:
        return summarise(self.outcomes, self.slo)


@dataclass(frozen=True)
class Result:
    """`setup` are facts for a reader: address, model, seed, versions, machine."""

    title: str
    setup: Mapping[str, str]
    slo: Slo
    limits: Limits | None
    runs: tuple[Run, ...] = field(default_factory=tuple)

    @property
    def rates(self) -> tuple[Run, ...]:
        """Open-loop runs by rate."""
        return tuple(sorted((run for run in self.runs if run.rate is not None), key=lambda run: run.rate or 0.0))

    def highlight(self) -> Run:
        """The run to look at first: the highest rate at which enough requests kept every SLO, else the first run."""
        good = [run for run in self.rates if self.slo.limits and run.summary.attained >= GOAL]
        return good[-1] if good else self.runs[0]

    def notes(self) -> list[str]:
        """What a reader must know before trusting the figures."""
        notes = [f"{run.label}: {note}" for run in self.runs for note in _notes(run, self.limits)]
        if any(run.summary.errors for run in self.runs):
            notes.append("Some requests failed; latencies are those of the others.")
        return notes


def _notes(run: Run, limits: Limits | None) -> list[str]:
    summary, notes = run.summary, []
    if summary.num and (late_s := summary.late.percentile(99)) > max(0.005, 0.01 * _median(summary, "ttft")):
        notes.append(f"the harness sent 1 % of the requests more than {late_s * 1e3:.0f} ms late.")
    if limits and summary.per_s(summary.output_tokens) > limits.tokens_per_s / 2:
        notes.append("over half of the tokens per second that the harness can take; its own delays may show.")
    if limits and summary.per_s(summary.num) > limits.requests_per_s / 2:
        notes.append("over half of the requests per second that the harness can drive; its own delays may show.")
    if summary.counted_by.get("messages"):
        notes.append("the server counts no tokens, so a message is taken for one; token figures may be too low.")
    return notes


def _median(summary: Summary, name: str) -> float:
    return summary.latencies[name].percentile(50) if name in summary.latencies else 0.0
