"""Which transport a pair of workers takes: the first in the sender's order that both offer and that has not failed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from baton.wire.errors import PairingRefused, TransferError
from baton.wire.types import DecodeTarget, Incarnation, KvEndpoint, KvHello, Timeouts
from kvtransfer.transports.base import Channel, Connect

FAILED_S = 60.0
"""So long a transport that failed towards a receiver comes after those that did not."""

Ask = Callable[[str, KvHello, str, Timeouts], Awaitable[tuple[KvEndpoint, ...]]]
"""Asks the worker behind an internal port how it can be reached."""


class Dialer:
    """A Connect over `ways`, in order of preference. An attempt never changes its transport: the next one takes the next.

    `local` reaches this worker itself, if it may be its own receiver. `usable` says whether an offer is worth a try from here.
    """

    def __init__(
        self,
        ways: Mapping[str, Connect],
        ask: Ask,
        *,
        usable: Callable[[KvEndpoint], bool] = lambda endpoint: True,
        local: Connect | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ways = dict(ways)
        self._ask = ask
        self._usable = usable
        self._local = local
        self._clock = clock
        self._failed: dict[tuple[Incarnation, str], float] = {}

    async def connect(self, address: str, hello: KvHello, token: str, timeouts: Timeouts) -> Channel:
        if self._local is not None and hello.receiver == hello.sender:
            return await self._local(address, hello, token, timeouts)
        try:
            async with asyncio.timeout(timeouts.connect_s):
                endpoint = self._choose(hello, await self._ask(address, hello, token, timeouts))
                return await self._dial(endpoint, address, hello, token, timeouts)
        except TimeoutError as error:
            raise TransferError("connect", f"no answer from {address} in {timeouts.connect_s:g} s") from error

    def failed(self, target: DecodeTarget, transport: str) -> None:
        """An attempt to `target` failed over `transport`, and not for what it carried."""
        self._failed[target.incarnation, transport] = self._clock()

    async def _dial(self, endpoint: KvEndpoint, address: str, hello: KvHello, token: str, timeouts: Timeouts) -> Channel:
        try:
            return await self._ways[endpoint.transport](_resolve(endpoint, address), hello, token, timeouts)
        except TransferError as error:
            if error.reason in ("connect", "shared_memory"):
                self.failed(DecodeTarget(address, hello.receiver), endpoint.transport)
            raise

    def _choose(self, hello: KvHello, offers: tuple[KvEndpoint, ...]) -> KvEndpoint:
        """Those that have not failed lately first, then the one whose failure is longest ago."""
        self._forget()
        theirs = {endpoint.transport: endpoint for endpoint in offers if self._usable(endpoint)}
        shared = [theirs[transport] for transport in self._ways if transport in theirs]
        if not shared:
            names = [endpoint.transport for endpoint in offers]
            raise PairingRefused(f"transports differ: the sender has {list(self._ways)}, the receiver {names} for it")
        return min(shared, key=lambda endpoint: self._failed.get((hello.receiver, endpoint.transport), -1.0))

    def _forget(self) -> None:
        oldest = self._clock() - FAILED_S
        self._failed = {key: at for key, at in self._failed.items() if at > oldest}


def _resolve(endpoint: KvEndpoint, address: str) -> str:
    """An offer that leaves out the host means the one that was asked."""
    if not endpoint.address:
        return address
    return address.rpartition(":")[0] + endpoint.address if endpoint.address.startswith(":") else endpoint.address
