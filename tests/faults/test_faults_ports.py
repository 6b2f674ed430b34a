"""C154: defaults live together, and a port that is taken is named at once."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time

import pytest

from baton.cluster.config import RouterConfig, ServeConfig, WorkerConfig
from baton.wire.types import Role
from tests.support.processes import ROOT, TOKEN, start

BOUND_S = 10.0


def test_c154_workers_with_default_settings_live_together(scripted, tmp_path):
    configs = [WorkerConfig(role=role, model=str(scripted)) for role in (Role.PREFILL, Role.DECODE, Role.DECODE)]
    processes = [start(f"{i}", "baton.cli.worker", config, tmp_path / f"{i}.log") for i, config in enumerate(configs)]
    addresses = {process.wait_ready()["address"] for process in processes}
    assert [process.stop() for process in processes] == [0, 0, 0]
    assert len(addresses) == 3
    config = RouterConfig()
    assert config.port != config.grpc_port


@pytest.mark.parametrize("command", ["serve", "router"])
@pytest.mark.parametrize("port", [ServeConfig().port, ServeConfig().grpc_port])
def test_c154_a_default_port_is_taken(scripted, command, port):
    arguments = [command, str(scripted)] if command == "serve" else [command, "--worker", "127.0.0.1:9"]
    with _listener(port):
        _fails_and_names(port, arguments)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_c154_a_workers_port_is_taken(scripted, role):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        _fails_and_names(port, [role, str(scripted), "--port", str(port)])


@contextlib.contextmanager
def _listener(port: int):
    """A foreign listener: ours, unless another process of this machine is one already."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        yield


def _fails_and_names(port: int, arguments: list[str]) -> None:
    began = time.monotonic()
    environ = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "BATON_CLUSTER_TOKEN": TOKEN}
    done = subprocess.run(
        [sys.executable, "-m", "baton.cli.main", *arguments],
        cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode not in (0, None), done
    assert str(port) in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - began < BOUND_S * 3, "half alive"
