"""The comparison of two results as tables in the terminal."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from baton.loadtest.compare import RATES, Difference
from baton.loadtest.result import Result
from baton.loadtest.words import duration, number, percent

STYLES = {"better": "green", "worse": "red"}


def show(a: Result, b: Result, pairs: list[tuple[str, list[Difference]]], console: Console) -> None:
    console.print(_setups(a, b))
    for label, differences in pairs:
        table = Table(title=f"\n{label}", title_justify="left", box=None, header_style="dim")
        for name in ("", "A", "B", "B to A", "95 % spread", ""):
            table.add_column(name, justify="left" if not name else "right")
        for difference in differences:
            table.add_row(*_cells(difference))
        console.print(table)


def _setups(a: Result, b: Result) -> Table:
    """What the two have not in common."""
    table = Table(box=None, header_style="dim")
    for name in ("", "A", "B"):
        table.add_column(name)
    table.add_row("title", a.title, b.title)
    for name in dict.fromkeys([*a.setup, *b.setup]):
        if a.setup.get(name) != b.setup.get(name):
            table.add_row(name, a.setup.get(name, ""), b.setup.get(name, ""))
    if a.slo != b.slo:
        table.add_row("SLOs", str(a.slo), str(b.slo))
    return table


def _cells(difference: Difference) -> list[str | Text]:
    value = _value(difference.name)
    spread = "" if difference.spread is None else " to ".join(f"{bound:+.1%}" for bound in difference.spread)
    verdict = Text(difference.verdict, style=STYLES.get(difference.verdict, "dim"))
    return [difference.name, value(difference.a), value(difference.b), f"{difference.relative:+.1%}", spread, verdict]


def _value(name: str) -> Callable[[float], str]:
    if name == "success":
        return percent
    return number if name in RATES else duration
