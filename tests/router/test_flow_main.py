"""The router as a process: it says where it is, drains at the first signal, goes at the second, and names a taken port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator

import pytest

PATIENCE_S = 60.0


@contextlib.asynccontextmanager
async def router(*flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = os.environ | {"BATON_CLUSTER_TOKEN": "t" * 20, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "router.main", *flags]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def status(process: asyncio.subprocess.Process) -> dict[str, str]:
    return json.loads(await process.stdout.readline())


async def get(address: str, path: str) -> int:
    def ask() -> int:
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=PATIENCE_S) as response:
                return response.status
        except urllib.error.HTTPError as error:
            return error.code

    return await asyncio.to_thread(ask)


FREE = ("--port", "0", "--grpc-port", "0", "--timeouts", "{replace_s: 0.1}")


async def test_a_router_without_workers_is_alive_and_not_ready() -> None:
    async with router(*FREE) as process:
        said = await status(process)
        assert said["status"] == "ready"
        assert said["address"] != said["grpc_address"]
        assert await get(said["address"], "/livez") == 200
        assert await get(said["address"], "/readyz") == 503
        assert await get(said["address"], "/metrics") == 200
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


@pytest.mark.parametrize("flag", ["--port", "--grpc-port"])
async def test_a_taken_port_is_named(flag: str) -> None:
    other = "--grpc-port" if flag == "--port" else "--port"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with router(flag, str(port), other, "0") as process:
            said = await status(process)
            assert said["status"] == "failed"
            assert str(port) in said["error"]
            assert flag in said["error"]
            assert await process.wait() != 0
            assert b"Traceback" not in await process.stderr.read()
