"""C187: connections are pinged every ten seconds through long silences, and nobody takes offence. Minutes of waiting."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest

from baton.wire.pb import inference_pb2 as pb
from baton.wire.pb import inference_pb2_grpc
from tests.faults.talk import counted, until

FIRST_TOKEN_S, IDLE_S = 60, 90
PINGS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_c187_pings_through_a_long_prefill_and_a_long_silence(faulty, scripted):
    """The same pings run between router and workers, and between prefill and decode: no link breaks either."""
    cluster = faulty(scripted, 1, 1)
    lives = {name: value for name, value in cluster.metrics().items() if name.startswith("baton_worker_ready")}
    async with grpc.aio.insecure_channel(cluster.grpc, options=PINGS) as channel:
        states: list[grpc.ChannelConnectivity] = []
        watching = asyncio.create_task(_watch(channel, states))
        stub = inference_pb2_grpc.InferenceStub(channel)
        with cluster.prefill[0].gate.slowed(FIRST_TOKEN_S):
            first = asyncio.create_task(_ask(stub, cluster.model))
            await until(lambda: cluster.prefill[0].gate.steps > 0, "prefill has begun")
            assert await first == "bcdefghij"
        await asyncio.sleep(IDLE_S)
        assert await _ask(stub, cluster.model) == "bcdefghij"
        watching.cancel()
    assert states.count(grpc.ChannelConnectivity.READY) == 1, states
    assert counted(cluster, "baton_migration_total") == 0
    assert {name: value for name, value in cluster.metrics().items() if name.startswith("baton_worker_ready")} == lives
    for log in cluster.logs():
        assert "GOAWAY" not in log
        assert "too_many_pings" not in log
        assert "link to" not in log


async def _ask(stub: inference_pb2_grpc.InferenceAsyncStub, model: str) -> str:
    request = pb.GenerateRequest(model=model, prompt="A", sampling=pb.Sampling(max_tokens=50, temperature=0))
    return "".join([delta.text async for response in stub.Generate(request) for delta in response.choices])


async def _watch(channel: grpc.aio.Channel, states: list[grpc.ChannelConnectivity]) -> None:
    """Every state that the connection passes through."""
    state = channel.get_state(try_to_connect=True)
    while True:
        states.append(state)
        await channel.wait_for_state_change(state)
        state = channel.get_state()
