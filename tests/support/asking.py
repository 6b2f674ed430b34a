"""One request by every way there is: HTTP plain and streamed, gRPC, and one engine alone. All must agree."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from baton.client import AsyncClient
from baton.wire.errors import InvalidRequest
from baton.wire.inference import TokenLogprob
from tests.support import sse
from tests.support.alone import alone
from tests.support.answers import Answer, Choice, Logprob, assert_same, of_chunks, of_completion
from tests.support.processes import Cluster

Fields = Mapping[str, Any]
Way = Callable[[Cluster, Fields], Awaitable[Answer]]

TIMEOUT_S = 60.0
TEXT_MESSAGE = {"role", "content"}


async def ask(cluster: Cluster, **fields: Any) -> Answer:
    """The answer that all ways agree on, greedy unless `fields` say otherwise."""
    fields = {"temperature": 0} | fields
    expected = await ask_alone(cluster, fields)
    for way in (plain, streamed, over_grpc):
        if way is not over_grpc or _fits_grpc(fields):
            assert_same(await way(cluster, fields), expected, way.__name__)
    return expected


async def plain(cluster: Cluster, fields: Fields) -> Answer:
    async with http(cluster) as client:
        response = await client.post(path_of(fields), json=fields)
    assert response.status_code == 200, response.text
    return of_completion(response.json())


async def streamed(cluster: Cluster, fields: Fields) -> Answer:
    return of_chunks(await chunks(cluster, **fields, stream_options={"include_usage": True}))


async def over_grpc(cluster: Cluster, fields: Fields) -> Answer:
    options = {name: value for name, value in fields.items() if name not in ("prompt", "messages", "top_logprobs")}
    prompt = fields["prompt"] if "prompt" in fields else fields["messages"]
    if fields.get("logprobs") is True:
        options["logprobs"] = fields.get("top_logprobs", 0)
    async with AsyncClient(cluster.grpc, TIMEOUT_S) as client:
        answer = await client.complete(prompt, **options)
    choices = [Choice(choice.text, choice.finish, tuple(map(_logprob, choice.logprobs))) for choice in answer.choices]
    return Answer(tuple(choices), answer.usage.prompt_tokens, answer.usage.completion_tokens)


async def ask_alone(cluster: Cluster, fields: Fields) -> Answer:
    settings = dict(cluster.shape.worker)
    return await alone(cluster.shape.checkpoint, settings.get("max_model_len")).ask(fields)


async def refused(cluster: Cluster, **fields: Any) -> dict[str, Any]:
    """The error of an invalid request: a 400 before any event, the same plain and streamed, over gRPC and alone."""
    async with http(cluster) as client:
        answers = [await client.post(path_of(fields), json=fields | {"stream": stream}) for stream in (False, True)]
    errors = [answer.json()["error"] for answer in answers]
    assert [answer.status_code for answer in answers] == [400, 400], errors
    assert errors[0] == errors[1]
    assert errors[0]["type"] == "invalid_request_error"
    for way in (over_grpc, ask_alone):
        if way is ask_alone or _fits_grpc(fields):
            with pytest.raises(InvalidRequest) as error:
                await way(cluster, fields)
            assert (error.value.message, error.value.param) == (errors[0]["message"], errors[0]["param"])
    return errors[0]


async def chunks(cluster: Cluster, **fields: Any) -> list[dict[str, Any]]:
    """A streamed answer's events, each checked for its form."""
    async with http(cluster) as client, client.stream("POST", path_of(fields), json=fields | {"stream": True}) as response:
        assert response.status_code == 200, await response.aread()
        return list(sse.events([line async for line in response.aiter_lines()]))


@asynccontextmanager
async def http(cluster: Cluster, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=cluster.url, timeout=TIMEOUT_S, trust_env=False, verify=False, limits=limits, **options
    ) as client:
        yield client


def path_of(fields: Fields) -> str:
    return "/v1/chat/completions" if "messages" in fields else "/v1/completions"


def _fits_grpc(fields: Fields) -> bool:
    """Whether gRPC can say it: one prompt that is text or ids, or messages of role and text."""
    if messages := fields.get("messages"):
        return all(message.keys() == TEXT_MESSAGE and isinstance(message["content"], str) for message in messages)
    prompt = fields.get("prompt")
    return isinstance(prompt, str) or (isinstance(prompt, list) and all(isinstance(item, int) for item in prompt))


def _logprob(entry: TokenLogprob) -> Logprob:
    return Logprob.of(_name(entry), entry.logprob, {_name(rival): rival.logprob for rival in entry.top})


def _name(entry: TokenLogprob) -> str:
    return entry.token.decode(errors="backslashreplace")
