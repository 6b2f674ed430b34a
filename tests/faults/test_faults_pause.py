"""Workers that pause, wake up as zombies, or are replaced at once: no foreign token, no KV from the past."""

from __future__ import annotations

import asyncio
import random
import signal

import pytest

from baton.wire.types import Timeouts
from tests.faults.load import Load, requests, streams
from tests.faults.talk import busy, counted, limited, owner, reference, stopped_at, talking, until, words
from tests.faults.trial import AT_ONCE, run_trial

SOON = Timeouts(heartbeat_s=0.2, router_grace_s=0.3, worker_grace_s=5.0)


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_f5_a_pause_shorter_than_the_misses(faulty, random_model, role):
    """Heartbeats come once a second and three may be missed."""
    cluster = faulty(random_model, 2, 2)
    load = Load(await requests(cluster, random.Random(role), 12, 40))
    worker = cluster.prefill[0] if role == "prefill" else cluster.decode[0]
    async with streams(cluster, load, 8):
        await until(lambda: len(load.outcomes) > 10, "requests are served")
        worker.process.signal(signal.SIGSTOP)
        await asyncio.sleep(0.7)
        worker.process.signal(signal.SIGCONT)
        num = len(load.outcomes)
        await until(lambda: len(load.outcomes) > num + 30, "requests are served")
    assert load.failures == []
    lost = [value for name, value in cluster.metrics().items() if name.startswith("baton_migration_total") and "_lost" in name]
    assert not any(lost)


async def test_f6_decode_wakes_up_as_a_zombie(faulty, random_model):
    cluster = faulty(random_model, 2, 2, worker={"timeouts": SOON}, router={"timeouts": SOON})
    fields = {"model": cluster.model, "prompt": words(random.Random(6), 100), "max_tokens": 60, "temperature": 0}
    gates = [worker.gate for worker in cluster.decode]
    async with talking(cluster, fields) as task:
        with limited(gates, 20):
            zombie = owner(cluster.decode, await stopped_at(gates, task))
            zombie.process.signal(signal.SIGSTOP)
            (other,) = (worker for worker in cluster.decode if worker is not zombie)
            await until(lambda: other.gate.occupied, "the request goes on elsewhere and waits in the middle")
            zombie.gate.lift()
            zombie.process.signal(signal.SIGCONT)
            steps = zombie.gate.steps
            await until(lambda: zombie.gate.steps > steps or zombie not in busy(cluster), "the zombie works or is stopped")
            cluster.settled()
        answer = await task
    assert answer == await reference(cluster, fields)


async def test_f6_prefill_wakes_up_as_a_zombie(faulty, random_model):
    """It sends the KV that it still had in hand, under an attempt that decode has left: refused and counted."""
    cluster = faulty(random_model, 2, 1, worker={"timeouts": SOON}, router={"timeouts": SOON})
    fields = {"model": cluster.model, "prompt": words(random.Random(66), 400), "max_tokens": 60, "temperature": 0}
    links = [worker.link.gate for worker in cluster.prefill]
    refused = counted(cluster, "baton_worker_frames_refused_total")
    async with talking(cluster, fields) as task:
        with limited([cluster.decode[0].gate], 20):
            with limited(links, 2):
                zombie = owner(cluster.prefill, await stopped_at(links, task))
                zombie.process.signal(signal.SIGSTOP)
            await until(lambda: cluster.decode[0].gate.occupied, "the request was prefilled elsewhere")
            zombie.process.signal(signal.SIGCONT)
            cluster.settled()
        answer = await task
    assert answer == await reference(cluster, fields)
    assert counted(cluster, "baton_worker_frames_refused_total") > refused


@pytest.mark.parametrize("seed", range(12))
async def test_f7_a_new_process_at_the_same_address(faulty, random_model, seed):
    """The only worker of its role dies and is back before anybody could wait for another."""
    cluster = faulty(random_model, 1, 1)
    while await run_trial(cluster, seed, restart=AT_ONCE) is None:  # the answer ended before that point: another draw
        seed += 100
