"""Damage on the way from prefill to decode: nothing that is wrong is ever read, and the answer does not show it."""

from __future__ import annotations

import asyncio
import random

import pytest

from baton.wire.types import Timeouts
from tests.faults.load import Failure, Load, requests, streams, try_once
from tests.faults.talk import counted, reference, until, words
from tests.support.link import COMMIT, FOR_EVER, Damage


@pytest.mark.parametrize("after", [0, COMMIT], ids=["first", "commit"])
@pytest.mark.parametrize("kind", [Damage.FLIP, Damage.TRUNCATE, Damage.REPEAT, Damage.SWAP, Damage.CUT])
@pytest.mark.parametrize("transport", ["shm", "tcp", "grpc"])
async def test_f12_a_damaged_message(faulty, random_model, transport, kind, after):
    settings = {"kv_transport": transport, "timeouts": Timeouts(transfer_stall_s=0.5)}
    cluster = faulty(random_model, 1, 1, worker=settings)
    rng = random.Random(f"{transport}{kind}{after}")
    fields = {"model": cluster.model, "prompt": words(rng, 300), "max_tokens": 30, "temperature": 0}
    link = cluster.prefill[0].link
    link.damage(kind, 1, after)
    outcome = await try_once(cluster, fields)
    assert link.damages_left == 0, "nothing was damaged"
    assert outcome == await reference(cluster, fields)


async def test_c471_transfers_that_fail_are_counted(faulty, scripted):
    """Five requests whose every transfer fails: three attempts each, then an error."""
    cluster = faulty(scripted, 1, 1)
    fields = {"model": cluster.model, "prompt": "0", "max_tokens": 5, "temperature": 0}
    for _ in range(10):
        assert not isinstance(await try_once(cluster, fields), Failure)
    counts = {
        'baton_requests_total{outcome="ok"}': 10,
        "baton_prompt_tokens_total": 20,
        "baton_generation_tokens_total": 50,
    }
    assert {name: counted(cluster, name) for name in counts} == counts
    link = cluster.prefill[0].link
    link.damage(Damage.REFUSE, FOR_EVER)
    outcomes = await asyncio.gather(*(try_once(cluster, fields, stream=False) for _ in range(5)))
    link.repair()
    assert [(outcome.status, bool(outcome.error)) for outcome in outcomes if isinstance(outcome, Failure)] == [(503, True)] * 5
    assert counted(cluster, 'baton_requests_total{outcome="unavailable"}') == 5
    assert counted(cluster, 'baton_requests_total{outcome="ok"}') == 10
    assert counted(cluster, "baton_transfers_failed_total") == 15
    cluster.assert_idle()
    assert not isinstance(await try_once(cluster, fields), Failure)


async def test_f9_one_pair_is_cut_and_not_its_workers(faulty, random_model):
    """The only prefill worker cannot reach one of two decode workers: everything goes to the other."""
    cluster = faulty(random_model, 1, 2)
    load = Load(await requests(cluster, random.Random(9), 8, 30))
    link, lost = cluster.prefill[0].link, cluster.decode[0]
    link.damage(Damage.REFUSE, FOR_EVER, towards=lost.address)
    async with streams(cluster, load, 4):
        await until(lambda: len(load.outcomes) > 40, "requests are served")
    link.repair()
    assert load.failures == []
    assert cluster.metrics()["baton_ready"] == 1
