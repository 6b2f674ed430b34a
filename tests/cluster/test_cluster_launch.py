"""Local children: their words reach the launcher, they end when told, when their launcher dies, and never linger."""

import asyncio
import os
import select
import signal
import subprocess
import sys
import textwrap

import pytest

from baton.cluster.launch import LocalLauncher

DEADLINE_S = 60


async def launch(code, on_status=lambda status: None, on_line=lambda line: None):
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return await LocalLauncher().start(command, dict(os.environ), on_status, on_line)


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_status_lines_and_other_lines_go_their_ways():
    statuses, lines = [], []
    child = await launch(
        """
        import sys
        print('{"status": "loading", "bytes": 1, "total": 2}')
        print("hello")
        print('{"no": "status"}')
        print("warn", file=sys.stderr)
        """,
        statuses.append,
        lines.append,
    )
    assert await asyncio.wait_for(child.wait(), DEADLINE_S) == 0
    assert statuses == [{"status": "loading", "bytes": 1, "total": 2}]
    assert sorted(lines) == ["hello", "warn", '{"no": "status"}']


async def test_a_line_without_end_does_not_stop_the_reading():
    statuses = []
    code = """print("x" * (3 << 20)); print('{"status": "ready"}')"""
    child = await launch(code, statuses.append)
    assert await asyncio.wait_for(child.wait(), DEADLINE_S) == 0
    assert statuses == [{"status": "ready"}]


async def test_exit_status_and_signal_are_told():
    assert await asyncio.wait_for((await launch("raise SystemExit(3)")).wait(), DEADLINE_S) == 3
    child = await launch("import signal; signal.pause()")
    os.kill(child.pid, signal.SIGKILL)
    assert await asyncio.wait_for(child.wait(), DEADLINE_S) == -signal.SIGKILL


# The children below sleep in turns: a signal just before a signal.pause() would leave its handler waiting for the next one.


async def test_a_child_that_ignores_its_end_is_killed_and_reaped():
    ready = asyncio.Event()
    code = """
    import signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print('{"status": "ready"}', flush=True)
    while True: time.sleep(0.05)
    """
    child = await launch(code, lambda status: ready.set())
    await asyncio.wait_for(ready.wait(), DEADLINE_S)
    assert await asyncio.wait_for(child.stop(grace_s=0.1), DEADLINE_S) == -signal.SIGKILL
    assert gone(child.pid)
    assert await child.stop(grace_s=0.1) == -signal.SIGKILL


async def test_a_polite_child_ends_within_its_grace():
    ready = asyncio.Event()
    code = """
    import signal, time
    signal.signal(signal.SIGTERM, lambda *_: exit(7))
    print('{"status": "ready"}', flush=True)
    while True: time.sleep(0.05)
    """
    child = await launch(code, lambda status: ready.set())
    await asyncio.wait_for(ready.wait(), DEADLINE_S)
    assert await asyncio.wait_for(child.stop(grace_s=DEADLINE_S), DEADLINE_S) == 7


async def test_a_stop_that_is_cut_short_is_a_second_signal():
    told = asyncio.Queue()
    code = """
    import signal, time
    def first(*_):
        signal.signal(signal.SIGTERM, lambda *_: exit(8))
        print('{"status": "draining"}', flush=True)
    signal.signal(signal.SIGTERM, first)
    print('{"status": "ready"}', flush=True)
    while True: time.sleep(0.05)
    """
    child = await launch(code, told.put_nowait)
    async with asyncio.timeout(DEADLINE_S):
        assert (await told.get())["status"] == "ready"
        stopping = asyncio.ensure_future(child.stop(grace_s=DEADLINE_S))
        assert (await told.get())["status"] == "draining"
        stopping.cancel()
        await asyncio.wait([stopping])
        assert stopping.cancelled()
        assert await child.wait() == 8


async def test_a_command_that_does_not_exist_ends_with_its_cause():
    lines = []
    child = await LocalLauncher().start(["/no/such/program"], {}, lambda status: None, lines.append)
    assert await asyncio.wait_for(child.wait(), DEADLINE_S) != 0
    assert any("No such file" in line for line in lines)


LAUNCHER = """
import asyncio, os, sys
from baton.cluster.launch import LocalLauncher

async def main():
    code = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    command = [sys.executable, "-c", code]
    child = await LocalLauncher().start(command, dict(os.environ), print, lambda line: print(line, flush=True))
    await child.wait()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's parent death signal")
def test_a_child_dies_with_a_launcher_that_was_killed():
    with subprocess.Popen([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE, text=True) as launcher:
        descriptor = os.pidfd_open(int(launcher.stdout.readline()))
        try:
            launcher.kill()
            assert select.select([descriptor], [], [], DEADLINE_S)[0], "the child outlived its launcher"
        finally:
            os.close(descriptor)
