"""The router's registry service: what it takes, from whom, and what a worker hears when it is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from baton.wire.registry import RegistryCalls, RegistryError, RegistryServer
from baton.wire.servers import AddressTaken
from baton.wire.types import Incarnation, Registration, Role

TOKEN = "a token"
ME = Registration("10.0.0.1:9000", Role.PREFILL, "tiny", 2048, 8, b"i" * 16)


class Book:
    def __init__(self) -> None:
        self.entries: list[tuple[Registration, float]] = []
        self.withdrawn: list[tuple[str, Incarnation]] = []

    def register(self, registration: Registration, ttl_s: float) -> None:
        self.entries.append((registration, ttl_s))

    def withdraw(self, address: str, incarnation: Incarnation) -> None:
        self.withdrawn.append((address, incarnation))


@asynccontextmanager
async def serving(book: Book, port: int = 0) -> AsyncIterator[RegistryServer]:
    server = RegistryServer("127.0.0.1", port, TOKEN, book)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def calling(address: str, token: str = TOKEN) -> AsyncIterator[RegistryCalls]:
    calls = RegistryCalls(address, token)
    try:
        yield calls
    finally:
        await calls.close()


@pytest.mark.parametrize("role", list(Role))
async def test_a_registration_arrives_whole(role: Role) -> None:
    book, registration = Book(), replace(ME, role=role)
    async with serving(book) as server, calling(server.address) as calls:
        await calls.announce(registration, 2.5)
        await calls.withdraw(registration)
    assert book.entries == [(registration, 2.5)]
    assert book.withdrawn == [(ME.address, ME.incarnation)]


@pytest.mark.parametrize(("changes", "ttl_s"), [({"address": "no-port"}, 1.0), ({"address": ":9"}, 1.0), ({}, 0.0), ({}, -1.0)])
async def test_what_makes_no_sense_is_refused(changes: dict[str, str], ttl_s: float) -> None:
    book = Book()
    async with serving(book) as server, calling(server.address) as calls:
        with pytest.raises(RegistryError, match=r"address|ttl_s"):
            await calls.announce(replace(ME, **changes), ttl_s)
    assert not book.entries


async def test_nobody_registers_without_the_token() -> None:
    book = Book()
    async with serving(book) as server, calling(server.address, "another") as calls:
        with pytest.raises(RegistryError):
            await calls.announce(ME, 1.0)
        with pytest.raises(RegistryError):
            await calls.withdraw(ME)
    assert not book.entries + book.withdrawn


async def test_a_taken_port_is_named() -> None:
    async with serving(Book()) as server:
        with pytest.raises(AddressTaken, match=server.address):
            RegistryServer("127.0.0.1", int(server.address.rpartition(":")[2]), TOKEN, Book())


async def test_a_router_that_comes_back_is_found_again() -> None:
    first, second = Book(), Book()
    async with serving(first) as server:
        address = server.address
    async with calling(address) as calls:
        with pytest.raises(RegistryError, match=address):
            await calls.announce(ME, 1.0)
        async with serving(second, int(address.rpartition(":")[2])), asyncio.timeout(20.0):
            while not second.entries:
                try:
                    await calls.announce(ME, 1.0)
                except RegistryError:
                    await asyncio.sleep(0.05)
    assert second.entries == [(ME, 1.0)]
