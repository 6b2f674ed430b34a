"""`baton serve` as a user meets it: the printed lines work, workers come back, and nothing is left behind."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.support import sse
from tests.support.processes import ROOT

DEADLINE_S = 120


class Served:
    """A running `baton serve`, ready; `lines` are the commands that it printed."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "baton.cli.main", "serve", *arguments]
        self.popen = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        text = ""
        while "-c " not in text:
            line = self.popen.stdout.readline()
            assert line, f"it ended: {self.popen.stderr.read()}"
            text += line
        self.url = re.search(r"http://[\d.:]+", text)[0]
        self.lines = [line.strip() for line in text.splitlines() if line.startswith("  ")]

    def children(self) -> dict[int, str]:
        """Command lines of the direct children by process id."""
        pids = Path(f"/proc/{self.popen.pid}/task/{self.popen.pid}/children").read_text().split()
        return {int(pid): Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in pids}

    def one(self, word: str) -> int:
        return next(pid for pid, command in self.children().items() if word in command)

    def wait_ready(self, ready: bool) -> None:
        """Until /readyz says so."""
        deadline = time.monotonic() + DEADLINE_S
        while httpx.get(f"{self.url}/readyz", trust_env=False).is_success != ready:
            assert time.monotonic() < deadline, f"/readyz never said {ready}"
            time.sleep(0.05)

    def end(self, number: int) -> tuple[int, str]:
        self.popen.send_signal(number)
        _, err = self.popen.communicate(timeout=DEADLINE_S)
        return self.popen.returncode, err


@pytest.fixture
def served(scripted):
    served = Served(str(scripted), "--port", "0", "--grpc-port", "0", "--kv-blocks", "64", "--block-size", "16")
    yield served
    served.popen.kill()
    served.popen.communicate()


def ended(descriptors: list[int], seconds: float) -> bool:
    """Whether all processes behind these pidfds are gone in time."""
    deadline = time.monotonic() + seconds
    return all(select.select([one], [], [], max(0.0, deadline - time.monotonic()))[0] for one in descriptors)


def pidfds(served: Served) -> list[int]:
    return [os.pidfd_open(pid) for pid in served.children()]


def test_the_printed_lines_work(served):
    outputs = [
        subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=DEADLINE_S, check=True).stdout
        for line in served.lines
    ]
    assert sse.text(sse.events(outputs[0].splitlines())) == "OK."
    assert outputs[1] == "OK.\n"


def test_ctrl_c_leaves_no_process_and_no_shared_memory(served):
    before, descriptors = set(os.listdir("/dev/shm")), pidfds(served)
    assert len(descriptors) == 3
    code, err = served.end(signal.SIGINT)
    assert code == 0, err
    assert ended(descriptors, 0)
    assert "Traceback" not in err
    assert set(os.listdir("/dev/shm")) <= before
    for descriptor in descriptors:
        os.close(descriptor)


def test_its_processes_die_with_it(served):
    descriptors = pidfds(served)
    served.popen.kill()
    assert ended(descriptors, DEADLINE_S)
    for descriptor in descriptors:
        os.close(descriptor)


def test_a_killed_worker_comes_back(served):
    body = {"model": "scripted", "prompt": "A", "max_tokens": 50, "temperature": 0}
    for role in ("prefill", "decode"):
        pid = served.one(f"--role {role}")
        os.kill(pid, signal.SIGKILL)
        served.wait_ready(False)
        served.wait_ready(True)
        answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=DEADLINE_S, trust_env=False)
        assert answer.json()["choices"][0]["text"] == "bcdefghij"
        assert served.one(f"--role {role}") != pid


def refusal(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "baton.cli.main", *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert "Traceback" not in ran.stderr
    return ran.returncode, ran.stderr


@pytest.mark.parametrize(("flag", "other"), [("--port", "--grpc-port"), ("--grpc-port", "--port")])
def test_a_taken_port_is_named_at_once(scripted, flag, other):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        began = time.monotonic()
        code, err = refusal("serve", str(scripted), flag, str(port), other, "0")
        assert code == 1
        assert f"127.0.0.1:{port}" in err
        assert f"another {flag}" in err
        assert time.monotonic() - began < 10


def test_a_model_that_is_not_there_is_named(tmp_path):
    code, err = refusal("serve", str(tmp_path / "none"), "--port", "0", "--grpc-port", "0")
    assert code == 1
    assert str(tmp_path / "none") in err


def test_an_open_address_must_be_said_aloud(scripted):
    code, err = refusal("serve", str(scripted), "--host", "0.0.0.0")
    assert code == 2
    assert "--insecure" in err


def test_one_worker_in_both_roles_serves_alone(scripted):
    served = Served(str(scripted), "--both", "1", "--port", "0", "--grpc-port", "0", "--kv-blocks", "64", "--block-size", "16")
    try:
        assert len(served.children()) == 2
        body = {"model": "scripted", "prompt": "A", "max_tokens": 50, "temperature": 0}
        answer = httpx.post(f"{served.url}/v1/completions", json=body, trust_env=False, timeout=DEADLINE_S).json()
        assert answer["choices"][0]["text"] == "bcdefghij"
        assert served.end(signal.SIGINT)[0] == 0
    finally:
        served.popen.kill()
        served.popen.communicate()
