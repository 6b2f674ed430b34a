"""Owning what an engine reserves, over cancellation too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from baton.engine.api import Engine, NoRoom, Reservation


@asynccontextmanager
async def hold(engine: Engine, opening: Coroutine[Any, Any, Reservation]) -> AsyncIterator[Reservation]:
    """Owns the reservation that `opening` (a call of `engine.prefill`, `reserve` or `generate`) makes, and releases it at exit.

    A cancellation that comes while the engine still works on the call waits for its end: a reservation that was made is never
    left without an owner. Raises what `opening` raises: NoRoom, ValueError.
    """
    made = asyncio.create_task(opening)
    try:
        yield await asyncio.shield(made)
    finally:
        try:
            reservation = await made
        except (NoRoom, ValueError):
            pass
        else:
            await engine.release(reservation.handle)
