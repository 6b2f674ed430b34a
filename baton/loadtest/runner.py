"""Sends a plan's requests through a driver and gathers what became of each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from baton.loadtest.counting import count
from baton.loadtest.errors import RequestFailed
from baton.loadtest.record import Answer, Driver, Message, Outcome, Request
from baton.loadtest.workload import Plan


class Watcher(Protocol):
    """Is told how a run goes, while it goes."""

    def sent(self) -> None: ...

    def ended(self, outcome: Outcome) -> None: ...


class Runner:
    """Runs plans, one after another. `clock` gives the seconds that drivers stamp messages with."""

    def __init__(self, driver: Driver, timeout_s: float, clock: Callable[[], float] = time.monotonic):
        self._driver = driver
        self._timeout_s = timeout_s
        self._clock = clock

    async def run(self, plan: Plan, watcher: Watcher) -> tuple[Outcome, ...]:
        """All outcomes, in the order in which the requests were due. Every request ends within the timeout."""
        run = _Run(self._driver, self._timeout_s, self._clock, watcher, plan.duration_s)
        if plan.due_s is None:
            await run.closed(plan.requests, plan.concurrency)
        else:
            await run.open(plan.requests, plan.due_s)
        return tuple(sorted(run.outcomes, key=lambda outcome: outcome.number))


class _Run:
    def __init__(
        self, driver: Driver, timeout_s: float, clock: Callable[[], float], watcher: Watcher, duration_s: float
    ) -> None:
        self._driver = driver
        self._timeout_s = timeout_s
        self._clock = clock
        self._watcher = watcher
        self._duration_s = duration_s or float("inf")
        self._began_s = clock()
        self.outcomes: list[Outcome] = []

    async def closed(self, requests: tuple[Request, ...], concurrency: int) -> None:
        """Each of `concurrency` users sends its next request when its last has ended."""
        waiting = iter(requests)

        async def user() -> None:
            for request in waiting:
                if (now_s := self._now()) >= self._duration_s:
                    return
                await self._one(request, now_s)

        async with asyncio.TaskGroup() as users:
            for _ in range(concurrency):
                users.create_task(user())

    async def open(self, requests: tuple[Request, ...], due_s: tuple[float, ...]) -> None:
        """Every request is sent when it is due, however many are under way."""
        async with asyncio.TaskGroup() as sending:
            for request, at_s in zip(requests, due_s, strict=True):
                if at_s >= self._duration_s:
                    return
                if (ahead_s := at_s - self._now()) > 0:
                    await asyncio.sleep(ahead_s)
                sending.create_task(self._one(request, at_s))

    async def _one(self, request: Request, intended_s: float) -> None:
        answer = Answer([])
        sent_s = self._now()
        self._watcher.sent()
        error = RequestFailed("")
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._driver.generate(request, answer)
        except RequestFailed as failure:
            error = failure
        except TimeoutError:
            error = RequestFailed("timeout", f"no end after {self._timeout_s:g} s")
        outcome = self._outcome(request, intended_s, sent_s, answer, error)
        self.outcomes.append(outcome)
        self._watcher.ended(outcome)

    def _outcome(self, request: Request, intended_s: float, sent_s: float, answer: Answer, error: RequestFailed) -> Outcome:
        messages, output_tokens, rule = count(answer)
        return Outcome(
            number=request.number,
            input_len=request.input_len,
            intended_s=intended_s,
            sent_s=sent_s,
            ended_s=self._now(),
            messages=tuple(Message(at_s - self._began_s, num_tokens) for at_s, num_tokens in messages),
            output_tokens=output_tokens,
            counted_by=rule,
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            error=error.kind,
            detail=error.detail,
        )

    def _now(self) -> float:
        return self._clock() - self._began_s
