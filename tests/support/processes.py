"""Clusters of real processes for tests: start, kill, restart, and the proof that they are idle again."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from baton.cluster import status
from baton.cluster.config import Config, RouterConfig, WorkerConfig
from baton.cluster.launch import WRAPPER
from baton.cluster.sources import child_environ, to_argv
from baton.cluster.status import Status
from baton.wire.types import Role
from tests.support.gate import GATE_VARIABLE, Gate
from tests.support.link import LINK_VARIABLE, BadLink
from tests.support.nursery import Forked, Nursery

ROOT = Path(__file__).parents[2]
TOKEN = "a-token-for-tests"
READY_S = 120.0
IDLE_S = 10.0
ENDED_S = 30.0

IDLE_GAUGES = (
    "baton_num_requests_",
    "baton_worker_kv_blocks_used",
    "baton_worker_num_",
    "baton_worker_queued_prefill_tokens",
    "baton_worker_ready",
)
"""What must be back at its baseline when nothing runs. Blocks kept as prefix cache are not among them."""


@dataclass(frozen=True)
class Shape:
    """What a cluster is made of; clusters of equal shape are shared by all tests of a session.

    `gated`: workers pass the test's gates. `forked`: processes come from a nursery, and are there at once.
    Workers that are told of a `registry` or of a `router` register there; otherwise the router is told of them.
    """

    checkpoint: Path
    prefill: int = 1
    decode: int = 1
    gated: bool = False
    forked: bool = False
    worker: tuple[tuple[str, object], ...] = (("kv_blocks", 64), ("block_size", 16))
    router: tuple[tuple[str, object], ...] = ()

    @property
    def registers(self) -> bool:
        return not {"registry", "router"}.isdisjoint(dict(self.worker))


class Process:
    """One child: its status lines in a queue, everything else in the file `log`. Dies with the test process."""

    def __init__(
        self, name: str, module: str, argv: Sequence[str], log: Path, environ: dict[str, str], nursery: Nursery | None = None
    ) -> None:
        self.name = name
        self.log = log
        self._statuses: queue.Queue[Status | None] = queue.Queue()
        with log.open("ab") as output:
            if nursery is not None:
                self._popen: subprocess.Popen[str] | Forked = nursery.start(module, argv, environ, output)
            else:
                self._popen = subprocess.Popen(
                    [sys.executable, "-IS", WRAPPER, str(os.getpid()), sys.executable, "-m", module, *argv],
                    cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=output, text=True,
                    start_new_session=True,
                )  # fmt: skip
        self._reader = threading.Thread(target=self._read, name=f"output of {name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def wait_ready(self) -> Status:
        """The ready status. Fails with the end of the log if the process ends or takes too long."""
        deadline = time.monotonic() + READY_S
        while True:
            try:
                told = self._statuses.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                told = None
            if told is None or told["status"] == status.FAILED:
                raise AssertionError(f"{self.name} did not get ready: {told}\n{self.log.read_text()[-4000:]}")
            if told["status"] == status.READY:
                return told

    def signal(self, number: int) -> None:
        self._popen.send_signal(number)

    def kill(self) -> None:
        """As the kernel would: no word to anybody."""
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        try:
            return self._popen.wait(ENDED_S)
        finally:
            self._popen.kill()
            self._popen.wait()
            self._reader.join()
            if self._popen.stdout:
                self._popen.stdout.close()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            told = status.parse(line)
            if told is not None:
                self._statuses.put(told)
        self._statuses.put(None)


class Worker:
    """A place for a worker: its process may die and come back at the same address."""

    def __init__(self, name: str, role: Role, shape: Shape, folder: Path, nursery: Nursery | None = None) -> None:
        self.name = name
        self.role = role
        self.address = ""
        self.gate = Gate(folder / f"{name}.gate")
        self.link = BadLink(folder / f"{name}.link")
        self._nursery = nursery
        self._shape = shape
        self._log = folder / f"{name}.log"
        self._config = WorkerConfig(role=role, model=str(shape.checkpoint), threads=1, **dict(shape.worker))
        self.process = self._start()

    def wait_ready(self) -> None:
        self.address = str(self.process.wait_ready()["address"])
        self._config = self._config.model_copy(update={"port": int(self.address.rpartition(":")[2])})

    def kill(self) -> None:
        self.process.kill()

    def restart(self) -> None:
        """After `kill`: a new life at the old address."""
        self.process = self._start()
        self.wait_ready()

    def become(self, role: Role) -> None:
        """After its end: a new life with another role at the old address."""
        self.role = role
        self._config = self._config.model_copy(update={"role": role})
        self.restart()

    def _start(self) -> Process:
        module = "tests.support.gated_worker" if self._shape.gated else "baton.cli.worker"
        environ = {GATE_VARIABLE: str(self.gate.path), LINK_VARIABLE: str(self.link.path)}
        return start(self.name, module, self._config, self._log, environ, self._nursery)


class Cluster:
    """A router over `prefill` and `decode` workers, all ready. `url` is the HTTP door, `grpc` the gRPC door's address."""

    def __init__(self, shape: Shape, folder: Path) -> None:
        self.shape = shape
        self._folder = folder
        self._nursery = _nursery() if shape.forked else None
        self.prefill = [Worker(f"prefill-{i}", Role.PREFILL, shape, folder, self._nursery) for i in range(shape.prefill)]
        self.decode = [Worker(f"decode-{i}", Role.DECODE, shape, folder, self._nursery) for i in range(shape.decode)]
        for worker in self.workers:
            worker.wait_ready()
        self._start_router()
        self._baseline = self.settled()

    def restart_router(self) -> None:
        """After the router ended: a new life at new addresses, which knows nothing of the old one."""
        self.http.close()
        self._start_router()

    def _start_router(self) -> None:
        workers = () if self.shape.registers else tuple(worker.address for worker in self.workers)
        config = RouterConfig(workers=workers, port=0, grpc_port=0, **dict(self.shape.router))
        self.router = start("router", "router.main", config, self._folder / "router.log", nursery=self._nursery)
        doors = self.router.wait_ready()
        self.url, self.grpc = f"http://{doors['address']}", str(doors["grpc_address"])
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)
        self.model = self.http.get("/v1/models").raise_for_status().json()["data"][0]["id"]

    def start(self, name: str, module: str, config: Config, log: Path) -> Process:
        """One more process beside the cluster's own, as quickly as those; the caller stops it."""
        return start(name, module, config, log, nursery=self._nursery)

    @property
    def workers(self) -> list[Worker]:
        return [*self.prefill, *self.decode]

    def metrics(self) -> dict[str, float]:
        """Every series of the router's /metrics by its name and labels."""
        lines = self.http.get("/metrics").raise_for_status().text.splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))}

    def gauges(self) -> dict[str, float]:
        return {name: value for name, value in self.metrics().items() if name.startswith(IDLE_GAUGES)}

    def settled(self) -> dict[str, float]:
        """The gauges once every worker is in rotation and has reported its pool."""
        count = len(self.workers)

        def complete(gauges: dict[str, float]) -> bool:
            ready = [value for name, value in gauges.items() if name.startswith("baton_worker_ready")]
            return ready == [1.0] * count

        return self._until(complete, "every worker is in rotation")

    def assert_idle(self) -> None:
        """Every worker in rotation and every gauge at the value it had before the first request, within a bound."""
        self._until(lambda gauges: gauges == self._baseline, f"the gauges are back at {self._baseline}")

    def assert_serving(self) -> None:
        """Healthy, and a small request is answered; the `scripted` checkpoint's answer is known."""
        assert self.http.get("/health").status_code == 200
        body = {"model": self.model, "prompt": "A", "max_tokens": 3, "temperature": 0}
        text = self.http.post("/v1/completions", json=body).raise_for_status().json()["choices"][0]["text"]
        assert text == "bcd" or self.model != "scripted"

    def logs(self) -> list[str]:
        """What every process of the cluster has logged."""
        return [log.read_text() for log in sorted(self._folder.glob("*.log"))]

    def stop(self) -> None:
        """Stops the router, then the workers, and fails if one of them did not end well."""
        self.http.close()
        codes = {process.name: process.stop() for process in [self.router, *(worker.process for worker in self.workers)]}
        assert all(code == 0 for code in codes.values()), f"exit statuses {codes}"

    def _until(self, condition, aim: str) -> dict[str, float]:
        deadline = time.monotonic() + IDLE_S
        while not condition(gauges := self.gauges()):
            if time.monotonic() > deadline:
                raise AssertionError(f"after {IDLE_S:g} s it is not so that {aim}: {gauges}")
            time.sleep(0.05)
        return gauges


def start(
    name: str, module: str, config: Config, log: Path, environ: dict[str, str] | None = None, nursery: Nursery | None = None
) -> Process:
    """Starts one of our processes from its config, as `baton serve` does."""
    return Process(name, module, to_argv(config), log, _environ() | (environ or {}), nursery)


def _environ() -> dict[str, str]:
    return child_environ(TOKEN) | {"OMP_NUM_THREADS": "1"}


@functools.cache
def _nursery() -> Nursery:
    """One for the test session; it dies with it."""
    nursery = Nursery(ROOT, _environ())
    atexit.register(nursery.close)
    return nursery


@contextlib.contextmanager
def running(shape: Shape, folder: Path) -> Iterator[Cluster]:
    """A cluster of one's own, stopped at the end."""
    cluster = Cluster(shape, folder)
    try:
        yield cluster
    finally:
        cluster.stop()
