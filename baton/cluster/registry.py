"""Which workers there are. The router follows a registry; who fills it (flags, Redis, Kubernetes) is not its business."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Protocol

from baton.wire.types import Endpoint


class Registry(Protocol):
    """The set of workers over time. A role given here is a hint: a worker says its own when its link opens."""

    def watch(self) -> AsyncIterator[frozenset[Endpoint]]:
        """The workers now, then again after each change; a slow reader skips to the latest. Never ends by itself."""
        ...


class MemoryRegistry:
    """A registry in this process: filled from flags, or by tests."""

    def __init__(self, endpoints: Iterable[Endpoint] = ()) -> None:
        self._endpoints = frozenset(endpoints)
        self._changed = asyncio.Event()

    def add(self, endpoint: Endpoint) -> None:
        self._set(self._endpoints | {endpoint})

    def remove(self, endpoint: Endpoint) -> None:
        self._set(self._endpoints - {endpoint})

    async def watch(self) -> AsyncIterator[frozenset[Endpoint]]:
        seen: frozenset[Endpoint] | None = None
        while True:
            changed = self._changed
            if self._endpoints != seen:
                seen = self._endpoints
                yield seen
            else:
                await changed.wait()

    def _set(self, endpoints: frozenset[Endpoint]) -> None:
        self._endpoints = endpoints
        self._changed.set()
        self._changed = asyncio.Event()  # each wait has its own event, so that no watcher misses a change
