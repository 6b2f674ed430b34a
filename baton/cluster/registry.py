"""Which workers there are. The router follows a registry; who fills it (flags, workers, Redis) is not its business."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Protocol

from baton.wire.types import Endpoint, Incarnation, Registration


class Registry(Protocol):
    """The set of workers over time. A role given here is a hint: a worker says its own when its link opens."""

    @property
    def error(self) -> str | None:
        """Why the last view may be old; None: it is current."""
        ...

    def watch(self) -> AsyncIterator[frozenset[Endpoint]]:
        """The workers now, then again after each change; a slow reader skips to the latest. Never ends by itself.

        A registry that cannot be read keeps its last view and says so in `error`; it does not raise.
        """
        ...


class Announcer(Protocol):
    """A worker's end of a registry. `name` says which one, without secrets. Calls raise RegistryError, each within seconds."""

    name: str

    async def announce(self, registration: Registration, ttl_s: float) -> None:
        """The worker is listed for `ttl_s` seconds from now; the latest word about an address counts."""
        ...

    async def withdraw(self, registration: Registration) -> None:
        """The worker is no longer listed, unless another process life has registered its address since."""
        ...

    async def close(self) -> None: ...


class MemoryRegistry:
    """A registry in this process, one entry for each address: filled from flags, by a Roster, or by tests."""

    error = None

    def __init__(self, endpoints: Iterable[Endpoint] = ()) -> None:
        self._endpoints = {endpoint.address: endpoint for endpoint in endpoints}
        self._changed = asyncio.Event()

    def add(self, endpoint: Endpoint) -> None:
        self._set(self._endpoints | {endpoint.address: endpoint})

    def remove(self, endpoint: Endpoint) -> None:
        self._set({address: other for address, other in self._endpoints.items() if address != endpoint.address})

    def addresses(self) -> frozenset[str]:
        return frozenset(self._endpoints)

    async def watch(self) -> AsyncIterator[frozenset[Endpoint]]:
        seen: frozenset[Endpoint] | None = None
        while True:
            changed, now = self._changed, frozenset(self._endpoints.values())
            if now != seen:
                seen = now
                yield seen
            else:
                await changed.wait()

    def _set(self, endpoints: dict[str, Endpoint]) -> None:
        self._endpoints = endpoints
        self._changed.set()
        self._changed = asyncio.Event()  # each wait has its own event, so that no watcher misses a change


@dataclass(frozen=True, slots=True)
class _Entry:
    registration: Registration
    end: asyncio.TimerHandle


class Roster:
    """Registrations that end by themselves, kept in a MemoryRegistry. What was in there before stays in there."""

    def __init__(self, registry: MemoryRegistry) -> None:
        self._registry = registry
        self._fixed = registry.addresses()
        self._entries: dict[str, _Entry] = {}

    def register(self, registration: Registration, ttl_s: float) -> None:
        """Lists the worker for `ttl_s` seconds; the latest word about an address counts."""
        address = registration.address
        if address in self._entries:
            self._entries[address].end.cancel()
        end = asyncio.get_running_loop().call_later(ttl_s, self._remove, address)
        self._entries[address] = _Entry(registration, end)
        self._registry.add(registration.endpoint)

    def withdraw(self, address: str, incarnation: Incarnation) -> None:
        """The worker leaves; nothing happens if another process life has the address."""
        entry = self._entries.get(address)
        if entry is not None and entry.registration.incarnation == incarnation:
            self._remove(address)

    def close(self) -> None:
        """Forgets every registration without a word to the watchers."""
        for entry in self._entries.values():
            entry.end.cancel()
        self._entries.clear()

    def _remove(self, address: str) -> None:
        entry = self._entries.pop(address)
        entry.end.cancel()
        if address not in self._fixed:
            self._registry.remove(entry.registration.endpoint)
