"""Owning what an engine reserves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

from baton.engine.api import Engine, Reservation


@asynccontextmanager
async def hold(engine: Engine, opening: Awaitable[Reservation]) -> AsyncIterator[Reservation]:
    """Owns the reservation that `opening` (a call of `engine.prefill`, `reserve` or `generate`) makes, and releases it at exit.

    Raises what `opening` raises: NoRoom, ValueError. If it is cancelled before it is answered, the engine releases by itself.
    """
    reservation = await opening
    try:
        yield reservation
    finally:
        await engine.release(reservation.handle)
