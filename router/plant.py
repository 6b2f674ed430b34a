"""What flows share: with all others of the router, and with those of the same request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from router.admission import Admission, Ticket
from router.affinity import Keys
from router.links import WorkerPool
from router.metrics import RouterMetrics
from router.output import Output
from router.placer import Placer


@dataclass(frozen=True, slots=True)
class Plant:
    """A router's parts. `reserve_s`: how long decode may take to answer a reservation."""

    pool: WorkerPool
    placer: Placer
    admission: Admission
    metrics: RouterMetrics
    reserve_s: float


@dataclass(frozen=True, slots=True)
class Life:
    """A request's. `deadline` is of the loop's clock; `spawn` runs the flow of a choice that was split off."""

    model: str
    keys: Keys
    ticket: Ticket
    output: Output
    deadline: float
    spawn: Callable[[Coroutine[None, None, None]], object]

    @property
    def remaining_s(self) -> float:
        return max(0.0, self.deadline - asyncio.get_running_loop().time())
