"""A drain that does not end by itself: requests are ended with an error that their clients see, and the exit status tells."""

from __future__ import annotations

import asyncio
import signal

import pytest

from baton.wire.types import Timeouts
from tests.faults.talk import until
from tests.support.asking import http
from tests.support.processes import Cluster

BODY = {"prompt": "x" * 40, "max_tokens": 40, "ignore_eos": True, "temperature": 0, "stream": True}


async def lines_of(cluster: Cluster) -> list[str]:
    """All lines of a stream, to its end."""
    async with (
        http(cluster) as client,
        client.stream("POST", "/v1/completions", json=BODY | {"model": cluster.model}) as response,
    ):
        return [line async for line in response.aiter_lines() if line]


@pytest.mark.parametrize(("drain_s", "num_signals", "status"), [(0.2, 1, 1), (600.0, 2, 128 + signal.SIGINT)])
async def test_streams_end_with_an_error_and_the_status_tells(
    faulty, random_model, drain_s: float, num_signals: int, status: int
) -> None:
    cluster: Cluster = faulty(random_model, 1, 1, router=(("timeouts", Timeouts(drain_s=drain_s)),))
    gate = cluster.decode[0].gate
    with gate.limited(3):
        stream = asyncio.create_task(asyncio.wait_for(lines_of(cluster), 60))
        await until(lambda: gate.occupied, "decode waits")
        cluster.router.signal(signal.SIGTERM)
        for _ in range(num_signals - 1):
            await until(lambda: cluster.http.get("/readyz").status_code == 503, "the router drains")
            cluster.router.signal(signal.SIGTERM)
        lines = await stream
        assert await asyncio.to_thread(cluster.router.wait) == status
    assert "shutting down" in lines[-1]
    assert '"service_unavailable_error"' in lines[-1]
    cluster.restart_router()
