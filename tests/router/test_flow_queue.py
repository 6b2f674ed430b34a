"""The waiting queue: its bound, its order, put-backs, deadlines, and the reader that is too slow."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter

import pytest
from flow_support import CARD, PATIENCE_S, ScriptedLink, cluster, settle, tokens_of, worker_info

from baton.wire.errors import Cancelled, DeadlineExceeded, Internal, InvalidRequest, QueueFull, Unavailable
from baton.wire.types import End, Refused, Reserved, Role, SamplingParams, StartDecode, StartPrefill, Tokens
from router.request import GenerateRequest


async def test_a_full_queue_says_so_and_takes_nothing() -> None:
    async with cluster(kind=ScriptedLink, queue_limit=10) as shape:
        lengths: list[float] = []

        async def one() -> str:
            try:
                answer = await shape.collect(max_tokens=5)
            except QueueFull as error:
                return f"come back in {error.retry_after_s:g} s"
            finally:
                lengths.append(shape.sample("baton_num_requests_waiting"))
            return answer.text

        outcomes = Counter(await asyncio.gather(*(one() for _ in range(200))))
        assert outcomes.keys() == {"come back in 1 s", "abcde"}
        assert outcomes["abcde"] >= 10
        assert max(lengths) <= 10
        assert shape.sample("baton_queue_limit") == 10
        assert shape.sample("baton_num_requests_waiting") == 0
        assert shape.sample("baton_rejection_total", reason="rejected") == 200 - outcomes["abcde"]
        assert shape.sample("baton_requests_total", outcome="ok") == outcomes["abcde"]


async def test_a_refused_request_goes_back_to_the_head_and_waits_for_a_report() -> None:
    async with cluster(infos={"d0": worker_info(Role.DECODE, max_num_seqs=2)}) as shape:
        first = asyncio.create_task(shape.collect(max_tokens=1 + 1, prompt_len=5))
        await settle()
        second = asyncio.create_task(shape.collect(max_tokens=2, prompt_len=6))
        await settle()
        reserve = await shape.d0.told(StartDecode)
        other = await shape.d0.told(StartDecode)
        shape.d0.say(Refused(reserve.lease, reserve.epoch, "no_blocks"), Refused(other.lease, other.epoch, "no_blocks"))
        assert (await shape.d0.told(End), await shape.d0.told(End)) == (End(reserve.lease), End(other.lease))
        await settle()
        assert shape.d0.sent.empty()  # not asked again before it reports
        assert shape.sample("baton_num_requests_waiting") == 2
        shape.d0.report(num_leases=1)
        again = await shape.d0.told(StartDecode)
        assert len(again.spec.prompt_ids) == 5, "the head is the one that came first"
        assert again.lease != reserve.lease
        for task in (first, second):
            task.cancel()
        await asyncio.wait([first, second])


async def test_a_report_that_came_after_the_question_counts() -> None:
    """Room that was freed between a refusal and its arrival must not be missed: no other report may follow."""
    async with cluster() as shape:
        task = asyncio.create_task(shape.collect(max_tokens=2))
        reserve = await shape.d0.told(StartDecode)
        shape.d0.say(Refused(reserve.lease, reserve.epoch, "no_blocks"))
        shape.d0.report(kv_blocks_used=0, num_leases=0, aborted_total=1)
        await shape.d0.told(End)
        again = await shape.d0.told(StartDecode)
        shape.d0.say(Reserved(again.lease, again.epoch, 0))
        start = await shape.p0.told(StartPrefill)
        shape.p0.say(Tokens(start.lease, start.epoch, 0, 0, tokens_of(0, 2)))
        assert (await task).text == "ab"


async def test_a_full_report_does_not_open_the_worker() -> None:
    async with cluster() as shape:
        task = asyncio.create_task(shape.collect(max_tokens=2))
        reserve = await shape.d0.told(StartDecode)
        shape.d0.say(Refused(reserve.lease, reserve.epoch, "no_blocks"))
        await shape.d0.told(End)
        shape.d0.report(kv_blocks_used=128)
        await settle()
        assert shape.d0.sent.empty()
        shape.d0.report(kv_blocks_used=100)
        await shape.d0.told(StartDecode)
        task.cancel()
        await asyncio.wait([task])


async def test_requests_start_only_when_a_prefill_slot_is_near() -> None:
    async with cluster() as shape:
        tasks = [asyncio.create_task(shape.collect(max_tokens=1, prompt_len=900)) for _ in range(3)]
        started = [await shape.p0.told(StartPrefill), await shape.p0.told(StartPrefill)]
        await settle()
        assert shape.p0.sent.empty()
        assert shape.sample("baton_num_requests_waiting") == 1
        shape.p0.say(Tokens(started[0].lease, 0, 0, 0, tokens_of(0, 1)))
        assert await shape.p0.told(End)
        started.append(await shape.p0.told(StartPrefill))
        for start in started[1:]:
            shape.p0.say(Tokens(start.lease, 0, 0, 0, tokens_of(0, 1)))
        assert [(await task).text for task in tasks] == ["a"] * 3


async def test_the_deadline_counts_while_waiting() -> None:
    async with cluster() as shape:
        shape.service._pool.worker("d0").full = True
        with pytest.raises(DeadlineExceeded):
            await shape.collect(deadline_s=0.02)
        shape.assert_idle()
        assert shape.sample("baton_requests_total", outcome="deadline") == 1


async def test_the_deadline_counts_while_streaming_and_ends_the_workers() -> None:
    async with cluster() as shape:
        task = asyncio.create_task(shape.collect(max_tokens=9, deadline_s=0.2))
        reserve = await shape.d0.told(StartDecode)
        assert 0 < reserve.spec.deadline_s <= 0.2
        shape.d0.say(Reserved(reserve.lease, reserve.epoch, 0))
        start = await shape.p0.told(StartPrefill)
        shape.p0.say(Tokens(start.lease, start.epoch, 0, 0, tokens_of(0, 1)))
        with pytest.raises(DeadlineExceeded):
            await task
        assert shape.d0.ended == shape.p0.ended == [start.lease]


async def test_a_request_that_can_never_fit_is_refused_with_the_numbers() -> None:
    async with cluster(infos={"d0": worker_info(Role.DECODE, capacity_tokens=64)}) as shape:
        with pytest.raises(InvalidRequest, match=r"60 prompt tokens and 1 x 6 .* 64 tokens") as caught:
            await shape.collect(max_tokens=6, prompt_len=60)
        assert caught.value.param == "max_tokens"
        assert shape.service.models()["tiny"].max_model_len == 64 < CARD.max_model_len
        assert shape.sample("baton_requests_total", outcome="invalid") == 1


async def test_more_choices_than_a_worker_runs_are_refused() -> None:
    async with cluster() as shape:
        with pytest.raises(InvalidRequest, match="8 sequences"):
            await shape.collect(n=9)


async def test_without_workers_the_answer_is_503_at_once() -> None:
    async with cluster() as shape:
        shape.d0.die()
        assert "no decode worker" in (shape.service.ready() or "")
        with pytest.raises(Unavailable, match="no decode worker is ready; d0") as caught:
            await shape.collect()
        assert caught.value.retry_after_s


async def test_waiting_newcomers_are_told_when_the_last_worker_dies() -> None:
    async with cluster() as shape:
        shape.service._pool.worker("d0").full = True
        task = asyncio.create_task(shape.collect())
        await settle()
        shape.d0.die()
        with pytest.raises(Unavailable):
            await task


async def test_a_router_that_drains_takes_no_more_and_waits_for_the_rest() -> None:
    async with cluster(kind=ScriptedLink) as shape:
        async with shape.request() as generation:
            drained = asyncio.create_task(shape.service.drain(PATIENCE_S))
            await settle()
            assert shape.service.ready() == "this router is shutting down"
            with pytest.raises(Unavailable, match="shutting down"):
                await shape.collect()
            text = "".join([piece.text async for pieces in generation for _, piece in pieces])
        assert text == "abcd"
        assert await drained == 0


async def test_a_drain_gives_up_on_a_request_that_never_ends() -> None:
    async with cluster() as shape, shape.request() as generation:
        assert await shape.service.drain(0.01) == 1
        with pytest.raises(Unavailable, match="shutting down"):
            await anext(aiter(generation))
    assert shape.sample("baton_requests_total", outcome="unavailable") == 1


async def test_a_drain_that_is_cut_short_ends_every_request_with_an_error() -> None:
    async with cluster() as shape, shape.request() as generation:
        drained = asyncio.create_task(shape.service.drain(PATIENCE_S))
        await settle()
        drained.cancel()
        with pytest.raises(Unavailable, match="shutting down"):
            await anext(aiter(generation))
        with pytest.raises(asyncio.CancelledError):
            await drained


async def test_a_slow_reader_is_cut() -> None:
    async with cluster(limits={"stream_buffer_bytes": 256}) as shape:
        async with shape.request(max_tokens=20) as generation:
            reserve = await shape.d0.told(StartDecode)
            shape.d0.say(Reserved(reserve.lease, reserve.epoch, 0))
            start = await shape.p0.told(StartPrefill)
            shape.p0.say(Tokens(start.lease, start.epoch, 0, 0, tokens_of(0, 10)))
            assert (await shape.d0.told(End)).lease == start.lease
            with pytest.raises(Cancelled) as caught:
                await anext(aiter(generation))
        assert caught.value.code == "slow_reader"
        assert shape.sample("baton_requests_total", outcome="cancelled") == 1


async def test_a_reader_that_keeps_up_is_not() -> None:
    async with cluster(kind=ScriptedLink, limits={"stream_buffer_bytes": 3000}) as shape:
        for _ in range(20):
            assert len((await shape.collect(max_tokens=20)).text) == 20


async def test_tokens_that_arrive_together_leave_together() -> None:
    async with cluster() as shape, shape.request(max_tokens=8, n=2) as generation:
        reserve = await shape.d0.told(StartDecode)
        shape.d0.say(Reserved(reserve.lease, reserve.epoch, 0))
        start = await shape.p0.told(StartPrefill)
        shape.d0.say(*(Tokens(start.lease, start.epoch, choice, at, tokens_of(at, 2)) for at in (0, 2) for choice in (0, 1)))
        step = await anext(aiter(generation))
        assert [(choice, piece.text, len(piece.tokens)) for choice, piece in step] == [(0, "abcd", 4), (1, "abcd", 4)]


async def test_a_model_without_workers_does_not_hold_up_another() -> None:
    other = dataclasses.replace(CARD, name="other")
    infos = {
        "px": worker_info(Role.PREFILL, card=other),
        "dx": worker_info(Role.DECODE, card=other),
    }
    async with cluster(kind=ScriptedLink, infos=infos) as shape:
        shape.service._pool.worker("d0").full = True
        waiting = asyncio.create_task(shape.collect())
        await settle()
        assert (await shape.collect(model="other")).text == "abcd"
        assert not waiting.done()
        shape.d0.report(num_leases=1)
        assert (await waiting).text == "abcd"


class Broken:
    def push(self, token: object) -> None:
        raise ZeroDivisionError("a fault of ours")


async def test_a_fault_of_ours_ends_one_request_alone() -> None:
    async with cluster(kind=ScriptedLink) as shape:
        request = GenerateRequest("r", "tiny", (1, 2), SamplingParams(max_tokens=4))
        async with shape.service.generate(request, lambda choice: Broken()) as generation:
            with pytest.raises(Internal, match="the router failed"):
                await anext(aiter(generation))
        assert (await shape.collect()).text == "abcd"
