"""The gRPC door on a real port: answers, errors with their details, ends, health, reflection, pings."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from grpc import StatusCode, aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from baton.client import AsyncClient
from baton.cluster.config import RouterConfig
from baton.wire.errors import InvalidRequest, QueueFull
from baton.wire.inference_server import SERVICE
from baton.wire.pb import inference_pb2 as pb
from baton.wire.pb import inference_pb2_grpc as pb_grpc
from router.grpc_door import serve_grpc
from tests.support.doors import FakeService

ENDLESS: dict[str, Any] = {"prompt": "0", "sampling": {"max_tokens": 4000}}


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
async def port(service: FakeService) -> AsyncIterator[int]:
    async with serve_grpc(service, RouterConfig(grpc_port=0)) as port:
        yield port


@pytest.fixture
async def channel(port: int) -> AsyncIterator[aio.Channel]:
    options = [("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_permit_without_calls", 1)]
    async with aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        yield channel


async def generate(channel: aio.Channel, **fields: Any) -> list[pb.GenerateResponse]:
    return [message async for message in pb_grpc.InferenceStub(channel).Generate(pb.GenerateRequest(**fields), timeout=60)]


async def fault(channel: aio.Channel, **fields: Any) -> tuple[StatusCode, str, dict[str, str]]:
    with pytest.raises(aio.AioRpcError) as error:
        await generate(channel, **fields)
    return error.value.code(), error.value.details() or "", dict(error.value.trailing_metadata())  # type: ignore[arg-type]


async def test_a_prompt_a_chat_and_ids(channel: aio.Channel) -> None:
    *messages, last = await generate(channel, prompt="A", sampling={"max_tokens": 20}, n=2, timeline=True)
    for choice in (0, 1):
        deltas = [delta for message in messages for delta in message.choices if delta.index == choice]
        assert "".join(delta.text for delta in deltas) == "bcdefghij"
        assert [i for delta in deltas for i in delta.token_ids] == [*b"bcdefghij", 257]
        assert [delta.finish_reason for delta in deltas] == [pb.FINISH_REASON_UNSPECIFIED] * 9 + [pb.FINISH_REASON_STOP]
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.cached_tokens) == (2, 20, 1)
    assert [(span.name, span.seconds) for span in last.timeline.spans] == [("queue", 0.25), ("prefill", 0.5)]
    assert len({message.request_id for message in [*messages, last]}) == 1
    assert not any(message.HasField("usage") for message in messages)
    *messages, last = await generate(channel, chat={"messages": [{"role": "user", "content": "hi"}]})
    assert "".join(message.choices[0].text for message in messages) == "OK."
    assert last.usage.prompt_tokens == 8
    assert not last.HasField("timeline")
    *messages, last = await generate(channel, token_ids={"ids": [65]}, sampling={"max_tokens": 1})
    assert messages[-1].choices[0].finish_reason == pb.FINISH_REASON_LENGTH


async def test_logprobs_with_rivals(channel: aio.Channel) -> None:
    first, *_ = await generate(channel, prompt="A", sampling={"max_tokens": 2, "logprobs": 2})
    (entry,) = first.choices[0].logprobs
    assert (entry.token, entry.id, entry.logprob) == (b"b", 98, -0.25)
    assert [rival.id for rival in entry.top] == [98, ord("x")]


async def test_sampling_reaches_the_core_as_it_was_meant(channel: aio.Channel, service: FakeService) -> None:
    sampling = {"temperature": 0.1, "top_p": 0.9, "seed": 7, "logit_bias": {5: -1.5}, "ignore_eos": True, "max_tokens": 2}
    await generate(channel, prompt="A", sampling=sampling, stop=["x"])
    params = service.requests[0].params
    assert (params.temperature, params.top_p, params.seed) == (0.1, 0.9, 7)
    assert (params.logit_bias, params.ignore_eos) == (((5, -1.5),), True)
    assert service.requests[0].stop == ("x",)


async def test_unset_max_tokens_is_what_the_context_leaves(channel: aio.Channel, service: FakeService) -> None:
    await generate(channel, prompt="A")
    assert service.requests[0].params.max_tokens == 4094


@pytest.mark.parametrize(
    ("fields", "code", "param", "detail"),
    [
        ({"prompt": "A", "sampling": {"temperature": 3}}, StatusCode.INVALID_ARGUMENT, "temperature", None),
        ({"prompt": "A", "sampling": {"temperature": float("nan")}}, StatusCode.INVALID_ARGUMENT, "temperature", None),
        ({"prompt": ""}, StatusCode.INVALID_ARGUMENT, "prompt", None),
        ({}, StatusCode.INVALID_ARGUMENT, "prompt", None),
        ({"chat": {}}, StatusCode.INVALID_ARGUMENT, "messages", None),
        ({"chat": {"messages": [{"role": "é"}]}}, StatusCode.INVALID_ARGUMENT, "messages[0].role", None),
        ({"prompt": "x" * 5000}, StatusCode.INVALID_ARGUMENT, "prompt", "context_length_exceeded"),
        ({"prompt": "A", "model": "gpt"}, StatusCode.NOT_FOUND, "model", "model_not_found"),
    ],
)
async def test_a_fault_is_named(channel: aio.Channel, fields: Any, code: StatusCode, param: str, detail: str | None) -> None:
    got, text, details = await fault(channel, **fields)
    assert got is code
    assert text
    assert (details.get("baton-error-param"), details.get("baton-error-code")) == (param, detail)


async def test_overload_says_when_to_come_back() -> None:
    service = FakeService(fail_at=0, error=QueueFull("full", retry_after_s=1.5))
    async with serve_grpc(service, RouterConfig(grpc_port=0)) as port, aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        code, text, details = await fault(channel, prompt="A")
    assert (code, text, details["grpc-retry-pushback-ms"]) == (StatusCode.RESOURCE_EXHAUSTED, "full", "1500")


async def test_a_fault_of_ours_tells_nothing(channel: aio.Channel, service: FakeService, monkeypatch: Any) -> None:
    def fail() -> None:
        raise RuntimeError("/secret/path")

    monkeypatch.setattr(service, "models", fail)
    code, text, _ = await fault(channel, prompt="A")
    assert code is StatusCode.INTERNAL
    assert "secret" not in text


async def test_c516_a_cancelled_call_ends_its_request(channel: aio.Channel, service: FakeService) -> None:
    call = pb_grpc.InferenceStub(channel).Generate(pb.GenerateRequest(**ENDLESS), timeout=60)
    await call.read()
    service.gate.clear()
    call.cancel()
    await service.idle()


async def test_c516_a_deadline_ends_its_request(channel: aio.Channel, service: FakeService) -> None:
    service.gate.clear()
    call = pb_grpc.InferenceStub(channel).Generate(pb.GenerateRequest(**ENDLESS), timeout=0.5)
    with pytest.raises(aio.AioRpcError) as error:
        await call.read()
    assert error.value.code() is StatusCode.DEADLINE_EXCEEDED
    await service.idle()
    assert all(request.deadline_s <= 0.5 for request in service.requests)


async def test_a_large_message_is_refused(channel: aio.Channel, service: FakeService) -> None:
    code, _, _ = await fault(channel, prompt="x" * (5 << 20))
    assert code is StatusCode.RESOURCE_EXHAUSTED
    assert not service.requests


async def test_health_follows_readiness(channel: aio.Channel, service: FakeService) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for name in ("", SERVICE):
        assert (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status == health_pb2.HealthCheckResponse.SERVING
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE), timeout=60)
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    service.reason = "draining"
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    watch.cancel()
    with pytest.raises(aio.AioRpcError) as error:
        await stub.Check(health_pb2.HealthCheckRequest(service="other"))
    assert error.value.code() is StatusCode.NOT_FOUND


async def test_reflection_names_the_services(channel: aio.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    (answer,) = [answer async for answer in stub.ServerReflectionInfo(requests)]
    names = {service.name for service in answer.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names


async def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=str(port)):
            await serve_grpc(FakeService(), RouterConfig(grpc_port=port)).__aenter__()


async def test_a_client_that_reads_nothing_holds_no_other_up(port: int, service: FakeService) -> None:
    async with AsyncClient(f"127.0.0.1:{port}") as slow, AsyncClient(f"127.0.0.1:{port}") as quick:
        updates = slow.generate("0", max_tokens=4000)
        await anext(updates)
        assert (await quick.complete("A", max_tokens=20)).text == "bcdefghij"
        await updates.aclose()
        with pytest.raises(InvalidRequest):
            await quick.complete("A", temperature=9)
    await asyncio.wait_for(service.idle(), 30)
