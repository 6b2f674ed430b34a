"""A worker as a process: status lines, a taken port, drain and its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from node_support import LIMIT_S, TOKEN, Node, Script, linked, spec

from baton.wire.types import HandedOff, Refused, Reserved
from tests.support.checkpoints import random_llama


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_llama(tmp_path_factory.mktemp("process") / "random")


class Process:
    """`python -m baton.cli.worker` and what it says."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self.child = child

    async def status(self) -> Mapping[str, Any]:
        """The next status line that is not about loading."""
        assert self.child.stdout is not None
        async with asyncio.timeout(LIMIT_S):
            while (line := await self.child.stdout.readline()) and json.loads(line)["status"] == "loading":
                pass
        said: Mapping[str, Any] = json.loads(line)
        return said

    async def exit_status(self) -> int:
        async with asyncio.timeout(LIMIT_S):
            return await self.child.wait()


@asynccontextmanager
async def process(checkpoint: Path, *arguments: str) -> AsyncIterator[Process]:
    """A worker over `checkpoint`; killed at the end if it still runs."""
    flags = ("--model", str(checkpoint), "--kv-blocks", "16", "--block-size", "16", "--threads", "1", *arguments)
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "baton.cli.worker", *flags),
        env={**os.environ, "BATON_CLUSTER_TOKEN": TOKEN},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield Process(child)
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def test_the_first_signal_drains_and_the_process_ends_well(checkpoint: Path) -> None:
    async with process(checkpoint, "--role", "both") as worker:
        ready = await worker.status()
        assert (ready["status"], ready["role"]) == ("ready", "both")
        async with linked(ready["address"]) as node:
            script, late = Script(spec(20, max_tokens=1)), Script(spec(20))
            script.prefill(node, None)
            await script.until(HandedOff)
            worker.child.send_signal(signal.SIGTERM)
            await refused(node, late)
            assert worker.child.returncode is None  # a lease is still here
            script.end()
            late.end()
            assert await worker.exit_status() == 0


async def refused(node: Node, script: Script) -> None:
    """Returns when the worker refuses to start anything: it may hear us before its signal."""
    while isinstance(answer := await script.reserve(node), Reserved):
        script.end()
        script.lease = os.urandom(16)
    assert isinstance(answer, Refused)
    assert answer.reason == "draining"


async def test_a_second_signal_ends_it_at_once(checkpoint: Path) -> None:
    async with process(checkpoint, "--role", "prefill") as worker:
        ready = await worker.status()
        async with linked(ready["address"]) as node:
            script = Script(spec(20, max_tokens=1))
            script.prefill(node, None)
            await script.until(HandedOff)
            worker.child.send_signal(signal.SIGTERM)
            await node.until(lambda: node.link.load.draining)
            worker.child.send_signal(signal.SIGTERM)
            assert await worker.exit_status() != 0


async def test_a_taken_port_fails_at_once_and_is_named(checkpoint: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with process(checkpoint, "--port", str(port)) as worker:
            said = await worker.status()
            assert said["status"] == "failed"
            assert f"127.0.0.1:{port}" in said["error"]
            assert await worker.exit_status() == 1


async def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    async with process(tmp_path / "nothing") as worker:
        said = await worker.status()
        assert said["status"] == "failed"
        assert "nothing" in said["error"]
        assert await worker.exit_status() == 1
