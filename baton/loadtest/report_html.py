"""A result as one page that needs nothing else: words first, then pictures, then every figure and how it was counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from html import escape
from importlib.resources import files

from baton.loadtest import plots
from baton.loadtest.measure import LATENCIES, Distribution
from baton.loadtest.result import GOAL, Result, Run
from baton.loadtest.words import MEANINGS, duration, errors, number, percent, verdict

WIDE, HALF, NARROW = 1100, 530, 336
"""Widths of pictures in pixels: the page's, half of it, a phone's."""


def dump(result: Result) -> str:
    """The page."""
    style = files("baton.loadtest").joinpath("report.css").read_text(encoding="utf-8")
    main = result.highlight()
    body = _head(result, main) + _sweep(result) + _section(main, lone=len(result.runs) == 1)
    others = [run for run in result.runs if run is not main]
    body += "".join(f"<details><summary>{escape(run.label)}</summary>{_section(run, lone=True)}</details>" for run in others)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(result.title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head>'
        f"<body><main>{body}{_counting(result)}{_setup(result)}</main></body></html>"
    )


def _head(result: Result, main: Run) -> str:
    setup = result.setup
    about = " · ".join(escape(setup[name]) for name in ("model", "server", "time") if name in setup)
    which = "" if len(result.runs) == 1 else f"<b>At {escape(main.label)}</b> ({escape(_why(result, main))}): "
    notes = "".join(f"<div>{escape(note)}</div>" for note in result.notes())
    return (
        f'<h1>{escape(result.title)}</h1><p class="soft">{about}</p><p class="lead">{which}{escape(verdict(main.summary))}</p>'
        f'{_tiles(main)}{f"""<div class="notes">{notes}</div>""" if notes else ""}'
    )


def _why(result: Result, main: Run) -> str:
    if result.slo.limits and main.summary.attained >= GOAL:
        return f"the most load at which {GOAL * 100:g} % of the requests kept every SLO"
    return "the least load; at none did enough requests keep every SLO" if result.slo.limits else "the least load"


def _tiles(run: Run) -> str:
    summary = run.summary
    tiles = [(percent(summary.success), f"of {summary.num} requests succeeded")]
    if run.slo.limits:
        tiles.append((percent(summary.attained), f"kept every SLO: {run.slo}"))
        tiles.append((f"{number(summary.per_s(summary.num_good))}/s", "goodput: requests per second that kept every SLO"))
    tiles += [_latency_tile(name, summary.latencies[name]) for name in ("ttft", "itl") if name in summary.latencies]
    tiles.append((f"{number(summary.per_s(summary.output_tokens))}/s", "output tokens per second, all requests together"))
    shown = [f'<div class="tile"><b>{escape(figure)}</b><span>{escape(said)}</span></div>' for figure, said in tiles]
    return f'<div class="tiles">{"".join(shown)}</div>'


def _latency_tile(name: str, values: Distribution) -> tuple[str, str]:
    slowest = duration(values.percentile(99))
    return duration(values.percentile(50)), f"{MEANINGS[name]}, half are faster; 99 % within {slowest}"


def _sweep(result: Result) -> str:
    """What several runs show together, and what looser SLOs would change."""
    table = f"<h2>All loads</h2>{_overview(result)}" if len(result.runs) > 1 else ""
    if not result.slo.limits:
        return table
    if len(result.rates) < 2:
        return table + _attainment(result, WIDE)
    return f'{table}<div class="grid">{_goodput(result)}{_attainment(result, HALF)}</div>'


def _goodput(result: Result) -> str:
    said = "Up to what load is everyone served well? Dotted: every request sent."
    legend = _legend({"good": "kept every SLO", "ended": "succeeded"})
    return _figure("Goodput against rate", said, lambda width: plots.goodput(result.rates, width), HALF, legend)


def _attainment(result: Result, width: int) -> str:
    runs = result.runs
    said = "The share of requests that would keep every SLO if all of them were tighter or looser."
    shades = [f'<li><i style="--c: {plots.shade(i, len(runs))}"></i>{escape(run.label)}</li>' for i, run in enumerate(runs)]
    legend = f'<ul class="legend">{"".join(shades)}</ul>' if len(runs) > 1 else ""
    return _figure("Attainment against SLO scale", said, lambda width: plots.attainment(runs, width), width, legend)


def _section(run: Run, lone: bool) -> str:
    """One run: its timeline, its distributions, its table."""
    summary, facts = run.summary, ", ".join(f"{name}: {value}" for name, value in run.facts.items())
    head = f'<h2>{"The run" if lone else escape(run.label)}</h2><p class="soft">{escape(facts)}</p>'
    if summary.errors:
        head += f"<p>Errors: {escape(errors(summary))}</p>"
    shown = [name for name in ("ttft", "itl", "tpot", "e2e") if name in summary.latencies]
    figures = "".join(_latency(run, name) for name in shown)
    return f'{head}{_timeline(run)}<div class="grid">{figures}</div>{_table(run) if shown else ""}'


def _timeline(run: Run) -> str:
    if not run.outcomes:
        return ""
    kinds = Counter(plots.verdict(outcome, run.slo) for outcome in run.outcomes)
    names = plots.LEGEND if run.slo.limits else plots.NO_SLO
    legend = _legend({kind: f"{said}: {kinds[kind]}" for kind, said in names.items() if kinds[kind]})
    first = f" The first {plots.MAX_BARS} are shown." if len(run.outcomes) > plots.MAX_BARS else ""
    said = f"A bar is a request, from when it was due until its end; the paler part is the wait for the first token.{first}"
    return _figure("Every request", said, lambda width: plots.timeline(run.outcomes, run.slo, width), WIDE, legend)


def _latency(run: Run, name: str) -> str:
    values, limit_s = run.summary.latencies[name], run.slo.limit(name)
    half = f"Half of the {'tokens' if name == 'itl' else 'requests'} within {duration(values.percentile(50))}"
    said = f"Time {MEANINGS[name]}. {half}, the slowest {duration(values.max)}."
    return _figure(name.upper(), said, lambda width: plots.latency(name.upper(), values, limit_s, width), HALF)


def _table(run: Run) -> str:
    rows = "".join(_row(run, name) for name in LATENCIES if name in run.summary.latencies)
    head = "".join(f"<th>{name}</th>" for name in ("", "p50", "p90", "p99", "max"))
    return f'<div class="scroll card"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _row(run: Run, name: str) -> str:
    values, limit_s = run.summary.latencies[name], run.slo.limit(name)
    slo = "" if limit_s is None else f"<small>SLO {duration(limit_s)}, missed by {run.summary.missed[name]}</small>"
    points = [*(values.percentile(percent) for percent in (50, 90, 99)), values.max]
    cells = [f"<td{_over(point, limit_s)}>{duration(point)}</td>" for point in points]
    return f"<tr><th>{name.upper()}<small>{MEANINGS[name]}</small>{slo}</th>{''.join(cells)}</tr>"


def _over(seconds: float, limit_s: float | None) -> str:
    return ' class="over"' if limit_s is not None and seconds > limit_s else ""


def _overview(result: Result) -> str:
    names = ("", "succeeded/s", "goodput/s", "SLOs kept", "succeeded", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "tokens/s")
    head = "".join(f"<th>{name}</th>" for name in names)
    rows = "".join(_overview_row(run) for run in result.runs)
    return f'<div class="scroll card loads"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _overview_row(run: Run) -> str:
    summary = run.summary
    cells = [number(summary.per_s(num)) for num in (summary.num_ok, summary.num_good)]
    cells += [percent(summary.attained), percent(summary.success)]
    for name in ("ttft", "itl"):
        values = summary.latencies.get(name)
        cells += [duration(values.percentile(at)) if values else "–" for at in (50, 99)]
    cells.append(number(summary.per_s(summary.output_tokens)))
    return f"<tr><th>{escape(run.label)}</th>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


COUNTING = """
<b>TTFT</b> ends with the first message that has output; the role that opens a chat is none. <b>ITL</b> is the gap between two
messages, shared by the tokens of the later one; <b>pause</b> is that gap as it is, so that a stall stays whole however many
tokens follow it at once. <b>TPOT</b> is the time from the first message to the last, by the tokens after the first message.
In an open loop all times begin when a request was due, not when the harness got to it. SLOs on ITL and pause hold for the
mean of a request's slowest tenth. <b>Goodput</b> counts requests that succeeded within every SLO. Latencies are those of
successful requests.
"""
RULES = {
    "token_ids": "the server names them in every message",
    "text": "the server gives their sum at the end, shared out here by the length of each message's text",
    "messages": "the server names none, so each message is taken for one",
}


def _counting(result: Result) -> str:
    counted = Counter(outcome.counted_by for run in result.runs for outcome in run.outcomes if not outcome.error)
    rules = "; ".join(f"for {num} answers {RULES[rule]}" for rule, num in counted.items())
    tokens = f"<p>Tokens: {rules}.</p>" if rules else ""
    return f"<h2>How it is counted</h2><p>{COUNTING}</p>{tokens}"


def _setup(result: Result) -> str:
    facts = dict(result.setup)
    if result.limits:
        rates = f"{number(result.limits.requests_per_s)} requests/s, {number(result.limits.tokens_per_s)} tokens/s"
        facts["harness alone"] = f"{rates}, against a stub that answers at once"
    if result.slo.limits:
        facts["SLOs"] = str(result.slo)
    return f'<h2>Set-up</h2><div class="card"><dl>{_facts(facts)}</dl></div>'


def _facts(facts: Mapping[str, str]) -> str:
    return "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())


def _legend(names: Mapping[str, str]) -> str:
    items = [f'<li><i class="{kind}"></i>{escape(said)}</li>' for kind, said in names.items()]
    return f'<ul class="legend">{"".join(items)}</ul>'


def _figure(title: str, caption: str, draw: Callable[[int], str], width: int, legend: str = "") -> str:
    """Both drawings are in the page; its width says which is seen."""
    drawn = f'<div class="wide">{draw(width)}</div><div class="narrow">{draw(NARROW)}</div>'
    return f"<figure><h3>{escape(title)}</h3><figcaption>{escape(caption)}</figcaption>{legend}{drawn}</figure>"
