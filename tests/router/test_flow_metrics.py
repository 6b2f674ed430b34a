"""The timeline's parts add up, and the metrics count what the router accepted."""

from __future__ import annotations

import pytest
from flow_support import FakeLink, ScriptedLink, cluster, settle
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from baton.wire.types import Failed, Spans, StartPrefill
from router.timeline import Phase, Timeline


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_parts_of_an_undisturbed_request() -> None:
    clock = Clock()
    timeline = Timeline(clock)
    steps = [(1.0, Phase.RESERVE), (0.25, Phase.PREFILL)]
    for seconds, phase in steps:
        clock.now += seconds
        timeline.enter(phase)
    timeline.prefilled(Spans(queue_s=0.5, compute_s=1.0, num_cached=7))
    clock.now += 2.0
    timeline.token(0)
    timeline.handed_off(Spans(transfer_s=0.75, hidden_s=0.5, transfer_bytes=9, transport="grpc"))
    clock.now += 1.0
    timeline.token(1)
    clock.now += 3.0
    timeline.token(2)
    timeline.finish()
    clock.now += 50.0
    assert dict(timeline.parts()) == {
        "queue": 1.0,
        "reserve": 0.25,
        "prefill_queue": 0.5,
        "prefill_compute": 1.0,
        "prefill_link": 0.5,
        "transfer": 0.25,
        "first_decode_step": 0.75,
        "decode": 3.0,
        "recovery": 0.0,
    }
    view = timeline.view()
    assert (view.ttft_s, view.second_token_s, view.total_s) == (3.25, 4.25, 7.25)
    assert timeline.num_cached == 7


def test_a_recovery_lasts_until_the_next_token() -> None:
    clock = Clock()
    timeline = Timeline(clock)
    for index in range(3):
        clock.now += 1
        timeline.token(index)
    timeline.recover("decode_lost")
    timeline.enter(Phase.RESERVE)
    clock.now += 5
    timeline.enter(Phase.PREFILL)
    clock.now += 5
    timeline.token(3)
    clock.now += 1
    parts = dict(timeline.parts())
    assert (parts["recovery"], parts["decode"], parts["reserve"]) == (10.0, 2.0, 0.0)
    assert timeline.view().recoveries == 1


def moves(timeline: Timeline, what: str, index: int) -> None:
    match what:
        case "token":
            timeline.token(index)
        case "recover":
            timeline.recover("failed")
        case "spans":
            timeline.prefilled(Spans(queue_s=3.0, compute_s=4.0))
            timeline.handed_off(Spans(transfer_s=9.0))
        case _:
            timeline.enter(Phase(what))


@given(st.lists(st.tuples(st.sampled_from(["token", "recover", "spans", "queue", "reserve", "prefill"]), st.floats(0, 9))))
def test_the_parts_always_add_up(history: list[tuple[str, float]]) -> None:
    clock = Clock()
    timeline = Timeline(clock)
    for index, (what, seconds) in enumerate(history):
        clock.now += seconds
        moves(timeline, what, index)
    assert sum(seconds for _, seconds in timeline.parts()) == pytest.approx(timeline.total_s)
    assert all(seconds >= 0 for _, seconds in timeline.parts())


async def test_tokens_count_once_however_many_workers_sampled_them() -> None:
    """10 requests of 5 tokens: 50 at system level, although both workers sampled each first token."""
    async with cluster(kind=ScriptedLink) as shape:
        for _ in range(10):
            await shape.collect(max_tokens=5, prompt_len=2)
        assert shape.sample("baton_requests_total", outcome="ok") == 10
        assert shape.sample("baton_request_success_total", finished_reason="length") == 10
        assert shape.sample("baton_prompt_tokens_total") == 20
        assert shape.sample("baton_generation_tokens_total") == 50
        assert shape.sample("baton_time_to_first_token_seconds_count") == 10
        assert shape.sample("baton_inter_token_latency_seconds_count") == 40
        assert shape.sample("baton_e2e_request_latency_seconds_count") == 10
        assert shape.sample("baton_request_part_seconds_count", part="transfer") == 10
        total = shape.sample("baton_e2e_request_latency_seconds_sum")
        parts = sum(value for name, value in part_sums(shape.service.metrics()) if name)
        assert parts == pytest.approx(total)
        assert shape.sample("baton_num_requests_running") == shape.sample("baton_num_requests_waiting") == 0


def part_sums(exposition: bytes) -> list[tuple[str, float]]:
    families = text_string_to_metric_families(exposition.decode())
    return [
        (sample.labels["part"], sample.value)
        for family in families
        if family.name == "baton_request_part_seconds"
        for sample in family.samples
        if sample.name.endswith("_sum")
    ]


class BreakingLink(ScriptedLink):
    """Prefills whose handoff fails, always."""

    def answer(self, command) -> None:
        if isinstance(command, StartPrefill):
            self.say(Failed(command.lease, command.epoch, "digest"))
        else:
            super().answer(command)


async def test_failed_requests_are_counted_as_such() -> None:
    async with cluster(prefill=4, kind=BreakingLink) as shape:
        for _ in range(5):
            with pytest.raises(Exception, match="attempts"):
                await shape.collect(max_tokens=5)
        assert shape.sample("baton_requests_total", outcome="unavailable") == 5
        assert shape.sample("baton_transfers_failed_total") == 15  # three attempts each
        assert shape.sample("baton_requests_total", outcome="ok") == 0


def series(exposition: bytes) -> int:
    return sum(not line.startswith(b"#") for line in exposition.splitlines())


async def test_workers_are_told_apart_by_address_and_role_and_vanish_when_gone() -> None:
    async with cluster(kind=FakeLink) as shape:
        shape.p0.report(kv_blocks_used=3, queued_prefill_tokens=70)
        shape.d0.report(generated_tokens_total=12, preemptions_total=1)
        assert shape.sample("baton_worker_kv_blocks_used", worker="p0", role="prefill") == 3
        assert shape.sample("baton_worker_kv_blocks_total", worker="d0", role="decode") == 128
        assert shape.sample("baton_worker_generated_tokens_total", worker="d0", role="decode") == 12
        assert shape.sample("baton_worker_ready", worker="d0", role="decode") == 1
        shape.d0.die()
        assert b'baton_worker_kv_blocks_used{role="decode"' not in shape.service.metrics()
        assert shape.sample("baton_worker_ready", worker="d0", role="decode") == 0
        assert shape.sample("baton_ready") == 0


async def test_no_client_makes_a_series() -> None:
    async with cluster(kind=ScriptedLink) as shape:
        await shape.collect()
        before = series(shape.service.metrics())
        for number in range(30):
            await shape.collect(request_id=f"id-{number}", tenant=f"tenant-{number}")
            with pytest.raises(Exception, match="worker"):
                await shape.collect(model=f"model-{number}")
        for life in range(2, 22):
            shape.d0.die()
            shape.d0.come(life=life)
        await settle()
        assert series(shape.service.metrics()) - before < 50
