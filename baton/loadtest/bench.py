"""A load test from its options to its result: plans the runs, checks the server, warms up, runs, gathers."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from baton.loadtest.arrivals import arrivals
from baton.loadtest.errors import BenchError, RequestFailed
from baton.loadtest.limits import measure_limits
from baton.loadtest.live import Live
from baton.loadtest.record import Answer, Driver, Request
from baton.loadtest.result import Result, Run
from baton.loadtest.runner import Runner
from baton.loadtest.setup import setup_facts
from baton.loadtest.slo import Slo
from baton.loadtest.traces import Entry, read_trace, scale
from baton.loadtest.workload import Drawn, Lengths, Plan, Replayed, Workload

WARMUP_CONCURRENCY = 4

Watch = Callable[[str, int], AbstractContextManager[Live]]
"""Shows a run of so many requests under a label."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to send and how. One of `concurrency` (closed loop) and `rates` (open loops, one run each) is given, except that
    a trace without either is replayed at its own times. `arrival`: poisson, gamma, constant, or trace for a trace's own."""

    inputs: str = "256"
    outputs: str = "64"
    prefix_len: int = 0
    as_ids: bool = False
    trace: str = ""
    trace_skip: int = 0
    shrink: float = 1.0
    stretch: float | None = None
    max_len: int = 0
    concurrency: int | None = None
    rates: tuple[float, ...] = ()
    arrival: str = ""
    burstiness: float = 1.0
    num_requests: int = 100
    duration_s: float = 0.0
    num_warmup: int = 4
    seed: int | None = None
    slo: Slo = field(default_factory=Slo)
    timeout_s: float = 600.0
    title: str = "Load test"
    with_limits: bool = True


class Bench:
    """Runs a load test through `driver`. `target` are facts about the server's side."""

    def __init__(self, options: Options, driver: Driver, target: Mapping[str, str], watch: Watch):
        self._options = options
        self._driver = driver
        self._target = target
        self._watch = watch
        self._seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
        self._runner = Runner(driver, options.timeout_s)

    async def run(self) -> Result:
        """Raises BenchError if the options contradict each other or the server does not answer a first request."""
        options = self._options
        plans = make_plans(options, self._seed)
        spare = _spare(options, plans[0], self._seed)
        limits = await measure_limits() if options.with_limits else None
        await self._first_answer(spare[0])
        if options.num_warmup:
            await self._run(Plan("warm-up", spare[1:], None, WARMUP_CONCURRENCY, None))
        runs = tuple([await self._run(plan) for plan in plans])
        setup = {**self._target, "seed": str(self._seed), "warm-up": f"{options.num_warmup} requests", **setup_facts()}
        return Result(options.title, setup, options.slo, limits, runs)

    async def _first_answer(self, request: Request) -> None:
        """Shows whether the server takes what will be sent."""
        try:
            await self._driver.generate(replace(request, output_len=min(request.output_len, 2)), Answer([]))
        except RequestFailed as error:
            raise BenchError(f"the server does not answer a first request: {error}") from error

    async def _run(self, plan: Plan) -> Run:
        with self._watch(plan.label, len(plan.requests)) as watcher:
            outcomes = await self._runner.run(plan, watcher)
        return Run(plan.label, plan.rate, plan.facts, self._options.slo, outcomes)


def make_plans(options: Options, seed: int) -> list[Plan]:
    """One plan a run. Each has prompts of its own, so that no run finds another's in a prefix cache. Raises BenchError."""
    if options.concurrency is not None and (options.rates or options.arrival):
        raise BenchError("a closed loop (--concurrency) has no rate or arrivals; give one or the other")
    if options.num_requests < 1 or (options.concurrency is not None and options.concurrency < 1):
        raise BenchError("a run has at least one request, and one at a time")
    if options.num_warmup < 0 or options.duration_s < 0 or options.timeout_s <= 0:
        raise BenchError("warm-up and duration are not below 0, and the timeout is above")
    entries = read_trace(options.trace) if options.trace else []
    rates: tuple[float | None, ...] = options.rates or (None,)
    return [_plan(options, entries, rate, seed + number) for number, rate in enumerate(rates)]


def _plan(options: Options, entries: list[Entry], rate: float | None, seed: int) -> Plan:
    workload = _workload(options, entries, rate)
    requests = workload.requests(options.num_requests, seed)
    if options.concurrency is not None:
        label = f"{options.concurrency} at a time"
        facts = {"load": f"closed loop, {label}"}
        return Plan(label, requests, None, options.concurrency, None, options.duration_s, facts | dict(workload.facts()))
    own_times = isinstance(workload, Replayed) and options.arrival in ("", "trace")
    if isinstance(workload, Replayed) and own_times:
        due_s: tuple[float, ...] = workload.due_s()
        facts = {"load": f"open loop, the trace's arrivals, times multiplied by {workload.replay.stretch:.4g}"}
    elif rate is None:
        raise BenchError("say how much load: --concurrency for a closed loop, --rate or --sweep for an open one")
    else:
        kind = options.arrival or "poisson"
        due_s = tuple(islice(arrivals(kind, rate, options.burstiness, seed), len(requests)))
        bursts = f" of burstiness {options.burstiness:g}" if kind == "gamma" else ""
        facts = {"load": f"open loop, {kind} arrivals{bursts}"}
    offered = rate or _mean_rate(due_s)
    return Plan(f"{offered:.3g} req/s", requests, due_s, 0, offered, options.duration_s, facts | dict(workload.facts()))


def _workload(options: Options, entries: list[Entry], rate: float | None) -> Workload:
    if not entries:
        inputs, outputs = Lengths.parse(options.inputs), Lengths.parse(options.outputs)
        return Drawn(inputs, outputs, options.prefix_len, options.as_ids)
    replay = scale(
        entries,
        num=options.num_requests,
        skip=options.trace_skip,
        shrink=options.shrink,
        stretch=options.stretch,
        rate=rate,
        max_len=options.max_len,
    )
    return Replayed(replay, Path(options.trace).name, options.as_ids)


def _mean_rate(due_s: tuple[float, ...]) -> float:
    return (len(due_s) - 1) / due_s[-1] if due_s and due_s[-1] else float(len(due_s))


def _spare(options: Options, plan: Plan, seed: int) -> tuple[Request, ...]:
    """One request, and those of the warm-up: as long as the plan's first, with text that no run sends."""
    longest = max(plan.requests[: options.num_warmup + 1], key=lambda request: request.input_len)
    inputs, outputs = (Lengths(tokens, tokens) for tokens in (longest.input_len, longest.output_len))
    return Drawn(inputs, outputs, as_ids=options.as_ids).requests(options.num_warmup + 1, seed - 1)
