"""The report's pictures. Each is drawn for a given width, so that its text has the same size on a desk and on a phone."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from html import escape

from baton.loadtest.measure import Distribution
from baton.loadtest.record import Outcome
from baton.loadtest.result import GOAL, Run
from baton.loadtest.slo import NAMES, Slo
from baton.loadtest.svg import Axis, Plot, linear, logarithmic
from baton.loadtest.timing import timing_of
from baton.loadtest.words import duration, tick

NUM_POINTS = 160
LEAST_PX = 3.0
"""A refused request is over at once, and still to be seen."""
MAX_BARS = 3000
SHARES = ((0.0, "0 %"), (0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (0.9999, "99.99 %"))


def latency(name: str, values: Distribution, limit_s: float | None, width: int) -> str:
    """How slow the slowest are: along x the share that is faster, stretched towards its end, upwards the time."""
    highest = min(1 - 1 / max(values.num, 2), 0.9999)
    shares = [1 - (1 - highest) ** (i / NUM_POINTS) for i in range(NUM_POINTS + 1)]
    points = [(share, values.percentile(share * 100)) for share in shares[:-1]] + [(highest, values.max)]
    top = max(values.max, limit_s or 0.0)
    low = max(values.percentile(0), top / 1e4)
    y = logarithmic(low * 0.8, top * 1.25, "", tick) if top / low > 30 else linear(top * 1.05, "", tick)
    ticks = tuple((share, label) for share, label in SHARES if share <= highest)
    plot = Plot(width, 230, Axis(0.0, highest, ticks, "share that was faster", _nines), y, name)
    plot.line(points, "values")
    if limit_s is not None:
        plot.across(limit_s, f"SLO {duration(limit_s)}")
    return plot.svg()


def _nines(share: float) -> float:
    """0, 90 %, 99 %, 99.9 % lie evenly."""
    return -math.log10(1 - share)


def timeline(outcomes: Sequence[Outcome], slo: Slo, width: int) -> str:
    """A bar a request, from when it was due to its end: paler before the first token, coloured by what it missed."""
    shown = sorted(outcomes, key=lambda outcome: outcome.intended_s)[:MAX_BARS]
    lanes = _lanes(shown)
    num_lanes = max(lanes, default=0) + 1
    row = min(14.0, max(3.0, 420 / num_lanes))
    end_s = max(outcome.ended_s for outcome in shown)
    ticks = linear(end_s, "", tick, max(4, width // 130)).ticks
    x = Axis(0.0, end_s, ticks, "time since the run began")
    plot = Plot(width, round(row * num_lanes) + 58, x, None, "every request", left=10, right=10)
    for lane, outcome in zip(lanes, shown, strict=True):
        plot.parts.append(_bar(plot, outcome, slo, plot.top + lane * row, row * 0.78))
    return plot.svg()


def _bar(plot: Plot, outcome: Outcome, slo: Slo, y: float, height: float) -> str:
    kind = verdict(outcome, slo)
    first_s = outcome.messages[0].at_s if outcome.messages else outcome.ended_s
    (x0, _), (x1, _), (x2, _) = (plot.at(at_s, 0) for at_s in (outcome.intended_s, first_s, outcome.ended_s))
    said = f"request {outcome.number}: {outcome.error or f'{outcome.output_tokens} tokens'}, {LEGEND[kind]}"
    times = f"first token {duration(first_s - outcome.intended_s)}, end {duration(outcome.ended_s - outcome.intended_s)}"
    x1 = max(x1, x0 + LEAST_PX) if outcome.error else x1
    before = _rect(x0, x1, y, height, f"{kind} before")
    after = _rect(x1, x2, y, height, kind) if outcome.messages else ""
    return f"<g><title>{escape(said)}; {escape(times)}</title>{before}{after}</g>"


def _rect(x0: float, x1: float, y: float, height: float, kind: str) -> str:
    return f'<rect class="bar {kind}" x="{x0:g}" y="{y:.1f}" width="{max(x1 - x0, 0.8):.1f}" height="{height:.1f}"/>'


def _lanes(outcomes: Sequence[Outcome]) -> list[int]:
    """The lowest free lane for each, so that bars under way together lie above each other."""
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    lanes = []
    for outcome in outcomes:
        while busy and busy[0][0] <= outcome.intended_s:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (outcome.ended_s, lane))
        lanes.append(lane)
    return lanes


LEGEND = {
    "kept": "kept every SLO",
    **{f"missed-{name}": f"missed {name.upper()}" for name in NAMES},
    "missed-several": "missed several",
    "failed": "failed",
}
NO_SLO = {"kept": "succeeded", "failed": "failed"}


def verdict(outcome: Outcome, slo: Slo) -> str:
    """The key of LEGEND that a request falls under."""
    if outcome.error:
        return "failed"
    missed = slo.failed(timing_of(outcome))
    return "kept" if not missed else f"missed-{missed[0]}" if len(missed) == 1 else "missed-several"


def goodput(runs: Sequence[Run], width: int) -> str:
    """Requests per second that kept every SLO, and that ended at all, against the load offered."""
    rates = [run.rate or 0.0 for run in runs]
    good = [(rate, run.summary.per_s(run.summary.num_good)) for rate, run in zip(rates, runs, strict=True)]
    ended = [(rate, run.summary.per_s(run.summary.num_ok)) for rate, run in zip(rates, runs, strict=True)]
    top = max(rates)
    x, y = linear(top, "offered, requests per second", "{:g}".format), linear(top, "", "{:g}".format)
    plot = Plot(width, 270, x, y, "goodput against rate")
    plot.line([(0.0, 0.0), (top, top)], "ideal")
    plot.line(ended, "ended", dots=True)
    plot.line(good, "good", dots=True)
    return plot.svg()


def attainment(runs: Sequence[Run], width: int) -> str:
    """How many requests keep every SLO if all SLOs are made tighter or looser by a factor."""
    scales = [scale for scale, _ in runs[0].summary.attainment]
    x = logarithmic(scales[0], scales[-1], "factor on every SLO: left tighter, right looser", lambda scale: f"{scale:g}×")
    shares = tuple((share, f"{share * 100:g} %") for share in (0.0, 0.25, 0.5, 0.75, 1.0))
    plot = Plot(width, 270, x, Axis(0.0, 1.0, shares, ""), "attainment against SLO scale")
    plot.down(1.0, "as asked")
    plot.across(GOAL, f"{GOAL * 100:g} %")
    for place, run in enumerate(runs):
        plot.line(run.summary.attainment, f"stroke: {shade(place, len(runs))}", dots=False)
    return plot.svg()


def shade(place: int, num: int) -> str:
    """From blue for the first run over violet to orange for the last."""
    share = place / (num - 1) if num > 1 else 0.0
    return f"hsl({210 + 175 * share:.0f} 62% 54%)"
