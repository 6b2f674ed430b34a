"""The only waiting queue: requests wait here, never in a worker, first come first served.

    enter ── place ──> reserving ── admitted ──> running
               ^           │ refused (no_blocks, busy)          recovering: place again, before all newcomers
               └───────────┘ at its old turn: the head

A request holds its place in the bounded queue until decode has reserved for it. Nothing here polls: a report, a link or a
released slot pumps the queue.
"""

from __future__ import annotations

import asyncio
import bisect
import functools
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from baton.wire.errors import InvalidRequest, QueueFull, Unavailable
from router.placer import Ask, Placement, Placer
from router.request import GenerateRequest

RETRY_AFTER_S = 1.0
GROWTH_RESERVE = 256
"""Output tokens of each choice that a worker reserves at once, at most: its default."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One request's turn, kept over all its attempts. `admitted`: decode has reserved for it once."""

    turn: int
    admitted: bool = False


@dataclass(order=True, slots=True)
class _Waiter:
    turn: int
    ask: Ask = field(compare=False)
    ticket: Ticket = field(compare=False)
    placed: asyncio.Future[Placement] = field(compare=False)
    patience: asyncio.TimerHandle | None = field(default=None, compare=False)


class Admission:
    """Owns the queue of a router. `replace_s`: how long a request that has tokens waits for a worker when none is left."""

    def __init__(self, placer: Placer, limit: int, replace_s: float) -> None:
        self.limit = limit
        self._placer = placer
        self._replace_s = replace_s
        self._turns = itertools.count()
        self._tickets: set[Ticket] = set()
        self._waiters: list[_Waiter] = []

    @property
    def num_waiting(self) -> int:
        """Requests that no worker has taken yet; never above `limit`."""
        return sum(not ticket.admitted for ticket in self._tickets)

    @property
    def num_running(self) -> int:
        """Requests that a worker has taken and that have not ended."""
        return sum(ticket.admitted for ticket in self._tickets)

    @contextmanager
    def enter(self, request: GenerateRequest) -> Iterator[Ticket]:
        """A turn for `request` until it ends. Raises QueueFull, Unavailable, or InvalidRequest if it could never run."""
        self._check(request)
        ticket = Ticket(next(self._turns))
        self._tickets.add(ticket)
        try:
            yield ticket
        finally:
            self._tickets.discard(ticket)
            self.pump()

    async def place(self, ticket: Ticket, ask: Ask) -> Placement:
        """Waits for its turn and for room. The caller owns the placement, and sets the deadline. Raises Unavailable."""
        waiter = _Waiter(ticket.turn, ask, ticket, asyncio.get_running_loop().create_future())
        bisect.insort(self._waiters, waiter)
        self.pump()
        try:
            return await waiter.placed
        except asyncio.CancelledError:
            _give_back(waiter)
            raise
        finally:
            self._enough(waiter)
            self._waiters = [other for other in self._waiters if other is not waiter]

    def pump(self) -> None:
        """Something changed: places every request whose turn it is and for which there is room."""
        blocked: set[str] = set()
        shortage_of = functools.cache(self._placer.shortage)  # for this pump: nothing changes meanwhile
        for waiter in [waiter for waiter in self._waiters if not waiter.placed.done()]:
            shortage = shortage_of(waiter.ask.model, waiter.ask.decodes)
            if shortage is not None:
                self._short(waiter, shortage)
                continue
            self._enough(waiter)
            if waiter.ask.model in blocked:
                continue
            placement = self._placer.place(waiter.ask)
            if placement is None:
                blocked.add(waiter.ask.model)  # nobody overtakes the head of its model
            else:
                waiter.placed.set_result(placement)

    def _short(self, waiter: _Waiter, shortage: str) -> None:
        """No worker is left. A newcomer is told at once; a request that has begun waits a while for one to come back."""
        error = Unavailable(shortage, retry_after_s=RETRY_AFTER_S)
        if not waiter.ticket.admitted:
            waiter.placed.set_exception(error)
        elif waiter.patience is None:
            loop = asyncio.get_running_loop()
            waiter.patience = loop.call_later(self._replace_s, waiter.placed.set_exception, error)

    def _enough(self, waiter: _Waiter) -> None:
        if waiter.patience is not None:
            waiter.patience.cancel()
            waiter.patience = None

    def _check(self, request: GenerateRequest) -> None:
        shortage = self._placer.pool.shortage(request.model)
        if shortage is not None:
            raise Unavailable(shortage, retry_after_s=RETRY_AFTER_S)
        self._check_fit(request)
        if self.num_waiting >= self.limit:
            message = f"{self.limit} requests are waiting already, which is the limit; try again later"
            raise QueueFull(message, retry_after_s=RETRY_AFTER_S)

    def _check_fit(self, request: GenerateRequest) -> None:
        pool, max_tokens = self._placer.pool, request.params.max_tokens
        capacity, seats = pool.capacity_tokens(request.model), pool.max_num_seqs(request.model)
        prompt_len = len(request.prompt_ids)
        reserved = prompt_len + request.n * min(max_tokens, GROWTH_RESERVE)
        if max(prompt_len + max_tokens - 1, reserved) > capacity:
            asked = f"{prompt_len} prompt tokens and {request.n} x {max_tokens} to come"
            message = f"{asked} can never fit a worker's KV pool of {capacity} tokens"
            raise InvalidRequest(message, param="max_tokens")
        if request.n > seats:
            raise InvalidRequest(f"n is {request.n}, but a worker runs {seats} sequences at most", param="n")


def _give_back(waiter: _Waiter) -> None:
    """Placed and cancelled in the same breath: the claims have no other owner."""
    if waiter.placed.done() and not waiter.placed.cancelled() and waiter.placed.exception() is None:
        waiter.placed.result().release()
    waiter.placed.cancel()
