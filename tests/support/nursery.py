"""Starts processes in a tenth of a second: one process imports everything once, and forks the others.

A test may kill a hundred workers; each new life would otherwise spend seconds on importing torch. What is forked is a process
like any other: its own id, its own port, its own death.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import importlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from baton.cluster.die_with_parent import PR_SET_PDEATHSIG
from baton.cluster.launch import WRAPPER

MODULES = ("baton.cli.worker", "tests.support.gated_worker", "router.main")
REQUEST_BYTES = 1 << 16


class Nursery:
    """The test's end. One thread uses it at a time."""

    def __init__(self, root: Path, environ: dict[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-IS", WRAPPER, str(os.getpid()), sys.executable, "-m", __name__, str(theirs.fileno())]
        self._popen = subprocess.Popen(command, cwd=root, env=environ, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()

    def start(self, module: str, argv: Sequence[str], environ: dict[str, str], stderr: IO[bytes]) -> Forked:
        """Runs `module.main(argv)` in a process of its own."""
        reading, writing = os.pipe()
        request = json.dumps({"module": module, "argv": list(argv), "environ": environ}).encode()
        fds = array.array("i", [writing, stderr.fileno()])
        self._socket.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        os.close(writing)
        return Forked(self, int(self._answer()["pid"]), os.fdopen(reading))

    def reap(self, pid: int) -> int:
        """The exit status of a child that has ended."""
        self._socket.send(json.dumps({"reap": pid}).encode())
        return int(self._answer()["code"])

    def close(self) -> None:
        """Ends the nursery, and with it whatever still lives in it."""
        self._socket.close()
        self._popen.wait(30)

    def _answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._socket.recv(REQUEST_BYTES))
        return answer


class Forked:
    """What `subprocess.Popen` offers, for a child of the nursery."""

    def __init__(self, nursery: Nursery, pid: int, stdout: IO[str]) -> None:
        self.pid = pid
        self.stdout = stdout
        self._nursery = nursery
        self._pidfd = os.pidfd_open(pid)
        self._code: int | None = None

    def send_signal(self, number: int) -> None:
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self._code = self._nursery.reap(self.pid)
            os.close(self._pidfd)
        return self._code


# --- the nursery's own process ----------------------------------------------------------------------------------------


def main(link: socket.socket) -> None:
    """Forks and reaps as it is told, until the test has gone."""
    entries = {module: importlib.import_module(module).main for module in MODULES}
    while True:
        data, fds, _, _ = socket.recv_fds(link, REQUEST_BYTES, 2)
        if not data:
            return
        request = json.loads(data)
        if "reap" in request:
            _, status = os.waitpid(request["reap"], 0)
            link.send(json.dumps({"code": os.waitstatus_to_exitcode(status)}).encode())
            continue
        pid = os.fork()
        if pid == 0:
            link.close()
            _live(entries[request["module"]], request, *fds)
        for fd in fds:
            os.close(fd)
        link.send(json.dumps({"pid": pid}).encode())


def _live(entry: Any, request: dict[str, Any], stdout: int, stderr: int) -> None:
    code = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.environ.clear()
        os.environ.update(request["environ"])
        random.seed()
        code = entry(request["argv"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
