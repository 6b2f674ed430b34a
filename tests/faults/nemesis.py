"""Breaks things at random under load and checks every answer: `python -m tests.faults.nemesis --seconds 120 --seed 7`.

The schedule of faults follows from the seed; one line of JSON is printed for each. Of each role one worker is always left
alone, so that a request can go on. An answer is the right one, or rarely an error in its right form; at the end all is idle.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from baton.wire.types import Role, Timeouts
from tests.faults.load import Load, requests, streams
from tests.faults.talk import until
from tests.support import checkpoints
from tests.support.link import FOR_EVER, Damage
from tests.support.processes import Cluster, Shape, Worker, running

TIMEOUTS = Timeouts(heartbeat_s=0.3, router_grace_s=0.4, worker_grace_s=0.8, transfer_stall_s=1.0)
NUM_STREAMS = 8
MAX_FAILURES = 0.05
"""Of all requests: one that is hit three times is told so."""


@dataclass(frozen=True)
class Report:
    num_faults: int
    num_answers: int
    num_failures: int


class Nemesis:
    """One fault at a time at the workers of one role, each undone before the next begins."""

    def __init__(self, cluster: Cluster, role: Role, seed: int) -> None:
        self._cluster = cluster
        self._workers = [worker for worker in cluster.workers if worker.role is role]
        self._faults = [self._kill, self._kill, self._pause, self._slow]
        if role is Role.PREFILL:
            self._faults += [self._damage, self._cut]
        self._rng = random.Random(f"{role} {seed}")
        self.num_faults = 0

    async def strike_until(self, ends_at: float) -> None:
        while time.monotonic() < ends_at:
            await self._strike(self._rng.choice(self._workers), self._rng.choice(self._faults))
            await asyncio.sleep(self._rng.random() * 0.5)

    async def _strike(self, worker: Worker, fault: Callable[[Worker, float], Awaitable[None]]) -> None:
        seconds = self._rng.choice((0.05, 0.3, 0.7, 1.5, 2.5))
        self.num_faults += 1
        print(json.dumps({"fault": fault.__name__[1:], "worker": worker.name, "seconds": seconds}), flush=True)
        await fault(worker, seconds)
        ready = f'baton_worker_ready{{role="{worker.role}",worker="{worker.address}"}}'
        await until(lambda: self._cluster.metrics()[ready] == 1, f"{worker.name} is in rotation again")

    async def _kill(self, worker: Worker, seconds: float) -> None:
        worker.kill()
        await asyncio.sleep(seconds)
        await asyncio.to_thread(worker.restart)

    async def _pause(self, worker: Worker, seconds: float) -> None:
        worker.process.signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        worker.process.signal(signal.SIGCONT)

    async def _damage(self, worker: Worker, seconds: float) -> None:
        worker.link.damage(self._rng.choice(list(Damage)[1:]), self._rng.randrange(1, 6), self._rng.randrange(4))
        await asyncio.sleep(seconds)
        worker.link.repair()

    async def _cut(self, worker: Worker, seconds: float) -> None:
        decode = self._rng.choice(self._cluster.decode)
        worker.link.damage(Damage.REFUSE, FOR_EVER, towards=decode.address)
        await asyncio.sleep(seconds)
        worker.link.repair()

    async def _slow(self, worker: Worker, seconds: float) -> None:
        with worker.gate.slowed(0.05), worker.link.gate.slowed(0.1):
            await asyncio.sleep(seconds)


async def torment(cluster: Cluster, seconds: float, seed: int) -> Report:
    """Strikes for `seconds`; fails on the first wrong answer, and if something is left behind."""
    both = [Nemesis(cluster, role, seed) for role in (Role.PREFILL, Role.DECODE)]
    load = Load(await requests(cluster, random.Random(seed), 32, 60))
    ends_at = time.monotonic() + seconds
    async with streams(cluster, load, NUM_STREAMS):
        await asyncio.gather(*(nemesis.strike_until(ends_at) for nemesis in both))
    await asyncio.to_thread(cluster.assert_idle)
    assert len(load.failures) <= MAX_FAILURES * len(load.outcomes), load.failures
    for failure in load.failures:
        print(json.dumps({"failed": failure.error and failure.error["message"]}), flush=True)
    return Report(sum(nemesis.num_faults for nemesis in both), len(load.outcomes), len(load.failures))


def shape_of(checkpoint: Path) -> Shape:
    worker = (("kv_blocks", 128), ("block_size", 16), ("max_step_tokens", 64), ("growth_reserve", 16), ("timeouts", TIMEOUTS))
    return Shape(checkpoint, 2, 2, gated=True, forked=True, worker=worker, router=(("timeouts", TIMEOUTS),))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.nemesis", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(json.dumps(vars(arguments)), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = checkpoints.random_llama(Path(folder) / "random")
        with running(shape_of(checkpoint), Path(folder)) as cluster:
            print(asyncio.run(torment(cluster, arguments.seconds, arguments.seed)))


if __name__ == "__main__":
    main()
