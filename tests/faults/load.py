"""Requests that may fail, one by one or as a load, each with an outcome that is checked against what should have been said."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.faults.talk import Fields, reference, words
from tests.support import sse
from tests.support.answers import Answer, of_chunks, of_completion
from tests.support.asking import http, path_of
from tests.support.processes import Cluster


@dataclass(frozen=True)
class Failure:
    """An error as the client got it: in the body of a plain answer, as the last event of a stream, or a broken connection."""

    status: int
    error: Mapping[str, Any] | None
    retry_after: str | None = None
    num_events: int = 0


Outcome = Answer | Failure


async def attempt(client: httpx.AsyncClient, fields: Fields, *, stream: bool = True) -> Outcome:
    """The answer, or the error in one of its right forms; anything between fails the test."""
    if stream:
        return await _streamed(client, fields)
    response = await client.post(path_of(fields), json=dict(fields))
    return of_completion(response.json()) if response.status_code == 200 else _refusal(response)


async def try_once(cluster: Cluster, fields: Fields, *, stream: bool = True) -> Outcome:
    async with http(cluster) as client:
        return await attempt(client, fields, stream=stream)


async def _streamed(client: httpx.AsyncClient, fields: Fields) -> Outcome:
    body = dict(fields) | {"stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", path_of(fields), json=body) as response:
        if response.status_code != 200:
            await response.aread()
            return _refusal(response)
        lines: list[str] = []
        try:
            async for line in response.aiter_lines():
                lines.append(line)
        except httpx.RemoteProtocolError:
            assert "data: [DONE]" not in lines
            return Failure(200, None, num_events=len(lines) // 2)
    events = list(sse.events(lines))
    if events and "error" in events[-1]:
        return Failure(200, events[-1]["error"], num_events=len(events) - 1)
    return of_chunks(events)


def _refusal(response: httpx.Response) -> Failure:
    error = response.json()["error"]
    assert error["message"]
    assert response.status_code in (429, 502, 503), response.text
    return Failure(response.status_code, error, response.headers.get("retry-after"))


class Load:
    """Outcomes of a load, in the order in which its requests ended. A wrong answer fails the load at its end."""

    def __init__(self, requests: Sequence[tuple[Fields, Answer]]) -> None:
        self.outcomes: list[Outcome] = []
        self._requests = requests
        self._sent = 0

    @property
    def failures(self) -> list[Failure]:
        return [outcome for outcome in self.outcomes if isinstance(outcome, Failure)]

    async def send(self, client: httpx.AsyncClient) -> None:
        fields, expected = self._requests[self._sent % len(self._requests)]
        self._sent += 1
        outcome = await attempt(client, fields, stream=self._sent % 3 != 0)
        assert isinstance(outcome, Failure) or outcome == expected, f"{fields}: {outcome} is not {expected}"
        self.outcomes.append(outcome)


async def requests(cluster: Cluster, rng: random.Random, num: int, max_tokens: int) -> list[tuple[Fields, Answer]]:
    """Greedy and sampled requests, with what is right to say to them."""
    made: list[tuple[Fields, Answer]] = []
    for i in range(num):
        fields: dict[str, Any] = {"model": cluster.model, "prompt": words(rng, rng.randrange(10, 120))}
        fields |= {"max_tokens": rng.randrange(2, max_tokens), "temperature": 0}
        if i % 2:
            fields |= {"temperature": 1, "seed": rng.randrange(2**31), "frequency_penalty": 0.3}
        made.append((fields, await reference(cluster, fields)))
    return made


@asynccontextmanager
async def steady(cluster: Cluster, load: Load, period_s: float) -> AsyncIterator[None]:
    """A request every `period_s`, however many are on their way; all have ended when the context has."""
    stop = asyncio.Event()

    async def send_all(client: httpx.AsyncClient, tasks: asyncio.TaskGroup) -> None:
        while not stop.is_set():
            tasks.create_task(load.send(client))
            await _nap(stop, period_s)

    async with http(cluster) as client, asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(send_all(client, tasks))
        yield
        stop.set()
        await sending


@asynccontextmanager
async def streams(cluster: Cluster, load: Load, num: int) -> AsyncIterator[None]:
    """`num` clients, each with one request at a time; all have ended when the context has."""
    stop = asyncio.Event()

    async def one(client: httpx.AsyncClient) -> None:
        while not stop.is_set():
            failures = len(load.failures)
            await load.send(client)
            if len(load.failures) > failures:
                await _nap(stop, 0.1)

    async with http(cluster) as client, asyncio.TaskGroup() as tasks:
        for _ in range(num):
            tasks.create_task(one(client))
        yield
        stop.set()


async def _nap(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass
