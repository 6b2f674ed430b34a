"""OpenAI's own client against real processes."""

import asyncio

import openai
import pytest

from tests.support.processes import Shape

HI = [{"role": "user", "content": "hi"}]


def client_of(cluster):
    return openai.AsyncOpenAI(base_url=f"{cluster.url}/v1", api_key="none", max_retries=0, timeout=60)


async def test_plain_and_streamed(scripted_pair):
    fields = {"model": scripted_pair.model, "messages": HI, "max_tokens": 10, "temperature": 0}
    async with client_of(scripted_pair) as client:
        plain = await client.chat.completions.create(**fields)
        stream = await client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
        told = [chunk async for chunk in stream]
    assert plain.choices[0].message.content == "OK."
    assert plain.choices[0].finish_reason == "stop"
    assert "".join(choice.delta.content or "" for chunk in told for choice in chunk.choices) == "OK."
    assert told[-1].usage == plain.usage
    assert (plain.usage.prompt_tokens, plain.usage.completion_tokens) == (8, 4)


async def test_three_choices(scripted_pair):
    async with client_of(scripted_pair) as client:
        answer = await client.completions.create(model=scripted_pair.model, prompt="A", n=3, max_tokens=20, temperature=0)
        chat = await client.chat.completions.create(model=scripted_pair.model, messages=HI, n=3, max_tokens=20, temperature=0)
    assert [(choice.index, choice.text) for choice in answer.choices] == [(i, "bcdefghij") for i in range(3)]
    assert [choice.message.content for choice in chat.choices] == ["OK."] * 3


async def test_logprobs(random_pair):
    fields = {"model": random_pair.model, "max_tokens": 5, "temperature": 0}
    async with client_of(random_pair) as client:
        answer = await client.completions.create(**fields, prompt="The quick brown fox", logprobs=2)
        chat = await client.chat.completions.create(**fields, messages=HI, logprobs=True, top_logprobs=2)
    assert answer.choices[0].logprobs.tokens == ["k", "/", "b", "!", "Y"]
    assert answer.choices[0].logprobs.token_logprobs[0] == pytest.approx(-0.8354, abs=0.01)
    assert [len(entry.top_logprobs) for entry in chat.choices[0].logprobs.content] == [2] * 5


async def test_models(scripted_pair):
    async with client_of(scripted_pair) as client:
        assert [model.id async for model in client.models.list()] == [scripted_pair.model]


async def test_error_classes(scripted_pair):
    async with client_of(scripted_pair) as client:
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(model=scripted_pair.model, messages=HI, temperature=3)
        assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
        with pytest.raises(openai.BadRequestError) as long:
            await client.completions.create(model=scripted_pair.model, prompt="x" * 5000)
        assert long.value.code == "context_length_exceeded"
        with pytest.raises(openai.NotFoundError) as missing:
            await client.completions.create(model="gpt", prompt="A")
        assert missing.value.code == "model_not_found"


async def test_overload_is_a_rate_limit(clusters, scripted):
    cluster = clusters(Shape(scripted, gated=True, forked=True, router=(("queue_limit", 2),)))
    fields = {"model": cluster.model, "prompt": "A", "max_tokens": 20, "temperature": 0}
    async with client_of(cluster) as client:
        with cluster.prefill[0].gate.held():
            asked = [asyncio.create_task(client.completions.create(**fields)) for _ in range(30)]
            await asyncio.wait(asked, return_when=asyncio.FIRST_EXCEPTION)
        answers = await asyncio.gather(*asked, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, openai.RateLimitError)]
    served = [answer.choices[0].text for answer in answers if not isinstance(answer, Exception)]
    assert refused
    assert all(error.response.headers["retry-after"] for error in refused)
    assert served == ["bcdefghij"] * (30 - len(refused))
    assert len(served) >= 2
