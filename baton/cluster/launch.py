"""Starts processes from command lines and owns them. Local children here; other launchers need no more than this Protocol."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from baton.cluster import status
from baton.cluster.status import OnStatus

Sink = Callable[[str], None]
"""Takes one line of a child's stderr, without its newline."""

LINE_BYTES = 1 << 20
LAST_WORDS_S = 2.0
"""How long a child may take to end after its second signal; its parent has little longer (lifecycle.py)."""

WRAPPER = str(Path(__file__).with_name("die_with_parent.py"))


class Child(Protocol):
    """A process that its launcher owns until `wait` or `stop` returned."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int:
        """The exit status once the process is reaped and its output read to the end; negative: minus the signal."""
        ...

    async def stop(self, grace_s: float) -> int:
        """SIGTERM, after `grace_s` SIGKILL to its whole group; returns like `wait`. Safe to call at any time.

        Cancelled, it sends a second SIGTERM, and SIGKILL soon after.
        """
        ...


class Launcher(Protocol):
    """Starts a command somewhere; the process dies with the launcher, however that dies."""

    async def start(self, command: Sequence[str], env: Mapping[str, str], on_status: OnStatus, on_line: Sink) -> Child:
        """`on_status` gets each status line of its stdout, `on_line` every other line. Raises OSError if it cannot start."""
        ...


class LocalLauncher:
    """Children of this process, each in a session of its own so that a terminal's Ctrl-C reaches us alone."""

    async def start(self, command: Sequence[str], env: Mapping[str, str], on_status: OnStatus, on_line: Sink) -> LocalChild:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-IS", WRAPPER, str(os.getpid()), *command),
            env=dict(env),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_BYTES,
            start_new_session=True,
        )
        return LocalChild(process, on_status, on_line)


class LocalChild:
    """One child process and the task that reads its output and reaps it."""

    def __init__(self, process: asyncio.subprocess.Process, on_status: OnStatus, on_line: Sink) -> None:
        self._process = process
        self._on_status = on_status
        self._on_line = on_line
        self._ended = asyncio.create_task(self._until_ended(), name=f"child {process.pid}")

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    async def stop(self, grace_s: float) -> int:
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(grace_s):
                await self.wait()
        except TimeoutError:
            self._kill()
        except asyncio.CancelledError:
            await self._hurry()
            raise
        return await self._ended

    async def _hurry(self) -> None:
        """Who stops us was told to hurry: a second signal lets the child say its last words."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                await self.wait()
        except TimeoutError:
            self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # not reaped yet, so the id is still its own
            os.killpg(self._process.pid, signal.SIGKILL)

    async def _until_ended(self) -> int:
        stdout, stderr = self._process.stdout, self._process.stderr
        assert stdout is not None
        assert stderr is not None
        await asyncio.gather(_each_line(stdout, self._on_stdout), _each_line(stderr, self._on_line))
        return await self._process.wait()

    def _on_stdout(self, line: str) -> None:
        found = status.parse(line)
        if found is None:
            self._on_line(line)
        else:
            self._on_status(found)


async def _each_line(stream: asyncio.StreamReader, take: Sink) -> None:
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # longer than LINE_BYTES: dropped, the next one is read
            continue
        if not line:
            return
        take(line.decode(errors="replace").rstrip("\n"))
