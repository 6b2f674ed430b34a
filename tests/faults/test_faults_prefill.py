"""Prefill dies: the request is prefilled elsewhere in time, others do not notice, and peers find the next life."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.faults.load import Failure, Load, requests, steady, try_once
from tests.faults.talk import limited, reference, until, words
from tests.support.link import FOR_EVER, Damage

BOUND_S = 5.0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("at", ["prefill step", "message"])
async def test_c176_prefill_dies_at_a_long_prompt(faulty, random_model, at, stream):
    cluster = faulty(random_model, 2, 1)
    rng = random.Random(f"{at}{stream}")
    fields = {"model": cluster.model, "prompt": words(rng, 3000), "max_tokens": 30, "temperature": 0}
    load = Load(await requests(cluster, rng, 8, 20))
    prefill = cluster.prefill[0]
    gate = prefill.gate if at == "prefill step" else prefill.link.gate
    async with steady(cluster, load, 0.2):
        await until(lambda: len(load.outcomes) > 4, "the background is served")
        with limited([gate], 5 if at == "message" else 10):
            asked = asyncio.create_task(try_once(cluster, fields, stream=stream))
            await asyncio.to_thread(gate.wait_occupied)
            prefill.kill()
        async with asyncio.timeout(BOUND_S):
            outcome = await asked
        num = len(load.outcomes)
        await until(lambda: len(load.outcomes) > num + 4, "the background is served without the dead worker", BOUND_S)
        prefill.restart()
    assert outcome == await reference(cluster, fields)
    assert load.failures == []


@pytest.mark.parametrize("role", ["decode", "prefill"])
async def test_c968_a_worker_comes_back_at_its_address(faulty, random_model, role):
    cluster = faulty(random_model, 1, 1)
    worker = cluster.decode[0] if role == "decode" else cluster.prefill[0]
    others = [process.pid for process in (cluster.router, *(w.process for w in cluster.workers if w is not worker))]
    load = Load(await requests(cluster, random.Random(role), 10, 20))
    async with steady(cluster, load, 0.5):
        await until(lambda: len(load.outcomes) > 1, "requests are served")
        worker.kill()
        worker.restart()
        async with steady(cluster, load, 0.05):
            await until(lambda: len(load.outcomes) > 50, "50 requests have ended")
    _at_most_two_failed_early(load)
    assert others == [process.pid for process in (cluster.router, *(w.process for w in cluster.workers if w is not worker))]


async def test_c968_a_link_is_cut_and_repaired(faulty, random_model):
    cluster = faulty(random_model, 1, 1)
    load = Load(await requests(cluster, random.Random("cut"), 10, 20))
    async with steady(cluster, load, 0.5):
        await until(lambda: len(load.outcomes) > 1, "requests are served")
        cluster.prefill[0].link.damage(Damage.REFUSE, FOR_EVER)
        await asyncio.sleep(3)
        cluster.prefill[0].link.repair()
        async with steady(cluster, load, 0.05):
            num = len(load.outcomes)
            await until(lambda: len(load.outcomes) > num + 50, "50 requests have ended")
    _at_most_two_failed_early(load)


def _at_most_two_failed_early(load: Load) -> None:
    assert len(load.failures) <= 2, load.failures
    assert not any(isinstance(outcome, Failure) for outcome in load.outcomes[-40:])
