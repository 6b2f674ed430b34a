"""A result as tables in the terminal."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from baton.loadtest.measure import LATENCIES
from baton.loadtest.result import Result, Run
from baton.loadtest.words import MEANINGS, duration, errors, number, percent, verdict


def show(result: Result, console: Console) -> None:
    parts: list[RenderableType] = [_facts(result)]
    parts += [_run(run) for run in result.runs]
    if len(result.runs) > 1:
        parts.append(_overview(result))
    parts += [Text(f"Note: {note}", style="yellow") for note in result.notes()]
    console.print(Group(*parts))


def _facts(result: Result) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in result.setup.items():
        table.add_row(Text(name, style="dim"), Text(value))
    if result.limits:
        limits = f"{number(result.limits.requests_per_s)} requests/s, {number(result.limits.tokens_per_s)} tokens/s"
        table.add_row(Text("harness limit", style="dim"), Text(f"{limits} against a stub that answers at once"))
    return table


def _run(run: Run) -> Group:
    """Every run's own table."""
    summary = run.summary
    facts = ", ".join(f"{name} {value}" for name, value in run.facts.items())
    parts: list[RenderableType] = [Text(f"\n{run.label}", style="bold"), Text(facts, style="dim"), Text(verdict(summary))]
    if summary.num_ok:
        parts.append(_latencies(run))
    parts.append(Text(_rates(run)))
    return Group(*parts)


def _rates(run: Run) -> str:
    summary = run.summary
    counts = {"requests": summary.num_ok, "output tokens": summary.output_tokens, "input tokens": summary.input_tokens}
    said = ", ".join(f"{number(summary.per_s(num))} {name}/s" for name, num in counts.items())
    good = f"; goodput {number(summary.per_s(summary.num_good))}/s ({percent(summary.attained)})" if run.slo.limits else ""
    return f"{said} over {duration(summary.span_s)}{good}; success {percent(summary.success)}, errors: {errors(summary)}"


def _latencies(run: Run) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    table.add_column("")
    for name in ("p50", "p90", "p99", "max", "SLO"):
        table.add_column(name, justify="right")
    for name in LATENCIES:
        if (distribution := run.summary.latencies.get(name)) is not None:
            points = [duration(distribution.percentile(percent)) for percent in (50, 90, 99)]
            limit_s = run.slo.limit(name)
            slo = "" if limit_s is None else f"{duration(limit_s)}, missed by {run.summary.missed[name]}"
            table.add_row(name.upper(), MEANINGS[name], *points, duration(distribution.max), slo)
    return table


OVERVIEW = (
    *("run", "requests/s", "goodput/s", "SLOs kept", "output tokens/s"),
    *("TTFT p50", "p99", "ITL p50", "p99", "max", "success"),
)


def _overview(result: Result) -> Table:
    table = Table(title="\nAll runs", title_justify="left", box=None, header_style="dim")
    for name in OVERVIEW:
        table.add_column(name, justify="left" if name == "run" else "right")
    for run in result.runs:
        summary = run.summary
        rates = [number(summary.per_s(num)) for num in (summary.num_ok, summary.num_good)]
        tokens = number(summary.per_s(summary.output_tokens))
        table.add_row(run.label, *rates, percent(summary.attained), tokens, *_points(run), percent(summary.success))
    return table


def _points(run: Run) -> list[str]:
    ttft, itl = (run.summary.latencies.get(name) for name in ("ttft", "itl"))
    of_ttft = [duration(ttft.percentile(50)), duration(ttft.percentile(99))] if ttft else ["", ""]
    return of_ttft + ([duration(itl.percentile(50)), duration(itl.percentile(99)), duration(itl.max)] if itl else ["", "", ""])
