"""The registry on a real Valkey: one view for all routers, whatever happens to the server or to the records."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from baton.cluster.announce import announced
from baton.cluster.registry_redis import RECORD, WORKERS, RedisAnnouncer, RedisRegistry
from baton.wire.registry import RegistryError
from baton.wire.types import Endpoint, Registration, Role
from tests.faults.talk import until
from tests.support.valkey import Valkey, running_valkey

LIMIT_S = 30.0
TTL_S = 1.0
A = Registration("10.0.0.1:9001", Role.PREFILL, "tiny", 2048, 8, b"a" * 16)
B = Registration("10.0.0.2:9002", Role.DECODE, "tiny", 2048, 8, b"b" * 16)


@pytest.fixture(scope="module")
def _server(tmp_path_factory) -> Iterator[Valkey]:
    with running_valkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def valkey(_server) -> Valkey:
    _server.client.flushall()
    return _server


class Watcher:
    """A router's eyes: `workers` is its view now."""

    def __init__(self, registry: RedisRegistry) -> None:
        self.registry = registry
        self.workers: frozenset[Endpoint] | None = None
        self.history: list[frozenset[Endpoint]] = []

    async def follow(self) -> None:
        async for workers in self.registry.watch():
            self.workers = workers
            self.history.append(workers)

    async def until(self, *workers: Registration) -> None:
        await until(lambda: self.workers == {worker.endpoint for worker in workers}, f"{workers} are listed")


@contextlib.asynccontextmanager
async def watching(valkey: Valkey, password: str = "", ttl_s: float = TTL_S) -> AsyncIterator[Watcher]:
    watcher = Watcher(RedisRegistry(valkey.url, password, ttl_s))
    task = asyncio.create_task(watcher.follow())
    try:
        yield watcher
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled(), task.exception()


@contextlib.asynccontextmanager
async def announcing(valkey: Valkey, password: str = "") -> AsyncIterator[RedisAnnouncer]:
    announcer = RedisAnnouncer(valkey.url, password)
    try:
        yield announcer
    finally:
        await announcer.close()


async def test_routers_see_who_comes_and_who_says_goodbye(valkey):
    async with watching(valkey) as one, watching(valkey) as other, announcing(valkey) as announcer:
        for watcher in (one, other):
            await watcher.until()
        await announcer.announce(A, 60.0)
        await announcer.announce(B, 60.0)
        for watcher in (one, other):
            await watcher.until(A, B)
        await announcer.withdraw(A)
        for watcher in (one, other):
            await watcher.until(B)
        assert one.registry.error is None


async def test_a_record_is_the_worker_whole_with_its_time_to_live(valkey):
    async with announcing(valkey) as announcer:
        await announcer.announce(A, 60.0)
    record = json.loads(valkey.client.get(RECORD + A.address))
    expected = {
        "role": "prefill",
        "model": "tiny",
        "capacity_tokens": 2048,
        "max_num_seqs": 8,
        "incarnation": A.incarnation.hex(),
    }
    assert record == expected
    assert 50_000 < valkey.client.pttl(RECORD + A.address) <= 60_000


async def test_who_is_not_renewed_leaves_and_so_does_his_place_in_the_index(valkey):
    async with watching(valkey) as watcher, announcing(valkey) as announcer:
        await announcer.announce(A, 0.5)
        await announcer.announce(B, 60.0)
        await watcher.until(A, B)
        await watcher.until(B)
        assert valkey.client.smembers(WORKERS) == {B.address}


async def test_the_latest_word_about_an_address_counts(valkey):
    """C927: registered again as it is, then with another role; the goodbye of the former life says nothing."""
    later = replace(A, role=Role.DECODE, incarnation=b"c" * 16)
    async with watching(valkey) as watcher, announcing(valkey) as announcer:
        for _ in range(3):
            await announcer.announce(A, 60.0)
        await watcher.until(A)
        await announcer.announce(later, 60.0)
        await watcher.until(later)
        await announcer.withdraw(A)
        await announcer.announce(B, 60.0)
        await watcher.until(later, B)
        assert all(len({worker.address for worker in view}) == len(view) for view in watcher.history)


