"""Decode dies, or has too few blocks: no digit is lost or said twice, and clients are told at once when none is left."""

from __future__ import annotations

import asyncio
import random

import pytest

from baton.wire.types import Timeouts
from tests.faults.load import Failure, try_once
from tests.faults.talk import counted, limited, owner, stopped_at, talking, until, words
from tests.support.asking import streamed

DIGITS = ("1234567890" * 50)[:500]


async def test_c957_decode_dies_after_fifty_digits(faulty, scripted):
    cluster = faulty(scripted, 1, 2)
    fields = {"model": cluster.model, "prompt": "0", "max_tokens": 500, "temperature": 0}
    gates = [worker.gate for worker in cluster.decode]
    before = counted(cluster, "baton_generation_tokens_total")
    with limited(gates, 49):
        task = asyncio.create_task(streamed(cluster, fields))
        victim = owner(cluster.decode, await stopped_at(gates, task))
        await until(lambda: counted(cluster, "baton_generation_tokens_total") == before + 50, "50 digits are accepted")
        victim.kill()
    answer = await task
    victim.restart()
    assert (answer.text, answer.finish) == (DIGITS, "length")
    assert (answer.prompt_tokens, answer.completion_tokens) == (2, 500)


@pytest.mark.parametrize("num_deaths", [2, 3])
async def test_one_request_outlives_two_deaths_and_is_told_of_the_third(faulty, scripted, num_deaths):
    cluster = faulty(scripted, 1, 2)
    fields = {"model": cluster.model, "prompt": "0", "max_tokens": 300, "temperature": 0}
    gates = [worker.gate for worker in cluster.decode]
    task = asyncio.create_task(try_once(cluster, fields))
    with limited(gates, 20):
        for _ in range(num_deaths):
            victim = owner(cluster.decode, await stopped_at(gates, task))
            victim.kill()
            victim.gate.allow(20)
            victim.restart()
            cluster.settled()
    outcome = await task
    if num_deaths == 2:
        assert not isinstance(outcome, Failure)
        assert outcome.text == DIGITS[:300]
    else:
        assert isinstance(outcome, Failure)
        assert outcome.error is not None


async def test_no_decode_worker_is_left(faulty, scripted):
    timeouts = Timeouts(replace_s=0.5)
    cluster = faulty(scripted, 1, 1, router={"timeouts": timeouts})
    decode = cluster.decode[0]
    fields = {"model": cluster.model, "prompt": "0", "max_tokens": 300, "temperature": 0}
    with limited([decode.gate], 20):
        running = asyncio.create_task(try_once(cluster, fields))
        await stopped_at([decode.gate], running)
        decode.kill()
    await until(lambda: cluster.metrics()["baton_ready"] == 0, "the router knows")
    refused = await try_once(cluster, fields)
    assert isinstance(refused, Failure)
    assert (refused.status, refused.retry_after) == (503, "1")
    broken = await running
    assert isinstance(broken, Failure)
    assert broken.error is not None
    assert cluster.http.get("/readyz").status_code == 503
    decode.restart()
    cluster.settled()
    assert (await streamed(cluster, fields)).text == DIGITS[:300]


async def test_f22_a_decode_pool_that_is_too_small(faulty, random_model):
    """Six requests that grow to twice the pool: the youngest lose their blocks, and no answer shows it."""
    cluster = faulty(random_model, 1, 1, worker={"kv_blocks": 24, "growth_reserve": 16})
    rng = random.Random(22)
    sampled = {"temperature": 1, "seed": 22, "presence_penalty": 0.4}
    asked = [{"model": cluster.model, "prompt": words(rng, 40), "max_tokens": 100} for _ in range(6)]
    asked = [fields | ({"temperature": 0} if i % 2 else sampled) for i, fields in enumerate(asked)]
    expected = [await streamed(cluster, fields) for fields in asked]
    assert await asyncio.gather(*(streamed(cluster, fields) for fields in asked)) == expected
    assert counted(cluster, "baton_worker_preemptions_total") > 0


async def test_a_request_may_outlive_every_worker(faulty, scripted):
    """Each worker is replaced once while one answer is streamed."""
    cluster = faulty(scripted, 2, 2)
    fields = {"model": cluster.model, "prompt": "0", "max_tokens": 400, "temperature": 0}
    gates = [worker.gate for worker in cluster.decode]
    with limited(gates, 30):
        async with talking(cluster, fields) as task:
            serving = owner(cluster.decode, await stopped_at(gates, task))
            for worker in [*cluster.prefill, *(w for w in cluster.decode if w is not serving)]:
                worker.kill()
                worker.restart()
            cluster.settled()
            serving.kill()
            serving.restart()
            for gate in gates:
                gate.lift()
            assert (await task).text == DIGITS[:400]
