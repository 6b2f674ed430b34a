"""Keeps the processes of a cluster on this machine running: a start that must succeed, restarts after a death, a stop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from baton.cluster.launch import Child, Launcher
from baton.cluster.lifecycle import StartupError
from baton.cluster.status import FAILED, LOADING, READY, Status

START_STALL_S = 600.0
"""How long a starting process may tell nothing."""
BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Waits before the first, second, ... restart in a row; the last one repeats."""

LAST_LINES = 5


class View(Protocol):
    """Who watches the cluster: a terminal or a log. Called on the loop; `name` is a process, such as `prefill-0`."""

    def loading(self, name: str, done: int, total: int) -> None: ...

    def ready(self, name: str, address: str) -> None: ...

    def died(self, name: str, reason: str, restart_s: float) -> None: ...

    def line(self, name: str, text: str) -> None: ...


class Keeper:
    """One process of the cluster. `command` gets the port that its earlier life had (0 at first): peers find it again."""

    def __init__(
        self, name: str, command: Callable[[int], Sequence[str]], env: Mapping[str, str], launcher: Launcher, view: View
    ) -> None:
        self.name = name
        self._command = command
        self._env = env
        self._launcher = launcher
        self._view = view
        self._port = 0
        self._child: Child | None = None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    async def start(self) -> Status:
        """Starts the process; its ready status. Raises StartupError with the process's own words if it ends or stalls."""
        statuses: asyncio.Queue[Status] = asyncio.Queue()
        last_lines: deque[str] = deque(maxlen=LAST_LINES)

        def on_line(text: str) -> None:
            last_lines.append(text)
            self._view.line(self.name, text)

        try:
            child = await self._launcher.start(self._command(self._port), self._env, statuses.put_nowait, on_line)
        except OSError as error:
            raise StartupError(f"{self.name} cannot be started: {error}") from error
        self._child = child
        ended = asyncio.create_task(_report_end(child, statuses, last_lines), name=f"end of {self.name}")
        try:
            return await self._until_ready(statuses)
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)

    async def keep(self) -> None:
        """After `start`: restarts the process whenever it dies. Runs until cancelled."""
        while True:
            assert self._child is not None
            code = await self._child.wait()
            await self._restart(f"exit status {code}")

    async def stop(self, grace_s: float) -> int:
        """Ends the process, if there is one, and reaps it; its exit status."""
        return await self._child.stop(grace_s) if self._child is not None else 0

    async def _restart(self, reason: str) -> None:
        attempt = 0
        while True:
            delay = BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)]
            self._view.died(self.name, reason, delay)
            await asyncio.sleep(delay)
            try:
                await self.start()
                return
            except StartupError as error:
                attempt, reason = attempt + 1, str(error)
                await self.stop(grace_s=0)

    async def _until_ready(self, statuses: asyncio.Queue[Status]) -> Status:
        while True:
            try:
                async with asyncio.timeout(START_STALL_S):
                    status = await statuses.get()
            except TimeoutError as error:
                raise StartupError(f"{self.name} has told nothing for {START_STALL_S:.0f} s while starting") from error
            kind = status["status"]
            if kind == LOADING:
                self._view.loading(self.name, int(status["bytes"]), int(status["total"]))
            elif kind == READY:
                self._port = int(str(status["address"]).rpartition(":")[2])
                self._view.ready(self.name, str(status["address"]))
                return status
            elif kind == FAILED:
                raise StartupError(f"{self.name}: {status['error']}")


async def _report_end(child: Child, statuses: asyncio.Queue[Status], last_lines: Sequence[str]) -> None:
    code = await child.wait()
    said = "".join(f"\n  {line}" for line in last_lines)
    statuses.put_nowait({"status": FAILED, "error": f"ended with exit status {code} before it was ready{said}"})
