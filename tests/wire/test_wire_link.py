"""The link over real gRPC on loopback: breaks, resumptions, graces, deaths."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from link_support import LIMIT_S, TIMEOUTS, Relay, Router, Worker, linked

from baton.wire.link_client import Inbox, LinkDied
from baton.wire.types import End, Fence, Fenced, Finish, Finished, FinishReason, Reserved, Token, Tokens

LEASE, OTHER = b"l" * 16, b"o" * 16


async def ended(worker: Worker) -> bytes:
    async with asyncio.timeout(LIMIT_S):
        return await worker.role.ended.get()


async def test_the_hello_brings_the_workers_card_and_load() -> None:
    async with linked() as (_, _, router):
        assert router.link.info is not None
        assert router.link.info.card.name == "tiny"
        await router.until(lambda: router.link.load.kv_blocks_total == 4)


async def test_a_start_is_answered_and_its_tokens_come_in_order() -> None:
    async with linked() as (worker, _, router):
        router.start(LEASE)
        assert await router.get() == Reserved(LEASE, 1, 0)
        for index in range(20):
            worker.role.records[LEASE].output(0, index, Token(index))
        assert await router.ids(20) == list(range(20))


async def test_one_message_carries_a_step_of_all_requests() -> None:
    async with linked() as (worker, _, router):
        for lease in (LEASE, OTHER):
            router.start(lease)
            await router.get()
        for lease in (LEASE, OTHER):
            worker.role.records[lease].output(0, 0, Token(7))
        await router.get()
        assert router.inbox.get_nowait() is not None


async def test_a_short_break_is_invisible() -> None:
    async with linked() as (worker, relay, router):
        router.start(LEASE)
        await router.get()
        record = worker.role.records[LEASE]
        found: list[int] = []
        for index in range(10):
            record.output(0, 2 * index, Token(2 * index))
            found += await router.ids(1)
            relay.cut()
            record.output(0, 2 * index + 1, Token(2 * index + 1))
            found += await router.ids(1)
        assert found == list(range(20))
        assert worker.role.starts == [(LEASE, 1)]
        assert worker.role.ended.empty()


async def test_commands_lost_with_a_break_are_sent_again() -> None:
    async with linked() as (worker, relay, router):
        relay.hold()
        router.start(LEASE)
        relay.let_go()
        assert await router.get() == Reserved(LEASE, 1, 0)
        relay.hold()
        router.link.send(Fence(LEASE, 2))
        relay.let_go()
        while (event := await router.get()) != Fenced(LEASE, 2, 0):
            assert event == Reserved(LEASE, 1, 0)
        assert worker.role.starts == [(LEASE, 1)]


async def test_a_resumption_ends_what_the_router_no_longer_follows() -> None:
    async with linked() as (worker, relay, router):
        router.start(LEASE)
        router.start(OTHER, choices=(0, 1))
        await router.get()
        await router.get()
        for choice in (0, 1):
            worker.role.records[OTHER].output(choice, 0, Token(5))
            await router.get()
        relay.hold()
        router.link.send(End(LEASE))
        router.link.send(Finish(OTHER, 1))
        del router.live[LEASE, 0], router.live[OTHER, 1]
        relay.let_go()
        assert await ended(worker) == LEASE
        assert worker.role.finished == [(OTHER, 1)]
        assert worker.links.num_leases == 1


async def test_a_lease_that_ends_behind_its_hello_is_ended_all_the_same() -> None:
    async with linked() as (worker, relay, router):
        router.start(LEASE)
        await router.get()
        relay.hold()
        async with asyncio.timeout(LIMIT_S):
            await relay.waiting.wait()  # the hello that names the lease is made
        router.link.send(End(LEASE))
        relay.let_go()
        assert await ended(worker) == LEASE
        assert worker.links.num_leases == 0


async def test_an_end_drops_the_record() -> None:
    async with linked() as (worker, _, router):
        router.start(LEASE)
        await router.get()
        router.link.send(End(LEASE))
        assert await ended(worker) == LEASE
        await worker.links.drained()
        assert worker.links.num_leases == 0


async def test_after_the_routers_grace_every_inbox_hears_of_the_death() -> None:
    async with linked(replace(TIMEOUTS, router_grace_s=0.1)) as (worker, relay, router):
        router.start(LEASE)
        await router.get()
        relay.hold()
        while not isinstance(event := await router.get(), LinkDied):
            assert event == Reserved(LEASE, 1, 0)
        assert not router.link.up
        router.link.attach(OTHER, router.inbox)
        assert isinstance(await router.get(), LinkDied)
        relay.let_go()
        assert await ended(worker) == LEASE  # the new link id ends what the old one had
        await router.up()


NO_END = replace(TIMEOUTS, router_grace_s=3600.0, worker_grace_s=3600.0)


async def test_a_refused_connection_is_a_death_at_once() -> None:
    worker = Worker(NO_END)
    async with Router(worker.server.address, NO_END) as router:
        async with worker:
            await router.up()
            router.start(LEASE)
            await router.get()
        assert isinstance(await router.get(), LinkDied)
        assert not router.link.up


async def test_a_worker_that_does_not_answer_is_waited_for() -> None:
    timeouts = replace(NO_END, connect_s=0.2)
    async with linked(timeouts) as (worker, relay, router):
        router.start(LEASE)
        await router.get()
        relay.hold()
        await router.until(lambda: "no connection within" in (router.link.error or ""))
        assert router.link.up
        relay.let_go()
        worker.role.records[LEASE].output(0, 0, Token(7))
        assert await router.ids(1) == [7]


async def test_after_the_workers_grace_everything_of_the_link_is_ended() -> None:
    async with linked(replace(TIMEOUTS, worker_grace_s=0.1)) as (worker, relay, router):
        router.start(LEASE)
        await router.get()
        relay.hold()
        assert await ended(worker) == LEASE
        relay.let_go()
        assert isinstance(await router.get(), LinkDied)
        assert router.link.up  # the worker lives: only what it forgot has died


async def test_a_routers_end_ends_its_leases() -> None:
    timeouts = replace(TIMEOUTS, worker_grace_s=0.1)
    async with Worker(timeouts) as worker, Router(worker.server.address, timeouts) as staying:
        await staying.up()
        staying.start(OTHER)
        async with Router(worker.server.address, timeouts) as leaving:
            await leaving.up()
            leaving.start(LEASE)
            await leaving.get()
        assert await ended(worker) == LEASE
        assert worker.links.num_leases == 1


async def test_a_restarted_worker_is_another_worker() -> None:
    async with (
        Worker() as first,
        Worker(incarnation=b"x" * 16) as second,
        Relay(first.server.address) as relay,
        Router(relay.address) as router,
    ):
        await router.up()
        router.start(LEASE)
        await router.get()
        relay.aim(second.server.address)
        relay.cut()
        assert isinstance(await router.get(), LinkDied)
        assert router.link.up
        assert router.link.info is not None
        assert router.link.info.incarnation == b"x" * 16


async def test_a_silent_worker_breaks_the_link() -> None:
    timeouts = replace(TIMEOUTS, heartbeat_s=30.0)
    async with Worker(timeouts) as worker, Router(worker.server.address, replace(TIMEOUTS, heartbeat_misses=1)) as router:
        await router.up()
        await router.until(lambda: "no heartbeat" in (router.link.error or ""))


async def test_a_wrong_token_is_refused_before_any_handler() -> None:
    async with Worker() as worker, Router(worker.server.address, token="guess") as router:
        await router.until(lambda: "token" in (router.link.error or ""))
        assert router.link.info is None


async def test_a_slow_link_coalesces() -> None:
    """While nothing is read the worker writes on: it finds one run of tokens, not one message each."""
    async with linked() as (worker, relay, router):
        router.start(LEASE)
        await router.get()
        relay.hold()
        record = worker.role.records[LEASE]
        for index in range(50_000):
            record.output(0, index, Token(index % 256))
        record.answer(Finished(LEASE, 1, 0, FinishReason.LENGTH, 50_000))
        relay.let_go()
        assert await router.ids(50_000) == [index % 256 for index in range(50_000)]
        assert isinstance(await router.get(), Finished)


async def test_draining_refuses_starts() -> None:
    async with linked() as (worker, _, router):
        worker.links.draining = True
        router.start(LEASE)
        event = await router.get()
        assert getattr(event, "reason", None) == "draining"
        assert worker.role.starts == []


@pytest.mark.parametrize("before", [True, False])
async def test_an_inbox_keeps_order_and_wakes_its_reader(before: bool) -> None:
    inbox = Inbox(tuple)
    link = Router("127.0.0.1:1").link
    first, second = Tokens(LEASE, 1, 0, 0, (Token(1),)), LinkDied(LEASE, "gone")
    reader = None if before else asyncio.create_task(inbox.get())
    await asyncio.sleep(0)
    inbox.put(link, first)
    inbox.put(link, second)
    async with asyncio.timeout(LIMIT_S):
        assert await (reader or inbox.get()) == (link, first)
        assert await inbox.get() == (link, second)