@pytest.mark.parametrize("record", ["[]", "{", '"x"', '{"role": "cook"}', "{}"])
async def test_a_record_that_is_not_ours_is_left_out(valkey, record):
    valkey.client.set(RECORD + "evil:1", record)
    valkey.client.sadd(WORKERS, "evil:1", b"\xff\xfe")
    async with watching(valkey) as watcher, announcing(valkey) as announcer:
        await announcer.announce(A, 60.0)
        await watcher.until(A)


async def test_two_routers_agree_while_membership_flaps(valkey):
    """F24: changes faster than readings; both end with what is so, and the one that never left was never missing."""
    async with watching(valkey) as one, watching(valkey) as other, announcing(valkey) as announcer:
        await announcer.announce(B, 60.0)
        for watcher in (one, other):
            await watcher.until(B)
        for _ in range(10):
            await announcer.announce(A, 60.0)
            await asyncio.sleep(0.1)
            await announcer.withdraw(A)
            await asyncio.sleep(0.1)
        await announcer.announce(A, 60.0)
        for watcher in (one, other):
            await watcher.until(A, B)
            assert all(B.endpoint in view for view in watcher.history[1:])


async def test_who_was_forgotten_stays_for_the_time_that_he_had_left(valkey):
    async with watching(valkey) as watcher, announcing(valkey) as announcer:
        await announcer.announce(A, 60.0)
        await watcher.until(A)
        valkey.client.flushall()
        await announcer.announce(B, 60.0)
        await watcher.until(A, B)
        assert all(A.endpoint in view for view in watcher.history[-2:])


async def test_no_life_ends_while_the_server_is_away(valkey):
    async with watching(valkey, ttl_s=60.0) as watcher, announcing(valkey) as announcer:
        await announcer.announce(A, 1.0)
        await watcher.until(A)
        valkey.kill()
        await until(lambda: watcher.registry.error, "the loss is noticed")
        await asyncio.sleep(1.0)  # longer than the record would have lived
        valkey.start()
        await until(lambda: not watcher.registry.error, "it is read again")
        async with announcing(valkey) as newcomer:
            await newcomer.announce(B, 60.0)
        await watcher.until(A, B)
        assert all(A.endpoint in view for view in watcher.history[-2:])


async def test_a_server_that_was_emptied_killed_or_paused_takes_nobody_away(valkey):
    """F23: the last view stays, and the workers are there again under a server that had forgotten them."""
    async with watching(valkey) as watcher, contextlib.AsyncExitStack() as workers:
        for registration in (A, B):
            announcer = RedisAnnouncer(valkey.url, "")
            await workers.enter_async_context(announced(announcer, registration, TTL_S))
        await watcher.until(A, B)
        del watcher.history[:]
        valkey.client.flushall()
        await until(lambda: valkey.client.scard(WORKERS) == 2, "both have registered again")
        valkey.kill()
        await until(lambda: watcher.registry.error, "the loss is noticed")
        assert valkey.url in watcher.registry.error
        await asyncio.sleep(2 * TTL_S)  # the outage: longer than a record lives
        valkey.start()
        await until(lambda: valkey.client.scard(WORKERS) == 2 and not watcher.registry.error, "both have registered anew")
        with valkey.paused():
            await until(lambda: watcher.registry.error, "the pause is noticed")
            await asyncio.sleep(TTL_S)
        await until(lambda: not watcher.registry.error, "it is read again")
        await until(lambda: all(valkey.client.exists(RECORD + worker.address) for worker in (A, B)), "both are back")
        assert watcher.history == []
        assert watcher.workers == {A.endpoint, B.endpoint}


async def test_a_pause_is_an_error_in_bounded_time(valkey):
    async with announcing(valkey) as announcer:
        with valkey.paused(), pytest.raises(RegistryError, match="does not answer"):
            await asyncio.wait_for(announcer.announce(A, 60.0), LIMIT_S)
        await announcer.announce(A, 60.0)


async def test_the_password_is_asked_for_and_never_told(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    with running_valkey(tmp_path, "open-sesame") as valkey:
        async with announcing(valkey, "wrong-word") as stranger:
            with pytest.raises(RegistryError) as refused:
                await stranger.announce(A, 60.0)
        async with watching(valkey, "open-sesame") as watcher, announcing(valkey, "open-sesame") as announcer:
            await announcer.announce(A, 60.0)
            await watcher.until(A)
    assert not any(word in caplog.text + str(refused.value) for word in ("sesame", "wrong-word"))
