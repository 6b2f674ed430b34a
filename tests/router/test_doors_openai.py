"""The HTTP door on a real socket: OpenAI's own client, clients that leave, and what is refused while it is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from baton.wire.errors import QueueFull, Unavailable
from router.http import protocol
from tests.support.doors import FakeService, serve_http

CHAT: Any = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
ENDLESS = {"model": "scripted", "prompt": "0", "max_tokens": 4000}


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
async def url(service: FakeService) -> AsyncIterator[str]:
    async with serve_http(service) as url:
        yield url


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


async def test_openais_client_plain_and_streamed(client: openai.AsyncOpenAI) -> None:
    plain = await client.chat.completions.create(**CHAT)
    assert plain.choices[0].message.content == "OK."
    assert plain.usage is not None
    assert plain.usage.total_tokens == 12
    stream = await client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})
    text, usage = "", None
    async for chunk in stream:
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage or usage
    assert text == "OK."
    assert usage == plain.usage


async def test_openais_client_choices_and_logprobs(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="scripted", prompt="A", n=3, logprobs=2, max_tokens=20)
    assert [choice.text for choice in answer.choices] == ["bcdefghij"] * 3
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.tokens == [*"bcdefghij", "</s>"]
    chat = await client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2)
    logprobs = chat.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [entry.token for entry in logprobs.content] == ["O", "K", ".", "</s>"]
    assert len(logprobs.content[0].top_logprobs) == 2


async def test_openais_client_lists_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["scripted"]
    assert (await client.models.retrieve("scripted")).id == "scripted"


async def test_openais_client_knows_our_errors(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(**CHAT, temperature=3)
    assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.NotFoundError) as missing:
        await client.completions.create(model="gpt", prompt="A")
    assert missing.value.code == "model_not_found"


async def test_openais_client_hears_of_overload_and_of_late_faults() -> None:
    service = FakeService(fail_at=0, error=QueueFull("full", retry_after_s=1))
    async with serve_http(service) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as client:
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(**CHAT)
    service = FakeService(fail_at=2, error=Unavailable("all workers died"))
    async with serve_http(service) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as client:
        stream = await client.chat.completions.create(**CHAT, stream=True)
        with pytest.raises(openai.APIError, match="all workers died"):
            [chunk async for chunk in stream]


async def test_c516_a_client_that_leaves_in_mid_stream_ends_the_request(service: FakeService, url: str) -> None:
    async with httpx.AsyncClient(base_url=url) as http:
        async with http.stream("POST", "/v1/completions", json=ENDLESS | {"stream": True}) as answer:
            lines = answer.aiter_lines()
            assert (await anext(lines)).startswith("data: ")
            service.gate.clear()
        await service.idle()
    assert service.num_steps < 4000


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompt", ["0", ["0", "A"]])
async def test_c516_a_client_that_leaves_before_the_first_token(
    service: FakeService, url: str, stream: bool, prompt: Any
) -> None:
    service.gate.clear()
    async with httpx.AsyncClient(base_url=url) as http:
        sending = asyncio.create_task(http.post("/v1/completions", json=ENDLESS | {"stream": stream, "prompt": prompt}))
        await asyncio.wait_for(service.started.wait(), 30)
        sending.cancel()
        await asyncio.wait([sending])
    await service.idle()


async def test_c606_requests_with_one_id_do_not_meet(service: FakeService, url: str) -> None:
    headers = {"x-request-id": "same"}
    async with httpx.AsyncClient(base_url=url, headers=headers) as http:
        bodies = [ENDLESS | {"max_tokens": 30}, {"model": "scripted", "prompt": "A", "max_tokens": 20}] * 5
        answers = await asyncio.gather(*(http.post("/v1/completions", json=body) for body in bodies))
    assert {answer.json()["choices"][0]["text"] for answer in answers} == {("1234567890" * 3), "bcdefghij"}
    assert len({request.request_id for request in service.requests}) == 10


async def exchange(url: str, data: bytes) -> bytes:
    """What the server answers to raw bytes, until it closes."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(data)
    async with asyncio.timeout(30):
        answer = b""
        try:
            while part := await reader.read(65536):
                answer += part
        except ConnectionResetError:
            pass  # it closed while our bytes were on the way
    writer.close()
    return answer


async def test_c606_a_huge_header_is_refused_while_it_is_read(url: str) -> None:
    answer = await exchange(url, b"GET /livez HTTP/1.1\r\nhost: x\r\nx-request-id: " + b"x" * (1 << 20))
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"headers_too_large" in answer
    async with httpx.AsyncClient(base_url=url) as http:
        assert (await http.get("/livez", headers={"x-request-id": "x" * 40_000})).status_code == 431
        assert (await http.get("/livez")).status_code == 200


async def test_a_body_without_end_is_refused_while_it_is_read(service: FakeService, url: str) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b'{"prompt": "'
        for _ in range(4096):
            yield b"x" * 4096

    async with httpx.AsyncClient(base_url=url) as http:
        try:
            answer = await http.post("/v1/completions", content=parts(), headers={"content-type": "application/json"})
        except httpx.TransportError:
            pass  # it closed while our bytes were on the way
        else:
            assert answer.status_code == 413
        assert (await http.get("/livez")).status_code == 200
    assert not service.requests


async def test_a_head_that_never_comes_ends_the_connection(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_S", 0.05)
    assert await exchange(url, b"GET /livez HTTP/1.1\r\nhost: x\r\n") == b""


async def test_a_connection_serves_one_request_after_another(url: str) -> None:
    get = b"GET /livez HTTP/1.1\r\nhost: x\r\n"
    answer = await exchange(url, get + b"\r\n" + get + b"connection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200 OK") == 2
