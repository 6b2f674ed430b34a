"""The async client against the door: streams, whole answers, errors as our own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from baton.client import AsyncClient, ModelInfo
from baton.cluster.config import RouterConfig
from baton.wire.errors import (
    BatonError,
    Cancelled,
    ContextOverflow,
    DeadlineExceeded,
    Internal,
    InvalidRequest,
    Overloaded,
    QueueFull,
    Unavailable,
    UnknownModel,
)
from router.grpc_door import serve_grpc
from tests.support.doors import FakeService


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
async def client(service: FakeService) -> AsyncIterator[AsyncClient]:
    async with serve_grpc(service, RouterConfig(grpc_port=0)) as port, AsyncClient(f"127.0.0.1:{port}", 60) as client:
        yield client


async def test_generate_streams_updates(client: AsyncClient) -> None:
    *updates, last = [update async for update in client.generate("A", max_tokens=20)]
    assert "".join(delta.text for update in updates for delta in update.deltas) == "bcdefghij"
    assert updates[-1].deltas[0].finish == "stop"
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (2, 10)


async def test_complete_takes_text_ids_and_chats(client: AsyncClient) -> None:
    answer = await client.complete("A", max_tokens=20, n=2, logprobs=1, timeline=True)
    assert [choice.text for choice in answer.choices] == ["bcdefghij"] * 2
    assert answer.choices[0].token_ids == (*b"bcdefghij", 257)
    assert [entry.token for entry in answer.choices[1].logprobs[:2]] == [b"b", b"c"]
    assert answer.timeline is not None
    assert answer.timeline.spans == (("queue", 0.25), ("prefill", 0.5))
    assert (await client.complete([65], max_tokens=3)).text == "bcd"
    assert (await client.complete([{"role": "user", "content": "hi"}])).text == "OK."


async def test_models(client: AsyncClient) -> None:
    assert await client.models() == [ModelInfo("scripted", 4096)]


async def test_closing_a_stream_cancels_its_request(client: AsyncClient, service: FakeService) -> None:
    updates = client.generate("0", max_tokens=4000)
    await anext(updates)
    service.gate.clear()
    await updates.aclose()
    await service.idle()


ERRORS: list[BatonError] = [
    InvalidRequest("bad", param="n"),
    ContextOverflow("long", param="prompt"),
    UnknownModel("who", param="model"),
    Overloaded("busy", retry_after_s=2.5),
    QueueFull("full", retry_after_s=1),
    Unavailable("none", retry_after_s=1),
    DeadlineExceeded("late"),
    Cancelled("left"),
    Internal("broken"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_an_error_arrives_as_it_was_raised(error: BatonError) -> None:
    service = FakeService(fail_at=1, error=error)
    async with serve_grpc(service, RouterConfig(grpc_port=0)) as port, AsyncClient(f"127.0.0.1:{port}", 60) as client:
        with pytest.raises(BatonError) as raised:
            await client.complete("A")
    got = raised.value
    assert type(got) is type(error)
    assert (got.message, got.param, got.code, got.retry_after_s) == (
        error.message,
        error.param,
        error.code,
        error.retry_after_s,
    )


async def test_what_cannot_be_sent_is_refused_here(client: AsyncClient, service: FakeService) -> None:
    for options in ({"max_tokens": -1}, {"colour": "red"}):
        with pytest.raises(InvalidRequest, match="cannot be sent"):
            await client.complete("A", **options)  # type: ignore[arg-type]
    assert not service.requests


async def test_no_server_is_unavailable() -> None:
    async with AsyncClient("127.0.0.1:1", 30) as client:
        with pytest.raises(Unavailable):
            await client.complete("A")


def test_the_client_needs_neither_torch_nor_a_router() -> None:
    code = "import sys, baton.client; print([m for m in sys.modules if m.split('.')[0] in ('torch', 'router', 'fastapi')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
