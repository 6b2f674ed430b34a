"""How figures are written for people, alike in the terminal and in the page."""

from __future__ import annotations

from baton.loadtest.measure import Summary

MEANINGS = {
    "ttft": "to the first token",
    "itl": "between tokens",
    "pause": "between messages",
    "tpot": "per token after the first",
    "e2e": "to the end",
}


def duration(seconds: float) -> str:
    """Three significant digits in the unit that suits."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        ms = seconds * 1e3
        return f"{ms:.{max(0, 2 - _magnitude(ms))}f} ms"
    return f"{seconds:.{max(0, 2 - _magnitude(seconds))}f} s"


def tick(seconds: float) -> str:
    """A round duration, as short as it can be."""
    if not seconds:
        return "0"
    unit, size = ("s", 1.0) if seconds >= 1 else ("ms", 1e-3) if seconds >= 1e-3 else ("µs", 1e-6)
    return f"{seconds / size:.4g} {unit}"


def number(value: float) -> str:
    """Three significant digits, and whole from 100 up with thousands apart."""
    return f"{value:,.{max(0, 2 - _magnitude(value))}f}" if value else "0"


def percent(share: float) -> str:
    """Never 100 % or 0 % unless it is all or none."""
    if share in (0.0, 1.0):
        return f"{share * 100:.0f} %"
    return f"{min(max(share * 100, 0.1), 99.9):.1f} %"


def verdict(summary: Summary) -> str:
    """A run in a sentence or two."""
    if not summary.num_ok:
        return f"None of the {summary.num} requests succeeded: {errors(summary)}."
    said = f"{_of(summary.num_ok, summary.num)} succeeded"
    if summary.missed:
        said += f" and {_of(summary.num_good, summary.num, short=True)} kept every SLO"
    itl = summary.latencies.get("itl")
    ttft = summary.latencies["ttft"].percentile(50)
    tokens = f"; after that half of the tokens followed within {duration(itl.percentile(50))}" if itl else ""
    return f"{said}. Half of the answers began within {duration(ttft)}{tokens}."


def errors(summary: Summary) -> str:
    return ", ".join(f"{num} × {kind}" for kind, num in summary.errors.items()) or "none"


def _of(part: int, whole: int, short: bool = False) -> str:
    if part == whole:
        return "all of them" if short else f"All {whole} requests"
    return f"{part}" if short else f"{part} of {whole} requests"


def _magnitude(value: float) -> int:
    return len(f"{value:.3g}".partition(".")[0].lstrip("-")) - 1 if abs(value) < 1000 else 3
