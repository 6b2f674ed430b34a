"""A worker's place in a registry: taken while it serves, taken again after every loss, given back when it leaves."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from baton.cluster.registry import Announcer
from baton.wire.registry import RegistryError
from baton.wire.types import Registration

log = logging.getLogger(__name__)

RENEWALS = 3
"""How often a registration is renewed in its time to live."""
FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 2.0


@asynccontextmanager
async def announced(announcer: Announcer, registration: Registration, ttl_s: float) -> AsyncIterator[None]:
    """Registered inside, withdrawn outside. A registry that is away is no reason not to serve: routers keep their view."""
    keeping = asyncio.create_task(_keep(announcer, registration, ttl_s), name=f"registration with {announcer.name}")
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})
        await _withdraw(announcer, registration)
        await announcer.close()
        if not keeping.cancelled():
            keeping.result()  # a fault of ours: it must not pass unseen


async def _keep(announcer: Announcer, registration: Registration, ttl_s: float) -> None:
    lost, backoff_s = True, FIRST_BACKOFF_S
    while True:
        try:
            await announcer.announce(registration, ttl_s)
        except RegistryError as error:
            if backoff_s == FIRST_BACKOFF_S:
                log.warning("%s; trying again", error)
            await _pause(backoff_s)
            lost, backoff_s = True, min(2 * backoff_s, MAX_BACKOFF_S, ttl_s / RENEWALS)
        else:
            if lost:
                log.info("registered with %s as %s (%s)", announcer.name, registration.address, registration.role)
            lost, backoff_s = False, FIRST_BACKOFF_S
            await _pause(ttl_s / RENEWALS)


async def _pause(longest_s: float) -> None:
    """Jittered: a thousand workers that lost the same registry do not come back in the same moment."""
    await asyncio.sleep(longest_s * random.uniform(0.5, 1.0))


async def _withdraw(announcer: Announcer, registration: Registration) -> None:
    try:
        await announcer.withdraw(registration)
    except RegistryError as error:
        log.info("not withdrawn, the entry ends by itself: %s", error)
