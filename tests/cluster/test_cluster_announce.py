"""A registration lives as long as its worker: renewed, made again after a loss, withdrawn at the end, never in the way."""

from __future__ import annotations

import asyncio
import logging

import pytest

from baton.cluster.announce import announced
from baton.cluster.registry import MemoryRegistry, Roster
from baton.wire.registry import RegistryError
from baton.wire.types import Endpoint, Registration, Role

LIMIT_S = 20.0
TTL_S = 0.3
ME = Registration("a:1", Role.DECODE, "tiny", 1024, 8, b"1" * 16)


class Notebook:
    """An Announcer whose registry can be away."""

    name = "the notebook"

    def __init__(self) -> None:
        self.away = False
        self.calls: asyncio.Queue[str] = asyncio.Queue()
        self.closed = False

    async def announce(self, registration: Registration, ttl_s: float) -> None:
        self._note("announce")

    async def withdraw(self, registration: Registration) -> None:
        self._note("withdraw")

    async def close(self) -> None:
        self.closed = True

    async def next(self) -> str:
        return await asyncio.wait_for(self.calls.get(), LIMIT_S)

    def _note(self, call: str) -> None:
        self.calls.put_nowait(call)
        if self.away:
            raise RegistryError("the notebook is away")


async def test_it_is_renewed_and_withdrawn():
    notebook = Notebook()
    async with announced(notebook, ME, TTL_S):
        assert [await notebook.next() for _ in range(3)] == ["announce"] * 3
    calls = [notebook.calls.get_nowait() for _ in range(notebook.calls.qsize())]
    assert calls[-1] == "withdraw"
    assert notebook.closed


async def test_a_registry_that_is_away_stops_nobody_and_is_asked_again(caplog):
    caplog.set_level(logging.INFO)
    notebook = Notebook()
    notebook.away = True
    async with announced(notebook, ME, TTL_S):
        for _ in range(4):
            await notebook.next()
        assert [record.levelname for record in caplog.records].count("WARNING") == 1
        notebook.away = False
        while "registered with the notebook" not in caplog.text:
            await notebook.next()
        notebook.away = True
    assert "the entry ends by itself" in caplog.text
    assert notebook.closed


async def test_a_fault_of_ours_is_seen():
    class Faulty(Notebook):
        async def announce(self, registration: Registration, ttl_s: float) -> None:
            self.calls.put_nowait("announce")
            raise ZeroDivisionError

    async def serve(notebook: Notebook) -> None:
        async with announced(notebook, ME, TTL_S):
            await notebook.next()
            await asyncio.sleep(0)

    with pytest.raises(ZeroDivisionError):
        await serve(Faulty())


# --- the router's own registry ----------------------------------------------------------------------------------------

FIXED, SAME = Endpoint("f:1", Role.BOTH), Endpoint("a:1", Role.DECODE)


async def seen(registry: MemoryRegistry) -> frozenset[Endpoint]:
    watch = registry.watch()
    try:
        return await anext(watch)
    finally:
        await watch.aclose()


async def test_an_entry_ends_by_itself_and_what_was_fixed_stays():
    registry = MemoryRegistry([FIXED])
    roster, watch = Roster(registry), registry.watch()
    assert await anext(watch) == {FIXED}
    roster.register(ME, 0.05)
    roster.register(Registration("f:1", Role.PREFILL, "tiny", 1, 1, b"f" * 16), 0.05)
    assert {endpoint.address for endpoint in await anext(watch)} == {"a:1", "f:1"}
    while "a:1" in registry.addresses():
        await asyncio.wait_for(anext(watch), LIMIT_S)
    assert registry.addresses() == {"f:1"}
    await watch.aclose()


async def test_the_latest_word_about_an_address_counts():
    registry = MemoryRegistry()
    roster = Roster(registry)
    roster.register(ME, 60.0)
    roster.register(Registration("a:1", Role.PREFILL, "tiny", 1024, 8, b"2" * 16), 60.0)
    assert await seen(registry) == {Endpoint("a:1", Role.PREFILL)}
    roster.withdraw("a:1", ME.incarnation)
    assert registry.addresses() == {"a:1"}
    roster.withdraw("a:1", b"2" * 16)
    roster.withdraw("a:1", b"2" * 16)
    assert registry.addresses() == frozenset()
    roster.close()


async def test_a_renewed_entry_outlives_its_first_end():
    registry = MemoryRegistry()
    roster = Roster(registry)
    roster.register(ME, 0.01)
    roster.register(ME, 60.0)
    await asyncio.sleep(0.05)
    assert registry.addresses() == {"a:1"}
    roster.close()
