"""A cluster to measure: `baton serve` as a child on free ports, its processes' CPU time, a client that times tokens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

READY_S = 120.0
ANSWER_S = 600.0


@dataclass
class Cluster:
    """A running `baton serve`. `startup_s`: from its start to the printed address."""

    url: str
    pid: int
    startup_s: float

    def cpu_s(self, module: str) -> float:
        """CPU seconds so far of the children that run `module`."""
        tick = os.sysconf("SC_CLK_TCK")
        return sum(_ticks(pid) for pid in _descendants(self.pid) if module in _command(pid)) / tick


@dataclass
class Answer:
    """One streamed answer: when it was sent, when each of its tokens came, and what the server says of itself."""

    sent: float
    tokens: list[float] = field(default_factory=list)
    text: str = ""
    timeline: dict[str, Any] = field(default_factory=dict)

    @property
    def ttft_s(self) -> float:
        return self.tokens[0] - self.sent

    @property
    def gaps_s(self) -> list[float]:
        return [after - before for before, after in zip(self.tokens, self.tokens[1:], strict=False)]


@contextlib.asynccontextmanager
async def serve(*flags: str) -> AsyncIterator[Cluster]:
    """`baton serve` with `flags`, on free ports; stopped at the end."""
    port, grpc_port = _free_port(), _free_port()
    began = time.monotonic()
    command = [sys.executable, "-m", "baton.cli.main", "serve", *flags, "--port", str(port), "--grpc-port", str(grpc_port)]
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL)
    try:
        await asyncio.wait_for(_until_ready(child), READY_S)
        yield Cluster(f"http://127.0.0.1:{port}", child.pid, time.monotonic() - began)
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        await child.wait()


async def stream(client: httpx.AsyncClient, url: str, prompt: object, max_tokens: int, **fields: object) -> Answer:
    """One streamed completion. Every event with text or a token counts once; ignore_eos gives exactly `max_tokens`."""
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True, **fields}
    answer = Answer(time.perf_counter())
    async with client.stream("POST", f"{url}/v1/completions", json=body, timeout=ANSWER_S) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            now, event = time.perf_counter(), json.loads(line[6:])
            answer.timeline = event.get("timeline") or answer.timeline
            if event["choices"]:
                answer.text += event["choices"][0]["text"]
                answer.tokens.append(now)
    return answer


def median(values: Sequence[float]) -> float:
    return quantile(values, 0.5)


def quantile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


async def _until_ready(child: asyncio.subprocess.Process) -> None:
    if child.stdout is None:
        raise RuntimeError("the server's output is not piped")
    while line := await child.stdout.readline():
        if b"/v1" in line and b"Baton serves" in line:
            return
    raise RuntimeError("the server ended before it was ready")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _descendants(pid: int) -> list[int]:
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children + [below for child in children for below in _descendants(child)]


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def _ticks(pid: int) -> int:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return int(user) + int(system)
