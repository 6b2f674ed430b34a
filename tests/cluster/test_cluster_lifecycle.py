"""A process's life: the first signal drains, the second ends it, a failed start is told in plain words."""

import json
import signal
import subprocess
import sys
import textwrap

import pytest

DEADLINE_S = 60


def start(body):
    code = "from baton.cluster.lifecycle import *\nimport asyncio\n" + textwrap.dedent(body) + "\nraise SystemExit(run(main))"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_drains(number):
    process = start(
        """
        async def main(shutdown):
            print("up", flush=True)
            await shutdown.wait()
            print("drained", flush=True)
        """
    )
    assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (0, "drained\n")


def test_the_second_signal_ends_a_drain_and_still_cleans_up():
    process = start(
        """
        async def main(shutdown):
            print("up", flush=True)
            await shutdown.wait()
            print("draining", flush=True)
            try:
                await asyncio.Event().wait()
            finally:
                print("cleaned", flush=True)
        """
    )
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "draining\n"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (128 + signal.SIGINT, "cleaned\n")


def test_a_start_that_fails_is_told_without_a_traceback():
    process = start("async def main(shutdown): raise StartupError('port 1 is taken; pass --port')")
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert json.loads(out) == {"status": "failed", "error": "port 1 is taken; pass --port"}
    assert err == "error: port 1 is taken; pass --port\n"


def test_a_fault_of_ours_is_told_too_and_logged_with_its_traceback():
    process = start("async def main(shutdown): raise KeyError('x')")
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "KeyError" in json.loads(out)["error"]
    assert "Traceback" in err
