"""The only waiting queue: requests wait here, never in a worker, first come first served.

    enter ── wait ───> reserving ── admitted ──> running
               ^           │ refused (no_blocks, busy)          recovering: waits again, before all newcomers
               └───────────┘ at its old turn: the head

A request holds its place in the bounded queue until decode has reserved for it. Nothing here polls: a report, a link or a
released slot pumps the queue.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from baton.wire.errors import BatonError, InvalidRequest, QueueFull, Unavailable
from router.fit import fits
from router.placer import Ask, Placement, Placer
from router.recovery import RETRY_AFTER_S
from router.request import GenerateRequest

CLOSED = "this router is shutting down"


@dataclass(slots=True, eq=False)
class Ticket:
    """One request's turn, kept over all its attempts. `admitted`: decode has reserved for it once.

    `abort` ends the request with an error; it belongs to who runs the request.
    """

    turn: int
    abort: Callable[[BatonError], None]
    admitted: bool = False


@dataclass(slots=True, eq=False)
class Waiter:
    """An attempt in the queue. `placed` ends with claimed workers, which `take` makes the caller's, or with Unavailable."""

    ticket: Ticket
    ask: Ask
    placed: asyncio.Future[Placement]
    taken: bool = False
    patience: asyncio.TimerHandle | None = None
    rest: asyncio.TimerHandle | None = None

    def take(self) -> Placement:
        """The claimed workers, once `placed` is done: from now on the caller releases them."""
        self.taken = True
        return self.placed.result()

    def enough(self) -> None:
        """There is no shortage, or nobody waits any more."""
        if self.patience is not None:
            self.patience.cancel()
            self.patience = None

    def close(self) -> None:
        """Nobody waits any more: workers that were claimed and not taken are given back."""
        self.enough()
        if self.rest is not None:
            self.rest.cancel()
        if self.taken or self.placed.cancel():
            return
        if self.placed.exception() is None:
            self.placed.result().release()


class Admission:
    """Owns the queue of a router. `replace_s`: how long a request that has tokens waits for a worker when none is left."""

    def __init__(self, placer: Placer, limit: int, replace_s: float) -> None:
        self.limit = limit
        self._placer = placer
        self._replace_s = replace_s
        self._turns = itertools.count()
        self._tickets: set[Ticket] = set()
        self._waiters: list[Waiter] = []
        self._empty = asyncio.Event()
        self._empty.set()
        self._closed = False

    @property
    def num_waiting(self) -> int:
        """Requests that no worker has taken yet; never above `limit`."""
        return sum(not ticket.admitted for ticket in self._tickets)

    @property
    def num_running(self) -> int:
        """Requests that a worker has taken and that have not ended."""
        return sum(ticket.admitted for ticket in self._tickets)

    def enter(self, request: GenerateRequest, abort: Callable[[BatonError], None]) -> Ticket:
        """A turn for `request`, until `leave`. Raises QueueFull, Unavailable, or InvalidRequest if it could never run."""
        self._check(request)
        ticket = Ticket(next(self._turns), abort)
        self._tickets.add(ticket)
        self._empty.clear()
        return ticket

    def leave(self, ticket: Ticket) -> bool:
        """The request has ended; whether that is news."""
        if ticket not in self._tickets:
            return False
        self._tickets.remove(ticket)
        if not self._tickets:
            self._empty.set()
        return True

    async def drain(self) -> None:
        """Takes no more requests; returns once none waits or runs."""
        self._closed = True
        await self._empty.wait()

    def abort(self) -> int:
        """Ends every request that waits or runs with an error; how many there were."""
        aborted = tuple(self._tickets)
        for ticket in aborted:
            ticket.abort(Unavailable(f"{CLOSED}, and the request had not ended in time", retry_after_s=RETRY_AFTER_S))
        return len(aborted)

    @property
    def closed(self) -> bool:
        """`drain` was called."""
        return self._closed

    @contextmanager
    def wait(self, ticket: Ticket, ask: Ask) -> Iterator[Waiter]:
        """Puts `ask` into the queue at its ticket's turn while the context is open; the caller bounds the wait."""
        waiter = Waiter(ticket, ask, asyncio.get_running_loop().create_future())
        bisect.insort(self._waiters, waiter, key=lambda waiter: waiter.ticket.turn)
        if ask.rest_s > 0:
            waiter.rest = asyncio.get_running_loop().call_later(ask.rest_s, self._rested, waiter)
        self.pump()
        try:
            yield waiter
        finally:
            self._waiters.remove(waiter)
            waiter.close()

    def pump(self) -> None:
        """Something changed: places every request whose turn it is and for which there is room."""
        blocked: set[str] = set()
        for waiter in [waiter for waiter in self._waiters if not waiter.placed.done()]:
            shortage = self._placer.shortage(waiter.ask.model, waiter.ask.decodes)
            if shortage is not None:
                self._short(waiter, shortage)
                continue
            waiter.enough()
            if waiter.ask.model in blocked:
                continue
            placement = self._placer.place(waiter.ask, picky=waiter.rest is not None)
            if placement is not None:
                waiter.placed.set_result(placement)
            elif waiter.rest is None:
                blocked.add(waiter.ask.model)  # nobody overtakes the head of its model

    def _short(self, waiter: Waiter, shortage: str) -> None:
        """No worker is left. A newcomer is told at once; a request that has begun waits a while for one to come back."""
        error = Unavailable(shortage, retry_after_s=RETRY_AFTER_S)
        if not waiter.ticket.admitted:
            waiter.placed.set_exception(error)
        elif waiter.patience is None:
            loop = asyncio.get_running_loop()
            waiter.patience = loop.call_later(self._replace_s, waiter.placed.set_exception, error)

    def _rested(self, waiter: Waiter) -> None:
        waiter.rest = None
        self.pump()

    def _check(self, request: GenerateRequest) -> None:
        if self._closed:
            raise Unavailable(CLOSED, retry_after_s=RETRY_AFTER_S)
        shortage = self._placer.pool.shortage(request.model)
        if shortage is not None:
            raise Unavailable(shortage, retry_after_s=RETRY_AFTER_S)
        self._check_fit(request)
        if len(self._tickets) >= self.limit and self.num_waiting >= self.limit:
            message = f"{self.limit} requests are waiting already, which is the limit; try again later"
            raise QueueFull(message, retry_after_s=RETRY_AFTER_S)

    def _check_fit(self, request: GenerateRequest) -> None:
        """Waiting is for what comes to pass: a request that no pair could run even alone is refused."""
        prompt_len, max_tokens = len(request.prompt_ids), request.params.max_tokens
        prefills, decodes = self._placer.pool.prefills(request.model), self._placer.pool.decodes(request.model)
        if not any(request.n <= info.max_num_seqs for info in decodes):
            seats = max(info.max_num_seqs for info in decodes)
            raise InvalidRequest(f"`n` is {request.n}, but a worker runs {seats} sequences at most; ask for fewer.", param="n")
        if not all(any(fits(info, prompt_len, max_tokens, request.n) for info in side) for side in (prefills, decodes)):
            asked = f"{prompt_len} prompt tokens and {request.n} x {max_tokens} to come"
            capacity = self._placer.pool.capacity_tokens(request.model)
            message = f"{asked} can never fit a worker's KV pool of {capacity} tokens"
            raise InvalidRequest(message, param="max_tokens")
