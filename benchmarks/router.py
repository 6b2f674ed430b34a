"""What the router costs, over workers that answer at once: `python -m benchmarks.router`. Ends with one JSON object.

    added p50     a short request's latency through the router, less that of a bare HTTP server asked by the same client;
                  to the first token, and to the end of an answer of two tokens, with tokenising
    CPU           of the router's process, by the scheduler's account, per request and per streamed token
    flat          CPU of a request with many registered workers over that with few, less what their heartbeats cost

Wall time is the machine's as much as the router's, and on a busy machine CPU time grows too: `loop_ms`, the CPU time of a fixed
loop beside each measurement, says by how much. Compare runs with equal `loop_ms`, or interleave them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import secrets
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.serving import median

CONNECTIONS = (1, 16, 64)
SHORT_TOKENS = 2
LONG_TOKENS = 128
FEW_WORKERS = 10
REPEATS = 3
READY_S = 90.0
ANSWER_S = 60.0


@dataclass(frozen=True)
class Bench:
    """A running router over mock workers, and the bare server beside them."""

    port: int
    direct: int
    pid: int

    def cpu_s(self) -> float:
        """CPU seconds of all the router's threads so far."""
        stats = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(stat.read_text().split()[0]) for stat in stats) / 1e9


@dataclass
class Load:
    """What one load brought: latencies in seconds, and events received."""

    first_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)
    num_events: int = 0


class Client(asyncio.Protocol):
    """One connection that asks again and again; parses no more than it must, so that it costs little."""

    END = b"0\r\n\r\n"

    def __init__(self, load: Load) -> None:
        self._load = load
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its base has it
        self._transport = transport

    async def ask(self, body: bytes) -> None:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._answered = self._loop.create_future()
        self._first = True
        self._sent = time.perf_counter()
        self._transport.write(head % len(body) + body)
        await self._answered

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        num_events = data.count(b"data: {")
        self._load.num_events += num_events
        if num_events and self._first:
            self._first = False
            self._load.first_s.append(now - self._sent)
        if data.endswith(self.END):
            self._load.whole_s.append(now - self._sent)
            self._answered.set_result(None)
        elif data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 200"):
            self._answered.set_exception(RuntimeError(data.decode()))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._answered.done():
            self._answered.set_exception(exc or ConnectionResetError())


async def ask(port: int, connections: int, requests: int, max_tokens: int) -> Load:
    """`requests` in all over so many connections, each with one request at a time."""
    load, loop = Load(), asyncio.get_running_loop()
    opened = [await loop.create_connection(lambda: Client(load), "127.0.0.1", port) for _ in range(connections)]
    left = iter(range(requests))

    async def one(client: Client) -> None:
        for i in left:
            prompt = f"Question {i}: what is added to a request by what stands in front of the model?"
            body = {"model": "mock", "prompt": prompt, "max_tokens": max_tokens, "stream": True, "temperature": 0}
            async with asyncio.timeout(ANSWER_S):
                await client.ask(json.dumps(body).encode())

    try:
        await asyncio.gather(*(one(client) for _, client in opened))
    finally:
        for transport, _ in opened:
            transport.close()
    return load


async def measure(bench: Bench, connections: int, requests: int, rounds: int) -> dict[str, float]:
    """Medians over REPEATS: short requests beside direct ones, then long streams for what a token costs."""
    found: list[dict[str, float]] = []
    for _ in range(REPEATS):
        direct = await ask(bench.direct, connections, requests, SHORT_TOKENS)
        start = bench.cpu_s()
        short = await ask(bench.port, connections, requests, SHORT_TOKENS)
        between = bench.cpu_s()
        long = await ask(bench.port, connections, connections * rounds, LONG_TOKENS)
        end = bench.cpu_s()
        per_request = (between - start) / requests
        num_tokens = connections * rounds * (LONG_TOKENS - SHORT_TOKENS)
        found.append(
            {
                "loop_ms": fixed_loop_s() * 1e3,
                "direct_p50_ms": median(direct.whole_s) * 1e3,
                "added_first_p50_ms": (median(short.first_s) - median(direct.first_s)) * 1e3,
                "added_p50_ms": (median(short.whole_s) - median(direct.whole_s)) * 1e3,
                "cpu_us_per_request": per_request * 1e6,
                "cpu_us_per_token": (end - between - per_request * connections * rounds) / num_tokens * 1e6,
                "tokens_per_event": connections * rounds * LONG_TOKENS / long.num_events,
            }
        )
    return {name: round(median([one[name] for one in found]), 3) for name in found[0]}


