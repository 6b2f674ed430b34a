"""The router's metrics while workers die and come back, and while clients send what nobody has heard of."""

from __future__ import annotations

import random

from tests.faults.talk import until, words
from tests.support.asking import http
from tests.support.processes import Cluster

BODY = {"prompt": "0", "max_tokens": 3, "temperature": 0}


def series_of(cluster: Cluster, address: str) -> dict[str, float]:
    return {name: value for name, value in cluster.metrics().items() if f'worker="{address}"' in name}


async def test_c653_no_client_and_no_new_life_makes_a_series(faulty, scripted):
    cluster: Cluster = faulty(scripted, 1, 1)
    rng, victim = random.Random(653), cluster.decode[0]
    async with http(cluster) as client:
        await client.post("/v1/completions", json=BODY | {"model": cluster.model})
        before = len(cluster.metrics())
        for _ in range(100):
            answer = await client.post("/v1/completions", json=BODY | {"model": words(rng, 12)})
            assert answer.status_code == 404
            assert answer.json()["error"]["message"]
            assert (await client.get("/" + rng.randbytes(6).hex())).status_code == 404
            named = {"headers": {"X-Request-Id": rng.randbytes(8).hex()}, "json": BODY | {"model": cluster.model}}
            named["json"]["user"] = words(rng, 12)
            assert (await client.post("/v1/completions", **named)).status_code == 200
    for _ in range(5):
        victim.kill()
        victim.restart()
    cluster.settled()
    assert len(cluster.metrics()) - before < 50


async def test_a_dead_worker_has_one_series_which_says_so(faulty, scripted):
    cluster: Cluster = faulty(scripted, 1, 1)
    victim = cluster.decode[0]
    alive = series_of(cluster, victim.address)
    assert len(alive) > 10
    victim.kill()
    ready = f'baton_worker_ready{{role="decode",worker="{victim.address}"}}'
    await until(lambda: series_of(cluster, victim.address) == {ready: 0.0}, "the worker's series are gone")
    assert cluster.metrics()["baton_ready"] == 0
    async with http(cluster) as client:
        answer = await client.post("/v1/completions", json=BODY | {"model": cluster.model})
        assert answer.status_code == 503
        assert "decode" in answer.json()["error"]["message"]
    victim.restart()
    await until(lambda: series_of(cluster, victim.address).keys() == alive.keys(), "the worker's series are back")
    assert cluster.metrics()["baton_ready"] == 1
