"""Clients that leave, and commits that come too late: both workers stop and give their blocks back at once."""

from __future__ import annotations

import asyncio
import random
import socket
from contextlib import ExitStack

import httpx
import pytest

from baton.cluster.config import Limits
from tests.faults.load import try_once
from tests.faults.talk import counted, reference, stopped_at, until, words
from tests.support.asking import http
from tests.support.link import COMMIT, Damage
from tests.support.processes import Cluster

CANCELLED = 'baton_requests_total{outcome="cancelled"}'


def leases(cluster: Cluster) -> float:
    return sum(value for name, value in cluster.metrics().items() if name.startswith("baton_worker_num_leases"))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("at", ["prefill step", "message", "decode step"])
async def test_f16_the_client_leaves(faulty, random_model, at, stream):
    """Before prefill, while KV is sent, in the middle of the answer."""
    cluster = faulty(random_model, 1, 1)
    prefill, decode = cluster.prefill[0], cluster.decode[0]
    gate = {"prefill step": prefill.gate, "message": prefill.link.gate, "decode step": decode.gate}[at]
    prompt = words(random.Random(at + str(stream)), 300)
    fields = {"model": cluster.model, "prompt": prompt, "max_tokens": 2000, "temperature": 0}
    cancelled = counted(cluster, CANCELLED) if CANCELLED in cluster.metrics() else 0
    with ExitStack() as stack:
        stack.enter_context(gate.limited(2))
        asked = asyncio.create_task(try_once(cluster, fields, stream=stream))
        await stopped_at([gate], asked)
        asked.cancel()
        await asyncio.wait([asked])
        await until(lambda: cluster.metrics().get(CANCELLED, 0) == cancelled + 1, "it is counted")
        await until(lambda: not leases(cluster), "both workers have heard of it")
        steps = decode.gate.steps
        stack.close()
    cluster.assert_idle()
    assert decode.gate.steps <= steps + 1


async def test_f16_a_reader_that_stops_reading(faulty, scripted):
    """Its buffer fills, it is cut, and others do not wait for it."""
    cluster = faulty(scripted, 1, 1, router={"limits": Limits(stream_buffer_bytes=4096)})
    fields = {
        "model": cluster.model,
        "prompt": "0",
        "max_tokens": 4000,
        "temperature": 0,
        "logprobs": 20,
        "n": 4,
        "stream": True,
    }
    small = httpx.AsyncHTTPTransport(socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)])
    async with (
        httpx.AsyncClient(base_url=cluster.url, transport=small, timeout=60) as client,
        client.stream("POST", "/v1/completions", json=fields) as response,
    ):
        assert response.status_code == 200
        await until(lambda: cluster.metrics()["baton_num_requests_running"] == 0, "it was cut")
        assert cluster.metrics()[CANCELLED] == 1
        short = {"model": cluster.model, "prompt": "A", "max_tokens": 50, "temperature": 0}
        assert (await try_once(cluster, short)).text == "bcdefghij"


async def test_f15_decode_refuses_what_prefill_has_finished(faulty, random_model):
    """A commit that arrives damaged: prefill lets its blocks go at once, and begins again."""
    cluster = faulty(random_model, 1, 1)
    fields = {"model": cluster.model, "prompt": words(random.Random(15), 100), "max_tokens": 30, "temperature": 0}
    link = cluster.prefill[0].link
    link.damage(Damage.FLIP, 1, COMMIT)
    assert await try_once(cluster, fields) == await reference(cluster, fields)
    assert link.damages_left == 0


async def test_f15_the_client_leaves_before_the_commit(faulty, random_model):
    """Both sides hold all of the prompt's blocks; a second request needs them."""
    cluster = faulty(random_model, 1, 1, worker={"kv_blocks": 24})
    rng = random.Random(16)
    fields = {"model": cluster.model, "prompt": words(rng, 250), "max_tokens": 50, "temperature": 0}
    link = cluster.prefill[0].link.gate
    with link.limited(3):
        asked = asyncio.create_task(try_once(cluster, fields))
        await stopped_at([link], asked)
        asked.cancel()
        await asyncio.wait([asked])
    other = fields | {"prompt": words(rng, 250)}
    assert await try_once(cluster, other) == await reference(cluster, other)


async def test_many_leave_at_once(faulty, scripted):
    cluster = faulty(scripted, 1, 1)
    fields = {"model": cluster.model, "prompt": "0", "max_tokens": 3000, "temperature": 0}
    async with http(cluster) as client:
        asked = [asyncio.create_task(_read_some(client, fields, i)) for i in range(24)]
        await asyncio.gather(*asked)
    cluster.assert_idle()


async def _read_some(client: httpx.AsyncClient, fields, num_lines: int) -> None:
    async with client.stream("POST", "/v1/completions", json=fields | {"stream": True}) as response:
        lines = response.aiter_lines()
        for _ in range(num_lines):
            await anext(lines)
