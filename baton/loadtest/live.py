"""How a run goes while it goes: a line that moves on a terminal, a line per tenth elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from baton.loadtest.measure import Distribution
from baton.loadtest.record import Outcome
from baton.loadtest.timing import timing_of
from baton.loadtest.words import duration, number

RECENT = 200
"""The last so many requests make the figures on the line."""


class Live(Protocol):
    """A runner's watcher that can tell what it saw."""

    def sent(self) -> None: ...

    def ended(self, outcome: Outcome) -> None: ...


class Silent:
    """Watches nothing."""

    def sent(self) -> None: ...

    def ended(self, outcome: Outcome) -> None: ...


class Tally:
    """Counts a run and keeps its recent times."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._ttfts: deque[tuple[float, int]] = deque(maxlen=RECENT)
        self._itls: deque[tuple[float, int]] = deque(maxlen=RECENT * 20)
        self.num_sent = self.num_ended = self.num_failed = self.num_tokens = 0

    def sent(self) -> None:
        self.num_sent += 1

    def ended(self, outcome: Outcome) -> None:
        self.num_ended += 1
        self.num_tokens += outcome.output_tokens
        if outcome.error:
            self.num_failed += 1
            return
        timing = timing_of(outcome)
        self._ttfts.append((timing.ttft_s, 1))
        self._itls.extend(timing.itls)

    def __str__(self) -> str:
        elapsed_s = max(time.monotonic() - self._began_s, 1e-3)
        parts = [f"{self.num_sent - self.num_ended} under way", f"{number(self.num_tokens / elapsed_s)} tok/s"]
        for name, values in (("TTFT", self._ttfts), ("ITL", self._itls)):
            if values:
                parts.append(f"{name} {duration(Distribution.of(values).percentile(50))}")
        return " · ".join([*parts, f"{self.num_failed} failed"] if self.num_failed else parts)


class LineView:
    """Prints a line at each tenth of the requests."""

    def __init__(self, console: Console, label: str, num: int):
        self._console, self._label, self._num = console, label, num
        self._tally = Tally()

    def sent(self) -> None:
        self._tally.sent()

    def ended(self, outcome: Outcome) -> None:
        before = self._tally.num_ended * 10 // self._num
        self._tally.ended(outcome)
        if self._tally.num_ended * 10 // self._num > before:
            self._console.print(f"{self._label}: {self._tally.num_ended}/{self._num} · {self._tally}", highlight=False)


class BarView:
    """Moves a bar; rich redraws it ten times a second whatever the rate."""

    def __init__(self, progress: Progress, task: TaskID):
        self._progress, self._task = progress, task
        self._tally = Tally()
        self._shown_s = 0.0

    def sent(self) -> None:
        self._tally.sent()

    def ended(self, outcome: Outcome) -> None:
        self._tally.ended(outcome)
        if (now_s := time.monotonic()) - self._shown_s > 0.2:
            self._shown_s = now_s
            self._progress.update(self._task, completed=self._tally.num_ended, state=str(self._tally))


@contextmanager
def watch(console: Console, label: str, num: int) -> Iterator[Live]:
    """A view of a run of `num` requests that suits the console."""
    if not console.is_terminal:
        yield LineView(console, label, num)
        return
    state = TextColumn("{task.fields[state]}")
    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn(), state)
    with Progress(*columns, console=console, transient=True) as progress:
        yield BarView(progress, progress.add_task(label, total=num, state=""))
