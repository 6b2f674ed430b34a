"""What a router holds of a registry that may forget: pure, on the reader's clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from baton.wire.types import Endpoint


@dataclass(frozen=True, slots=True)
class Listed:
    """An entry as it was read: it has `rest_s` seconds to live unless it is renewed."""

    endpoint: Endpoint
    rest_s: float


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A worker that said goodbye."""

    address: str


class View:
    """Keeps each worker until its time to live is over, whether or not the registry still has it.

    So a registry that was emptied takes nobody away who registers again in time, and a worker that died leaves when it would
    have left anyway. While the registry cannot be read no time passes: afterwards everybody has `ttl_s` to come back.
    """

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._endpoints: dict[str, Endpoint] = {}
        self._ends: dict[str, float] = {}
        self._interrupted = False

    def interrupt(self) -> None:
        """The registry could not be read."""
        self._interrupted = True

    def take(self, entries: Iterable[Listed | Withdrawn], now: float) -> frozenset[Endpoint]:
        """The workers after a reading of the whole registry at `now` seconds."""
        if self._interrupted:
            self._ends = {address: max(end, now + self._ttl_s) for address, end in self._ends.items()}
            self._interrupted = False
        for entry in entries:
            self._note(entry, now)
        for address in [address for address, end in self._ends.items() if end <= now]:
            self._drop(address)
        return frozenset(self._endpoints.values())

    def _note(self, entry: Listed | Withdrawn, now: float) -> None:
        if isinstance(entry, Withdrawn):
            self._drop(entry.address)
        else:
            self._endpoints[entry.endpoint.address] = entry.endpoint
            self._ends[entry.endpoint.address] = now + entry.rest_s

    def _drop(self, address: str) -> None:
        self._endpoints.pop(address, None)
        self._ends.pop(address, None)
