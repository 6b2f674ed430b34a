"""How far a starting cluster is: bars with bytes and time left on a terminal, one line for each step elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from baton.cluster.supervise import View


@contextlib.contextmanager
def open_view(stream: TextIO) -> Iterator[View]:
    """The view that suits `stream`; a terminal is as it was when the block ends."""
    if not stream.isatty():
        yield PlainView(stream)
        return
    console = Console(file=stream)
    columns = (
        TextColumn("{task.description:>12}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[state]}"),
    )
    # What is printed is left as it is: lines meant for pasting must not be wrapped.
    progress = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    try:
        yield TerminalView(console, progress)
    finally:
        progress.stop()


class PlainView:
    """One line for each thing that happened."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._began_s = time.monotonic()
        self._loading: set[str] = set()

    def loading(self, name: str, done: int, total: int) -> None:
        if name not in self._loading:
            self._loading.add(name)
            self._say(name, f"loading {total / 1e6:.0f} MB of weights")

    def ready(self, name: str, address: str) -> None:
        self._say(name, f"ready on {address} after {time.monotonic() - self._began_s:.1f} s")

    def died(self, name: str, reason: str, restart_s: float) -> None:
        self._say(name, f"died ({reason}); restarting in {restart_s:g} s")

    def line(self, name: str, text: str) -> None:
        self._say(name, text)

    def _say(self, name: str, text: str) -> None:
        print(f"{name} | {text}", file=self._stream, flush=True)


class TerminalView:
    """A bar for each process until it is ready; between starts the terminal is left alone."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console = console
        self._progress = progress
        self._bars: dict[str, TaskID] = {}

    def loading(self, name: str, done: int, total: int) -> None:
        if name not in self._bars:
            self._progress.start()
            self._bars[name] = self._progress.add_task(name, total=total, state="weights")
        self._progress.update(self._bars[name], completed=done, total=total, state="" if done < total else "preparing")

    def ready(self, name: str, address: str) -> None:
        if (bar := self._bars.pop(name, None)) is not None:
            self._progress.remove_task(bar)
        if not self._bars:
            self._progress.stop()
        self._say(name, f"ready on {address}")

    def died(self, name: str, reason: str, restart_s: float) -> None:
        self._say(name, f"died ({reason}); restarting in {restart_s:g} s")

    def line(self, name: str, text: str) -> None:
        self._say(name, text)

    def _say(self, name: str, text: str) -> None:
        self._console.print(f"{name:>12} │ {text}", markup=False, highlight=False, soft_wrap=True)
