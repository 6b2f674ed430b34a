"""Processes that are told to stop lose no request; a router that is killed leaves nothing behind at its workers."""

from __future__ import annotations

import asyncio
import random
import signal

from tests.faults.load import Failure, Load, requests, streams, try_once
from tests.faults.talk import limited, until
from tests.support.asking import streamed

DIGITS = ("1234567890" * 50)[:500]


async def test_f17_every_worker_is_restarted_under_load(faulty, random_model):
    cluster = faulty(random_model, 2, 2)
    load = Load(await requests(cluster, random.Random(17), 16, 40))
    async with streams(cluster, load, 8):
        await until(lambda: len(load.outcomes) > 10, "requests are served")
        for worker in cluster.workers:
            assert await asyncio.to_thread(worker.process.stop) == 0
            await asyncio.to_thread(worker.restart)
            num = len(load.outcomes)
            await until(lambda since=num: len(load.outcomes) > since + 10, "requests are served")
            await asyncio.to_thread(cluster.settled)
    assert load.failures == []


async def test_f17_a_router_that_stops_ends_its_streams_well(faulty, scripted):
    cluster = faulty(scripted, 1, 1)
    fields = {"model": cluster.model, "prompt": "0", "max_tokens": 500, "temperature": 0}
    gate = cluster.decode[0].gate
    with gate.limited(30):
        asked = [asyncio.create_task(streamed(cluster, fields)) for _ in range(4)]
        await asyncio.to_thread(gate.wait_occupied)
        cluster.router.signal(signal.SIGTERM)
    answers = await asyncio.gather(*asked)
    assert {answer.text for answer in answers} == {DIGITS}
    assert await asyncio.to_thread(cluster.router.wait) == 0
    cluster.restart_router()


async def test_f4_a_router_is_killed(faulty, scripted):
    """Its streams break and never look complete; the workers stop; the next router is served at once."""
    cluster = faulty(scripted, 1, 1)
    fields = {"model": cluster.model, "prompt": "0", "max_tokens": 3000, "temperature": 0}
    gate = cluster.decode[0].gate
    asked = [asyncio.create_task(try_once(cluster, fields)) for _ in range(8)]
    with limited([gate], 30):
        await asyncio.to_thread(gate.wait_occupied)
        await asyncio.to_thread(cluster.router.kill)
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert not any(isinstance(outcome, AssertionError) for outcome in outcomes), outcomes
    assert all(isinstance(outcome, Failure | OSError) or "Error" in type(outcome).__name__ for outcome in outcomes)
    cluster.restart_router()
    assert (await streamed(cluster, fields | {"max_tokens": 100})).text == DIGITS[:100]
    cluster.assert_idle()
    steps = gate.steps
    await asyncio.sleep(0.2)
    assert gate.steps == steps
