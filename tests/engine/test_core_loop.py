"""The engine's thread: commands between steps, events in order, sleep when idle, an end to everything."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from core_support import (
    IDENTITY,
    FakeModel,
    copy_kv,
    expected_greedy,
    make_core,
    outputs,
    run_until_idle,
    spec_of,
    with_params,
)

from baton.engine.api import Broken, Computed, Engine, EngineEvent, EngineStopped, NoRoom, Sampled, Started
from baton.engine.core import EngineCore
from baton.engine.loop import EngineLoop
from baton.wire.types import FirstToken, ModelCard

CARD = ModelCard("fake", "{}", None, None, None, (), (), False, 64, 4096)
PROMPT = tuple(range(10, 31))
DEADLINE_S = 30.0


class Listener:
    """Collects events and lets a test wait for one."""

    def __init__(self) -> None:
        self.events: list[EngineEvent] = []
        self._arrived = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def on_events(self, events: Sequence[EngineEvent]) -> None:
        self.events += events
        task = asyncio.get_running_loop().create_task(self._notify())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def until(self, found: Callable[[EngineEvent], object]) -> None:
        async with asyncio.timeout(DEADLINE_S), self._arrived:
            await self._arrived.wait_for(lambda: any(map(found, self.events)))

    async def _notify(self) -> None:
        async with self._arrived:
            self._arrived.notify_all()


@asynccontextmanager
async def running(core: EngineCore, gate: Callable[[], None] | None = None) -> AsyncIterator[tuple[Engine, Listener]]:
    engine: Engine = EngineLoop(core, CARD, IDENTITY, gate)
    listener = Listener()
    await engine.start(listener.on_events)
    try:
        yield engine, listener
    finally:
        await engine.stop()
        core.check_integrity()


def ends(handle: int) -> Callable[[EngineEvent], object]:
    return lambda event: isinstance(event, Sampled) and event.handle == handle and event.finish


async def test_generation_through_the_thread() -> None:
    async with running(make_core()) as (engine, listener):
        reservation = await engine.generate(spec_of(PROMPT))
        assert listener.events == [], "no event before the handle is known"
        await listener.until(ends(reservation.handle))
        assert outputs(listener.events, reservation.handle) == {0: expected_greedy(PROMPT, 16)}
        await engine.release(reservation.handle)
        await engine.release(reservation.handle)
        stats = engine.stats()
        assert (stats.kv_blocks_used, stats.num_running, stats.aborted_total) == (0, 0, 0)
        assert stats.generated_tokens_total == 16
        assert stats.last_step_s > 0


async def test_every_handle_is_known_before_its_events() -> None:
    known: set[int] = set()
    unknown: list[EngineEvent] = []
    core = make_core(num_blocks=400)
    engine = EngineLoop(core, CARD, IDENTITY)
    finished = asyncio.Semaphore(0)

    def on_events(events: Sequence[EngineEvent]) -> None:
        for event in events:
            if event.handle not in known:
                unknown.append(event)
            if isinstance(event, Sampled) and event.finish:
                finished.release()

    async def one(index: int) -> None:
        reservation = await (engine.generate if index % 2 else engine.prefill)(
            spec_of((*PROMPT, index), with_params(max_tokens=1))
        )
        known.add(reservation.handle)

    await engine.start(on_events)
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(one(index) for index in range(40)))
        for _ in range(40):
            await finished.acquire()
    await engine.stop()
    assert unknown == []


async def test_prefill_here_and_decode_there() -> None:
    source, target = make_core(max_step_tokens=8), make_core(block_size=16)
    spec = spec_of(PROMPT, with_params(temperature=1.0, seed=3))
    expected = core_generate(spec)
    async with running(source) as (prefill, prefill_events), running(target) as (decode, decode_events):
        reservation = await decode.reserve(spec)
        prefilled = await prefill.prefill(spec)
        await prefill_events.until(ends_or_sampled(prefilled.handle))
        assert [event.num_tokens for event in prefill_events.events if isinstance(event, Computed)] == [8, 16, 21]
        token = next(event.token for event in prefill_events.events if isinstance(event, Sampled))
        copy_kv(source, prefilled.block_ids, target, reservation.block_ids, reservation.num_cached, spec.total_len)
        await prefill.release(prefilled.handle)
        await decode.activate(reservation.handle, spec, [FirstToken(0, token)])
        await decode_events.until(ends(reservation.handle))
        assert [token.id, *outputs(decode_events.events, reservation.handle)[0]] == expected
        await decode.release(reservation.handle)
        assert prefill.stats().kv_blocks_used == decode.stats().kv_blocks_used == 0


def core_generate(spec: object) -> list[int]:
    core = make_core()
    handle = core.generate(spec).handle  # type: ignore[arg-type]
    return outputs(run_until_idle(core), handle)[0]


def ends_or_sampled(handle: int) -> Callable[[EngineEvent], object]:
    return lambda event: isinstance(event, Sampled) and event.handle == handle


async def test_refusals_reach_the_caller() -> None:
    async with running(make_core(num_blocks=2)) as (engine, _):
        with pytest.raises(NoRoom):
            await engine.prefill(spec_of(PROMPT))
        with pytest.raises(ValueError, match="token ids"):
            await engine.reserve(spec_of((64,)))
        with pytest.raises(ValueError, match="not reserved"):
            await engine.activate(1, spec_of(PROMPT), [])


async def test_the_gate_holds_steps_and_commands_run_between_them() -> None:
    permits = threading.Semaphore(0)
    reached = threading.Event()

    def gate() -> None:
        reached.set()
        permits.acquire()

    async with running(make_core(), gate) as (engine, listener):
        first = await engine.generate(spec_of(PROMPT))
        await asyncio.to_thread(reached.wait, DEADLINE_S)
        assert listener.events == []
        second = asyncio.ensure_future(engine.reserve(spec_of(PROMPT)))
        await asyncio.sleep(0)  # posted: it runs between the first step and the second
        permits.release()
        held = await asyncio.wait_for(second, DEADLINE_S)
        await listener.until(lambda event: isinstance(event, Started))
        await asyncio.gather(release_all(engine, [first.handle, held.handle]), asyncio.to_thread(permits.release, 5))
        assert engine.stats().kv_blocks_used == 0
        assert engine.stats().aborted_total == 2


async def release_all(engine: Engine, handles: Sequence[int]) -> None:
    for handle in handles:
        await engine.release(handle)


async def test_an_idle_engine_takes_no_steps() -> None:
    model = FakeModel()
    core = make_core(model=model)
    turns = []
    stats = core.stats
    core.stats = lambda: turns.append(None) or stats()  # type: ignore[method-assign, func-returns-value]
    async with running(core) as (engine, listener):
        handle = (await engine.generate(spec_of(PROMPT))).handle
        await listener.until(ends(handle))
        await engine.release(handle)
        num_turns, num_steps = len(turns), model.num_steps
        await engine.release(handle)
        assert len(turns) == num_turns + 1, "a turn for the command and none besides"
        assert model.num_steps == num_steps == 16


async def test_a_cancelled_admission_is_released() -> None:
    permits, reached = threading.Semaphore(0), threading.Event()

    def gate() -> None:
        reached.set()
        permits.acquire()

    async with running(make_core(), gate) as (engine, _):
        first = await engine.generate(spec_of(PROMPT))
        await asyncio.to_thread(reached.wait, DEADLINE_S)
        left = asyncio.ensure_future(engine.reserve(spec_of((1, 2, 3))))
        await asyncio.sleep(0)
        left.cancel()
        permits.release(100)
        with pytest.raises(asyncio.CancelledError):
            await left
        await engine.release(first.handle)
        await engine.release(first.handle)  # after the engine's own release of the one that left
        assert engine.stats().kv_blocks_used == 0


async def test_a_failing_step_breaks_its_requests_and_the_thread_goes_on() -> None:
    model = FakeModel()
    async with running(make_core(model=model)) as (engine, listener):
        model.before_step = lambda batch: (_ for _ in ()).throw(RuntimeError("no"))
        doomed = (await engine.generate(spec_of(PROMPT))).handle
        await listener.until(lambda event: isinstance(event, Broken) and event.handle == doomed)
        await engine.release(doomed)
        model.before_step = lambda batch: None
        handle = (await engine.generate(spec_of(PROMPT))).handle
        await listener.until(ends(handle))


async def test_a_failing_engine_breaks_everything_and_answers_everyone() -> None:
    core = make_core()
    async with running(core) as (engine, listener):
        reserved = (await engine.reserve(spec_of(PROMPT))).handle
        core.scheduler.schedule = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
        handle = (await engine.generate(spec_of(PROMPT))).handle
        await listener.until(lambda event: isinstance(event, Broken) and event.handle == handle)
        assert {event.handle for event in listener.events if isinstance(event, Broken)} == {reserved, handle}
        with pytest.raises(EngineStopped):
            await engine.generate(spec_of(PROMPT))
        await engine.release(handle)


async def test_a_failing_engine_is_heard_of() -> None:
    async with running(make_core(), lambda: (_ for _ in ()).throw(MemoryError("none left"))) as (engine, listener):
        watching = asyncio.ensure_future(engine.failed())
        handle = (await engine.generate(spec_of(PROMPT))).handle
        async with asyncio.timeout(DEADLINE_S):
            assert await watching == await engine.failed() == "the engine failed: MemoryError: none left"
        await listener.until(lambda event: isinstance(event, Broken) and event.handle == handle)


async def test_an_engine_that_cannot_even_break_its_requests_answers_everyone() -> None:
    core = make_core()
    core.break_all = lambda message: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    core.scheduler.schedule = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    async with running(core) as (engine, _):
        await engine.generate(spec_of(PROMPT))
        async with asyncio.timeout(DEADLINE_S):
            await engine.failed()
            with pytest.raises(EngineStopped):
                await engine.reserve(spec_of(PROMPT))


async def test_an_engine_that_is_stopped_has_not_failed() -> None:
    async with running(make_core()) as (engine, _):
        watching = asyncio.ensure_future(engine.failed())
    await asyncio.sleep(0)
    assert not watching.done()
    watching.cancel()


async def test_stop_ends_the_thread_and_later_calls_are_refused() -> None:
    core = make_core(num_blocks=1000)
    engine = EngineLoop(core, CARD, IDENTITY)
    await engine.stop()
    await engine.start(lambda events: None)
    handle = (await engine.generate(spec_of(PROMPT, with_params(max_tokens=2000)))).handle
    await engine.stop()
    await engine.stop()
    assert "engine" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(EngineStopped):
        await engine.reserve(spec_of(PROMPT))
    await engine.release(handle)


async def test_a_cpu_that_does_not_exist_is_an_error_at_start() -> None:
    engine = EngineLoop(make_core(cpus=(4000,)), CARD, IDENTITY)
    with pytest.raises(OSError, match="Invalid argument"):
        await engine.start(lambda events: None)
    await engine.stop()
