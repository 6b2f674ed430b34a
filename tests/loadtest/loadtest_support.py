"""Outcomes with times that a test chooses, and a run of the load test's own stub."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from baton.loadtest.client_http import HttpDriver, HttpTarget
from baton.loadtest.record import Message, Outcome
from baton.loadtest.result import Limits, Result, Run
from baton.loadtest.slo import Slo
from baton.loadtest.stub import MODEL, Script, StubServer


def outcome(messages: Sequence[tuple[float, int]], *, number: int = 0, intended_s: float = 0.0, error: str = "") -> Outcome:
    """One request whose messages came at the given seconds with the given tokens; the last ended it."""
    return Outcome(
        number=number,
        input_len=8,
        intended_s=intended_s,
        sent_s=intended_s,
        ended_s=messages[-1][0] if messages else intended_s,
        messages=tuple(Message(*message) for message in messages),
        output_tokens=sum(num for _, num in messages),
        counted_by="token_ids",
        prompt_tokens=8,
        cached_tokens=0,
        error=error,
    )


def steady(num: int, first_s: float, gap_s: float, *, every_s: float = 1.0) -> tuple[Outcome, ...]:
    """`num` requests, one due each `every_s`, of five tokens."""
    return tuple(
        outcome([(number * every_s + first_s + gap_s * i, 1) for i in range(5)], number=number, intended_s=number * every_s)
        for number in range(num)
    )


def run_of(outcomes: Sequence[Outcome], slo: Slo | None = None, rate: float | None = 1.0, label: str = "1 req/s") -> Run:
    return Run(label, rate, {"load": "open loop, poisson arrivals"}, slo or Slo(), tuple(outcomes))


def result_of(*runs: Run, title: str = "Load test") -> Result:
    setup = {"server": "http://127.0.0.1:8000", "model": "m", "seed": "7"}
    return Result(title, setup, runs[0].slo, Limits(5000.0, 50000.0), runs)


@asynccontextmanager
async def stub_driver(script: Script, **target: object) -> AsyncIterator[tuple[StubServer, HttpDriver]]:
    """A stub that answers by `script` and a driver of it."""
    stub = StubServer(script)
    await stub.start()
    driver = HttpDriver(HttpTarget(stub.url, MODEL, **target))
    try:
        yield stub, driver
    finally:
        await driver.close()
        await stub.stop()
