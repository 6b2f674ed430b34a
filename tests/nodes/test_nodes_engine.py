"""A worker whose engine has failed: it says so in every way there is, and ends."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from node_support import LIMIT_S, TOKEN, Script, linked, spec

from baton.cli.worker import Hooks, serve
from baton.cluster.config import WorkerConfig
from baton.cluster.lifecycle import RunError, Shutdown
from baton.wire.link_client import LinkDied
from baton.wire.servers import WORKER
from baton.wire.types import Failed, Role
from tests.support.checkpoints import random_llama

STATUS = health_pb2.HealthCheckResponse


def break_down() -> None:
    raise RuntimeError("the device is gone")


async def address_of(capsys: pytest.CaptureFixture[str]) -> str:
    """What the worker's ready line says, once it is there."""
    said = ""
    async with asyncio.timeout(LIMIT_S):
        while '"ready"' not in said:
            await asyncio.sleep(0.01)
            said += capsys.readouterr().out
    return str(json.loads(said.splitlines()[-1])["address"])


async def test_a_worker_does_not_outlive_its_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(random_llama(tmp_path / "random"))
    config = WorkerConfig(role=Role.PREFILL, model=model, kv_blocks=16, block_size=16, threads=1, cluster_token=TOKEN)
    life = asyncio.create_task(serve(config, Shutdown(), Hooks(step_gate=break_down)))
    address = await address_of(capsys)
    async with linked(address) as node, grpc.aio.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=WORKER), timeout=LIMIT_S)
        assert (await health.read()).status == STATUS.SERVING
        script = Script(spec(20, max_tokens=1))
        script.prefill(node, None)
        assert (await health.read()).status == STATUS.NOT_SERVING
        ending = await script.until((Failed, LinkDied))
        assert isinstance(ending, LinkDied) or ending.retryable
        with pytest.raises(RunError, match="the engine failed: RuntimeError: the device is gone"):
            await asyncio.wait_for(life, LIMIT_S)
        await node.until(lambda: not node.link.up)
