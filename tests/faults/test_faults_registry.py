"""Workers that register: what clients notice when a worker, the registry or a router goes. Real processes, a real Valkey."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from baton.cluster.config import RouterConfig, WorkerConfig
from baton.wire.types import Role, Timeouts
from tests.faults.load import Load, steady
from tests.faults.talk import counted, reference, until
from tests.support.answers import Answer
from tests.support.asking import streamed
from tests.support.processes import Cluster, Shape, running
from tests.support.valkey import Valkey, running_valkey

READY = "baton_worker_ready{"
RECORD, HINTS = "baton:worker:", "baton:workers"


@pytest.fixture
def valkey(tmp_path) -> Iterator[Valkey]:
    with running_valkey(tmp_path) as server:
        yield server


def shape(checkpoint: Path, prefill: int, decode: int, ttl_s: float, worker: dict, router: dict, gated: bool = False) -> Shape:
    both = {"timeouts": Timeouts(registry_ttl_s=ttl_s)}
    worker = {"kv_blocks": 512, "block_size": 16} | both | worker
    return Shape(checkpoint, prefill, decode, gated, True, tuple(worker.items()), tuple((both | router).items()))


@contextlib.asynccontextmanager
async def another_router(cluster: Cluster, valkey: Valkey, log: Path, ttl_s: float) -> AsyncIterator[httpx.Client]:
    """One more router over the same registry, which says that it is up when half a second has brought no worker."""
    config = RouterConfig(registry=valkey.url, port=0, grpc_port=0, timeouts=Timeouts(registry_ttl_s=ttl_s, replace_s=0.5))
    process = cluster.start("another router", "router.main", config, log)
    try:
        address = (await asyncio.to_thread(process.wait_ready))["address"]
        with httpx.Client(base_url=f"http://{address}", timeout=60, trust_env=False) as http:
            yield http
    finally:
        assert await asyncio.to_thread(process.stop) == 0


def listed(http: httpx.Client) -> dict[str, float]:
    """The series of every worker that the router knows: 1 while it is in rotation."""
    lines = http.get("/metrics").raise_for_status().text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if name.startswith(READY)}


def entry(cluster: Cluster, index: int) -> str:
    worker = cluster.workers[index]
    return f'{READY}role="{worker.role}",worker="{worker.address}"}}'


def everybody(cluster: Cluster) -> dict[str, float]:
    return {entry(cluster, index): 1.0 for index in range(len(cluster.workers))}


def in_rotation(http: httpx.Client) -> list[str]:
    return sorted(name.partition('worker="')[2] for name, value in listed(http).items() if value)


async def small_request(cluster: Cluster) -> tuple[dict, Answer]:
    fields = {"model": cluster.model, "prompt": "A", "max_tokens": 6, "temperature": 0}
    return fields, await reference(cluster, fields)


async def test_c846_a_dead_worker_costs_no_request_and_leaves_with_its_lease(valkey, scripted, tmp_path):
    registry = {"registry": valkey.url}
    with running(shape(scripted, 1, 2, 10.0, registry, registry), tmp_path) as cluster:
        load = Load([await small_request(cluster)])
        victim, dead = cluster.decode[1], f'{cluster.decode[1].address}"'
        async with steady(cluster, load, 0.1):
            await until(lambda: len(load.outcomes) >= 10, "ten have ended")
            victim.kill()
            async with another_router(cluster, valkey, tmp_path / "router-2.log", 10.0) as other:
                await until(lambda: len(in_rotation(other)) == 2, "a router that starts now finds the others")
                assert valkey.client.exists(RECORD + victim.address)
                assert sum(dead in name for name in listed(other)) == 1
                while any(dead in name for name in listed(other)):
                    assert len(in_rotation(other)) == 2
                    await asyncio.sleep(0.2)
            await until(lambda: not any(dead in name for name in listed(cluster.http)), "the entry is gone", wait_s=5.0)
        assert len(load.failures) <= 2, load.failures
        assert len(load.outcomes) > 30
        victim.restart()
        await until(lambda: listed(cluster.http) == everybody(cluster), "it is listed again")
        cluster.assert_idle()


async def test_c719_a_registry_that_goes_and_forgets_costs_nothing(valkey, scripted, tmp_path):
    registry, ttl_s = {"registry": valkey.url}, 1.5
    with running(shape(scripted, 1, 1, ttl_s, registry, registry), tmp_path) as cluster:
        load = Load([await small_request(cluster)])
        async with steady(cluster, load, 0.1):
            valkey.kill()
            async with another_router(cluster, valkey, tmp_path / "router-2.log", ttl_s) as other:
                refusal = other.get("/readyz")
                assert refusal.status_code == 503
                assert valkey.url in refusal.text
                assert valkey.url in (tmp_path / "router-2.log").read_text()
                await asyncio.sleep(2 * ttl_s)  # the outage: longer than a record lives
                valkey.start()
                await until(lambda: listed(other) == everybody(cluster), "the new router knows all", wait_s=10.0)
                await until(lambda: other.get("/readyz").status_code == 200, "it is ready")
                valkey.client.flushall()
                await until(lambda: valkey.client.scard(HINTS) == 2, "both have registered again", wait_s=10.0)
                with valkey.paused():
                    await asyncio.sleep(2 * ttl_s)
                await until(lambda: counted(cluster, "baton_registry_current") == 1, "the registry is read again", wait_s=10.0)
                await asyncio.sleep(1.2 * ttl_s)  # long enough for who has not come back to be dropped
                for http in (other, cluster.http):
                    assert listed(http) == everybody(cluster)
        assert not load.failures
        cluster.assert_idle()


async def test_c927_an_address_is_listed_once_with_its_latest_role(valkey, scripted, tmp_path):
    registry = {"registry": valkey.url}
    with running(shape(scripted, 2, 2, 3.0, registry, registry, gated=True), tmp_path) as cluster:
        first, second = cluster.decode
        for _ in range(3):
            valkey.client.set(RECORD + first.address, valkey.client.get(RECORD + first.address), keepttl=True)
            valkey.client.publish(HINTS, first.address)
        await _removed_and_back_under_streams(cluster, valkey, second.address)
        assert first.process.stop() == 0
        await until(lambda: first.address not in str(listed(cluster.http)), "it has left")
        first.become(Role.PREFILL)
        await until(lambda: listed(cluster.http) == everybody(cluster), "it is there as a prefill worker, once")
        await _shared_evenly(cluster, 40)
        await until(lambda: _busy(cluster.gauges()) == 0, "every worker has told that it is idle")
        assert min(cluster.gauges().values()) == 0


def _busy(gauges: dict[str, float]) -> float:
    return sum(value for name, value in gauges.items() if name.startswith("baton_worker_num_"))


async def _removed_and_back_under_streams(cluster: Cluster, valkey: Valkey, address: str) -> None:
    """Ten streams, and a decode worker that is taken from the list in their midst."""
    fields = {"model": cluster.model, "prompt": "0", "max_tokens": 60, "temperature": 0}
    expected = await reference(cluster, fields)
    with contextlib.ExitStack() as slowly:
        for worker in cluster.decode:
            slowly.enter_context(worker.gate.slowed(0.05))
        streams = [asyncio.create_task(streamed(cluster, fields)) for _ in range(10)]
        await until(lambda: cluster.gauges()[f'baton_worker_num_decodes{{role="decode",worker="{address}"}}'] >= 4, "they run")
        valkey.client.set(RECORD + address, json.dumps({"gone": True}), keepttl=True)
        valkey.client.publish(HINTS, address)
        await until(lambda: len(in_rotation(cluster.http)) == 3, "it is taken out")
        await until(lambda: len(in_rotation(cluster.http)) == 4, "it has registered again")
        assert min(cluster.gauges().values()) >= 0
        assert not any(stream.done() for stream in streams)
        assert await asyncio.gather(*streams) == [expected] * 10
    await until(lambda: counted(cluster, "baton_num_requests_running") == 0, "all have ended")
    assert listed(cluster.http) == everybody(cluster)


async def _shared_evenly(cluster: Cluster, num: int) -> None:
    """Requests one after the other: three prefill workers share them, one decode worker takes all."""
    name = 'baton_worker_prompt_tokens_total{{role="prefill",worker="{}"}}'
    prefills = [name.format(worker.address) for worker in cluster.workers if worker.role is Role.PREFILL]
    before = cluster.metrics()
    fields, expected = await small_request(cluster)
    for _ in range(num):
        assert await streamed(cluster, fields) == expected
    length = expected.prompt_tokens
    await until(
        lambda: sum(cluster.metrics()[each] - before[each] for each in prefills) == num * length, "every prompt is counted"
    )
    after = cluster.metrics()
    shares = [(after[each] - before[each]) / length for each in prefills]
    assert max(shares) - min(shares) <= 1, (shares, cluster.gauges())


async def test_c653_workers_that_come_and_go_leave_no_series(scripted, tmp_path):
    """The router is its own registry; twenty lives of a third worker, each at another port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with running(shape(scripted, 1, 1, 10.0, {"router": f"127.0.0.1:{port}"}, {"registry_port": port}), tmp_path) as cluster:
        num_series = len(cluster.metrics())
        addresses = set()
        for life in range(20):
            address = await _one_life(cluster, scripted, f"127.0.0.1:{port}", tmp_path / f"life-{life}.log")
            addresses.add(address)
            assert len(cluster.metrics()) == num_series
        assert len(addresses) > 1
        cluster.assert_idle()
        cluster.assert_serving()


async def _one_life(cluster: Cluster, checkpoint: Path, router: str, log: Path) -> str:
    config = WorkerConfig(role=Role.DECODE, model=str(checkpoint), router=router, threads=1, kv_blocks=512, block_size=16)
    process = cluster.start(log.stem, "baton.cli.worker", config, log)
    address = str(process.wait_ready()["address"])
    await until(lambda: listed(cluster.http).get(f'{READY}role="decode",worker="{address}"}}') == 1, "it is in rotation")
    assert process.stop() == 0
    await until(lambda: address not in str(cluster.metrics()), "it has left")
    return address
