"""Requests that run while a test breaks something, and what the test waits for meanwhile. Every wait is bounded."""

from __future__ import annotations

import asyncio
import random
import string
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any, TypeVar

from tests.support.answers import Answer
from tests.support.asking import ask_alone, http, path_of, streamed
from tests.support.gate import Gate
from tests.support.processes import Cluster, Worker

WAIT_S = 30.0
POLL_S = 0.01
BUSY = ("baton_worker_num_leases", "baton_worker_num_prefills", "baton_worker_num_decodes")
T = TypeVar("T")
Fields = Mapping[str, Any]


async def until(condition: Callable[[], T], what: str, wait_s: float = WAIT_S) -> T:
    """The first truthy value of `condition`."""
    deadline = time.monotonic() + wait_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"within {wait_s:g} s it never happened that {what}"
        await asyncio.sleep(POLL_S)
    return value


@asynccontextmanager
async def talking(cluster: Cluster, fields: Fields, bound_s: float = 60.0) -> AsyncIterator[asyncio.Task[Answer]]:
    """A streamed request that runs while the context is open; the task's result is its answer."""
    task = asyncio.create_task(asyncio.wait_for(streamed(cluster, fields), bound_s))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def stopped_at(gates: Iterable[Gate], task: asyncio.Task[Answer]) -> Gate | None:
    """The gate at which something waits, or None if the request ended without."""
    gates = tuple(gates)
    await until(lambda: task.done() or any(gate.occupied for gate in gates), "a step came to a gate or the answer ended")
    return next((gate for gate in gates if gate.occupied), None)


@contextmanager
def limited(gates: Iterable[Gate], num_steps: int) -> Iterator[None]:
    with ExitStack() as stack:
        for gate in gates:
            stack.enter_context(gate.limited(num_steps))
        yield


def owner(workers: Iterable[Worker], gate: Gate) -> Worker:
    """The worker whose steps or KV messages pass `gate`."""
    return next(worker for worker in workers if gate in (worker.gate, worker.link.gate))


def counted(cluster: Cluster, name: str) -> float:
    """A metric's sum over all its labels."""
    values = [value for series, value in cluster.metrics().items() if series == name or series.startswith(name + "{")]
    assert values or "{" not in name, name
    return sum(values)


def busy(cluster: Cluster) -> list[Worker]:
    """Those that have a lease, as far as the router knows."""
    leases = [name for name, value in cluster.metrics().items() if name.startswith(BUSY) and value]
    return [worker for worker in cluster.workers if any(worker.address in name for name in leases)]


def words(rng: random.Random, length: int) -> str:
    """A prompt that no other test has sent."""
    return "".join(rng.choices(string.ascii_letters + string.digits + " ", k=length))


async def reference(cluster: Cluster, fields: Fields) -> Answer:
    """What an undisturbed process says."""
    return await ask_alone(cluster, fields)


async def status_and_body(cluster: Cluster, fields: Fields) -> tuple[int, Mapping[str, str], dict[str, Any]]:
    """A plain request that may fail: its status, headers and JSON."""
    async with http(cluster) as client:
        response = await client.post(path_of(fields), json=dict(fields))
        return response.status_code, response.headers, response.json()
