"""Clients that leave, in every way and at every moment, and clients that give their requests one id."""

import asyncio
import socket
from contextlib import aclosing, suppress
from urllib.parse import urlsplit

import pytest

from baton.client import AsyncClient
from baton.wire.errors import DeadlineExceeded
from tests.support.asking import http
from tests.support.processes import Shape

NUM_CLIENTS = 8
ENDLESS = {"prompt": "0", "max_tokens": 4000, "temperature": 0}
SLOW_STEP_S = 0.02
"""So an endless request takes 80 s, unless it ends with its client."""


@pytest.fixture
def slow(clusters, scripted):
    """Four slots for eight clients, room for all that they ask, and steps that take their time."""
    worker = (("kv_blocks", 1100), ("block_size", 16), ("max_num_seqs", 4))
    cluster = clusters(Shape(scripted, gated=True, forked=True, worker=worker))
    with cluster.decode[0].gate.slowed(SLOW_STEP_S):
        yield cluster
        assert_nothing_runs(cluster)


def assert_nothing_runs(cluster):
    """Idle, and an engine that has steps for a new request only: if others ran on, it would not stand still around it."""
    cluster.assert_idle()
    gate = cluster.decode[0].gate
    for _ in range(2):
        before = gate.steps
        cluster.assert_serving()
        cluster.assert_idle()
        assert gate.steps - before <= 3


async def many(leaving):
    await asyncio.gather(*(leaving() for _ in range(NUM_CLIENTS)))


def log_lines(cluster):
    return cluster.router.log.read_text().splitlines()


async def test_c516_clients_that_leave_in_mid_stream(slow):
    before = len(log_lines(slow))

    async def read_five_and_leave():
        async with http(slow) as client, client.stream("POST", "/v1/completions", json=ENDLESS | {"stream": True}) as answer:
            chunks = (line async for line in answer.aiter_lines() if line)
            for _ in range(5):
                assert (await anext(chunks)).startswith("data: ")

    await many(read_five_and_leave)
    slow.assert_idle()
    lines = log_lines(slow)[before:]
    assert len([line for line in lines if "client left" in line]) == NUM_CLIENTS
    assert len(lines) < 3 * NUM_CLIENTS


@pytest.mark.parametrize("stream", [True, False])
async def test_c516_clients_that_leave_while_prefill_works(slow, stream):
    gate = slow.prefill[0].gate
    with gate.held():
        async with http(slow) as client:
            asking = [asyncio.create_task(client.post("/v1/completions", json=ENDLESS | {"stream": stream})) for _ in range(8)]
            await asyncio.to_thread(gate.wait_occupied)
            leave(asking)
            await asyncio.wait(asking)
    slow.assert_idle()


async def test_c516_clients_that_leave_a_plain_request(slow):
    gate = slow.decode[0].gate
    async with http(slow) as client:
        asking = [asyncio.create_task(client.post("/v1/completions", json=ENDLESS)) for _ in range(NUM_CLIENTS)]
        with gate.limited(20):
            await asyncio.to_thread(gate.wait_occupied)
            leave(asking)
            await asyncio.wait(asking)


async def test_c516_grpc_clients_that_cancel(slow):
    async def read_five_and_cancel():
        async with AsyncClient(slow.grpc) as client, aclosing(client.generate("0", max_tokens=4000)) as updates:
            for _ in range(5):
                await anext(updates)

    await many(read_five_and_cancel)


async def test_c516_grpc_clients_whose_time_is_up(slow):
    async def wait_one_second():
        async with AsyncClient(slow.grpc, deadline_s=1.0) as client:
            with pytest.raises(DeadlineExceeded):
                await client.complete("0", max_tokens=4000)

    await many(wait_one_second)


def leave(asking):
    for one in asking:
        one.cancel()


async def test_c606_two_requests_with_one_id(scripted_pair):
    digits = ("1234567890" * 30)[:300]
    async with http(scripted_pair, headers={"x-request-id": "same"}) as client:
        bodies = [{"prompt": "0", "max_tokens": 300}, {"prompt": "A", "max_tokens": 20}]
        answers = await asyncio.gather(*(client.post("/v1/completions", json=body | {"temperature": 0}) for body in bodies))
        assert [answer.json()["choices"][0]["text"] for answer in answers] == [digits, "bcdefghij"]
        for _ in range(50):
            answer = await client.post("/v1/completions", json={"prompt": "A", "max_tokens": 3, "temperature": 0})
            assert answer.json()["choices"][0]["text"] == "bcd"
    assert all(value >= 0 for value in scripted_pair.metrics().values())


def test_c606_a_huge_id_is_refused(scripted_pair):
    url = urlsplit(scripted_pair.url)
    with socket.create_connection((url.hostname, url.port), timeout=60) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-request-id: ")
        with suppress(ConnectionError):  # it is refused while it is sent
            connection.sendall(b"x" * (1 << 20) + b"\r\n\r\n")
        answer = connection.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 431")
    assert b"xxxx" not in answer
