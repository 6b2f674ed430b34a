"""A process from start to stop: one loop, the first signal drains, the second ends it. uvloop is chosen here alone."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator

from baton.cluster.config import LogLevel
from baton.cluster.sources import ConfigError
from baton.cluster.status import FAILED, report
from baton.wire.errors import BatonError

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM)
LAST_WORDS_S = 5.0
"""How long a process may take to clean up after its second signal before it is ended."""


class StartupError(Exception):
    """A start that failed for a reason outside this program; the message names cause and fix and is shown as it is."""


def cannot_listen(host: str, port: int, flag: str, error: OSError) -> StartupError:
    """The error to raise for a listening address that `flag` and --host asked for in vain."""
    if error.errno == errno.EADDRINUSE:
        fix = f"stop what uses port {port}, or pass another {flag}"
    elif error.errno == errno.EACCES:
        fix = f"pass a {flag} above 1023, which needs no special rights"
    else:
        fix = "pass an address of this machine as --host"
    return StartupError(f"cannot listen on {host}:{port}: {error.strerror}; {fix}")


class RunError(Exception):
    """The end of a process that had started and did not end well; the message says why and is shown as it is."""


class Shutdown:
    """Tells a process to drain. Raised by the first signal, or by anybody who calls `begin`."""

    def __init__(self) -> None:
        self._begun = asyncio.Event()

    @property
    def begun(self) -> bool:
        return self._begun.is_set()

    def begin(self) -> None:
        self._begun.set()

    async def wait(self) -> None:
        """Returns once the process should accept no more work."""
        await self._begun.wait()


def run(main: Callable[[Shutdown], Awaitable[None]], *, log_level: LogLevel = "info", told: bool = True) -> int:
    """Runs `main` until it returns; the exit status. `told`: a launcher reads our stdout, so a failed start is a status line.

    `main` starts, waits for `shutdown`, drains and returns. The second signal cancels it: its `finally`s still run.
    """
    logging.basicConfig(level=log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("grpc").setLevel("INFO")  # its debug lines tell nothing and drown ours
    try:
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            return runner.run(_until_stopped(main))
    except (StartupError, RunError, ConfigError, BatonError) as error:
        fail(str(error), told=told)
    except Exception as error:  # the process edge: whatever it was, the launcher hears of it
        logger.exception("the process failed")
        fail(f"{type(error).__name__}: {error}", told=told)
    return 1


def fail(message: str, *, told: bool = True) -> None:
    """Says why a start or a run failed, without a traceback: a status line for a launcher, and plain text for a person."""
    if told:
        report(FAILED, error=message)
    print(f"error: {message}", file=sys.stderr, flush=True)


async def _until_stopped(main: Callable[[Shutdown], Awaitable[None]]) -> int:
    shutdown, task = Shutdown(), asyncio.current_task()
    assert task is not None
    with _signals(shutdown, task):
        try:
            await main(shutdown)
        except asyncio.CancelledError:
            return 128 + signal.SIGINT
    return 0


@contextlib.contextmanager
def _signals(shutdown: Shutdown, task: asyncio.Task[int]) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if not shutdown.begun:
            return shutdown.begin()
        loop.call_later(LAST_WORDS_S, os._exit, 128 + signal.SIGINT)
        task.cancel()
        return None

    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not built for this platform: the standard loop serves
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
