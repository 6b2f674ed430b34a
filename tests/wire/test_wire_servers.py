"""The worker's server: who gets in, which ports it takes, which pings it stands."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from link_support import LIMIT_S, Worker

from baton.wire.channel import TOKEN_KEY
from baton.wire.pb import worker_pb2_grpc
from baton.wire.servers import WORKER, AddressTaken, WorkerServer


async def test_a_taken_port_is_named() -> None:
    async with Worker() as worker:
        host, port = worker.server.address.split(":")
        with pytest.raises(AddressTaken, match=worker.server.address):
            WorkerServer(host, int(port), "token")


async def test_health_needs_no_token_and_tells_of_a_drain() -> None:
    async with Worker() as worker, grpc.aio.insecure_channel(worker.server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        question = health_pb2.HealthCheckRequest(service=WORKER)
        assert (await stub.Check(question, timeout=LIMIT_S)).status == health_pb2.HealthCheckResponse.SERVING
        await worker.server.drain()
        assert (await stub.Check(question, timeout=LIMIT_S)).status == health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.parametrize("metadata", [(), ((TOKEN_KEY, ""),), ((TOKEN_KEY, "a toke"),)])
@pytest.mark.parametrize("method", ["/baton.v1.Worker/Link", "/baton.v1.KvTransfer/Push", "/baton.v1.None/Such"])
async def test_nothing_else_is_reached_without_the_token(method: str, metadata: tuple[tuple[str, str], ...]) -> None:
    async with Worker() as worker, grpc.aio.insecure_channel(worker.server.address) as channel:
        call = channel.stream_stream(method, None, None)(iter([b""]), metadata=metadata, timeout=LIMIT_S)
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_the_first_message_must_be_a_hello() -> None:
    async with Worker() as worker, grpc.aio.insecure_channel(worker.server.address) as channel:
        call = worker_pb2_grpc.WorkerStub(channel).Link(metadata=((TOKEN_KEY, "a token"),), timeout=LIMIT_S)
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_client_that_pings_keeps_its_stream() -> None:
    """C187, quickly: at a ping a second a server with default options ends every stream after three seconds."""
    pinging = {"grpc.keepalive_time_ms": 100, "grpc.keepalive_permit_without_calls": 1, "grpc.http2.max_pings_without_data": 0}
    options = tuple(pinging.items())
    async with Worker() as worker, grpc.aio.insecure_channel(worker.server.address, options=options) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=WORKER))
        await watch.read()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await watch.read()