def fixed_loop_s() -> float:
    """CPU seconds of always the same work."""
    start, table = time.process_time(), dict[int, int]()
    for i in range(200_000):
        table[i & 1023] = table.get(i & 511, 0) + i & 0xFFFF
    return time.process_time() - start


async def flatness(num_pairs: int, requests: int = 400) -> dict[str, float]:
    """CPU of a request with so many pairs registered; heartbeats are measured at rest and taken off."""
    async with running(num_pairs) as bench:
        await ask(bench.port, 16, 64, SHORT_TOKENS)
        begun, start = time.perf_counter(), bench.cpu_s()
        await asyncio.sleep(2.0)
        idle = (bench.cpu_s() - start) / (time.perf_counter() - begun)
        begun, start = time.perf_counter(), bench.cpu_s()
        await ask(bench.port, 16, requests, SHORT_TOKENS)
        busy = bench.cpu_s() - start - idle * (time.perf_counter() - begun)
    return {"workers": 2 * num_pairs, "cpu_us_per_request": round(busy / requests * 1e6), "idle_cpu": round(idle, 4)}


@contextlib.asynccontextmanager
async def running(num_pairs: int, profile: str = "") -> AsyncIterator[Bench]:
    """Mock workers and a router as processes of their own; both are stopped at the end."""
    environ = os.environ | {"BATON_CLUSTER_TOKEN": secrets.token_hex(16)}
    async with contextlib.AsyncExitStack() as stack:
        _, said = await _start(stack, environ, "-m", "benchmarks.mock_workers", "--pairs", str(num_pairs))
        flags = [flag for worker in said["workers"] for flag in ("--worker", worker)]
        measured = ["-m", "cProfile", "-o", profile] if profile else []
        command = [*measured, "-m", "router.main", "--port", "0", "--grpc-port", "0", "--log-level", "error", *flags]
        router, ready = await _start(stack, environ, *command, "--timeouts", f"{{replace_s: {READY_S}}}")
        yield Bench(int(ready["address"].rpartition(":")[2]), said["direct"], router.pid)


async def _start(
    stack: contextlib.AsyncExitStack, environ: dict[str, str], *command: str
) -> tuple[asyncio.subprocess.Process, dict[str, Any]]:
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(sys.executable, *command, stdin=pipe, stdout=pipe, env=environ)
    stack.push_async_callback(_stop, child)
    if child.stdout is None:
        raise RuntimeError("the child's output is not piped")
    async with asyncio.timeout(READY_S):
        return child, json.loads(await child.stdout.readline())


async def _stop(child: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.terminate()
    await child.wait()


async def main(options: argparse.Namespace) -> dict[str, object]:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # each worker costs both processes a few descriptors
    result: dict[str, object] = {}
    async with running(1, options.profile) as bench:
        await ask(bench.port, 16, 200, SHORT_TOKENS)
        for connections in CONNECTIONS:
            requests, rounds = min(100 * connections, 800), max(1, 2 // connections)
            result[f"connections_{connections}"] = await measure(bench, connections, requests, rounds)
    if options.workers:
        few, many = await flatness(FEW_WORKERS // 2), await flatness(options.workers // 2)
        result |= {"few": few, "many": many, "flat": round(many["cpu_us_per_request"] / few["cpu_us_per_request"], 2)}
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=200, help="registered workers to compare with 10; 0: do not")
    parser.add_argument("--profile", default="", help="run the router under cProfile and write its statistics here")
    found = uvloop.run(main(parser.parse_args()))
    for name, value in found.items():
        print(f"{name:16} {value}")
    print(json.dumps(found))
