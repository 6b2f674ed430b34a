"""The life of a request over hand-played links: the normal handoff, and every way in which workers fail."""

from __future__ import annotations

import asyncio

import pytest
from flow_support import PATIENCE_S, Answer, Cluster, cluster, settle, tokens_of, worker_info

from baton.wire.errors import BatonError, Internal, Unavailable
from baton.wire.types import (
    Committed,
    DecodeTarget,
    End,
    Failed,
    Fence,
    Fenced,
    Finish,
    Finished,
    FinishReason,
    FirstToken,
    Gone,
    HandedOff,
    Preempted,
    Refused,
    Reserved,
    Role,
    Spans,
    StartDecode,
    StartPrefill,
    Token,
    Tokens,
)


class Client:
    """Reads an answer while the test plays the workers."""

    def __init__(self, shape: Cluster, **kwargs: object) -> None:
        self.answer = Answer()
        self.error: BatonError | None = None
        self._task = asyncio.create_task(self._read(shape.request(**kwargs)))

    async def _read(self, opening) -> None:
        try:
            async with opening as generation:
                await self.answer.read(generation)
        except BatonError as error:
            self.error = error

    async def done(self) -> Answer:
        async with asyncio.timeout(PATIENCE_S):
            await self._task
        if self.error is not None:
            raise self.error
        return self.answer

    async def leave(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


async def handoff(shape: Cluster, prefill: str = "p0", decode: str = "d0") -> tuple[bytes, int]:
    """Up to prefill's start: the lease and its epoch."""
    reserve = await shape.links[decode].told(StartDecode)
    shape.links[decode].say(Reserved(reserve.lease, reserve.epoch, 0))
    start = await shape.links[prefill].told(StartPrefill)
    assert start.lease == reserve.lease
    return start.lease, start.epoch


async def test_a_handoff_gives_every_token_once_and_ends_both_workers() -> None:
    async with cluster() as shape:
        client = Client(shape, max_tokens=4)
        reserve = await shape.d0.told(StartDecode)
        shape.d0.say(Reserved(reserve.lease, reserve.epoch, 2))
        start = await shape.p0.told(StartPrefill)
        assert (start.num_cached, start.decode) == (2, DecodeTarget("d0", shape.d0.info.incarnation))
        assert start.spec.prompt_ids == (0, 1, 2)
        lease, epoch = start.lease, start.epoch
        shape.p0.say(Tokens(lease, epoch, 0, 0, tokens_of(0, 1), Spans(num_cached=1)))
        shape.d0.say(Tokens(lease, epoch, 0, 0, tokens_of(0, 3)))
        shape.p0.say(HandedOff(lease, epoch, Spans(transfer_bytes=99, transport="grpc")))
        await settle()
        shape.d0.say(Tokens(lease, epoch, 0, 3, tokens_of(3, 1)))
        answer = await client.done()
        assert answer.text == "abcd"
        assert answer.finish == {0: FinishReason.LENGTH}
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.cached_tokens) == (3, 4, 1)
        assert (answer.timeline.transfer_bytes, answer.timeline.transport) == (99, "grpc")
        assert await shape.p0.told(End) == await shape.d0.told(End) == End(lease)


async def test_an_early_token_waits_for_its_turn() -> None:
    async with cluster() as shape:
        client = Client(shape, max_tokens=3)
        lease, epoch = await handoff(shape)
        shape.d0.say(Tokens(lease, epoch, 0, 1, tokens_of(1, 1)))
        await settle()
        assert client.answer.text == ""
        shape.p0.say(Tokens(lease, epoch, 0, 0, tokens_of(0, 1)))
        await settle()
        assert client.answer.text == "ab"
        shape.d0.say(Tokens(lease, epoch, 0, 2, tokens_of(2, 1)))
        assert (await client.done()).text == "abc"


async def test_prefill_dies_and_another_takes_the_lease_after_a_fence() -> None:
    async with cluster(prefill=2) as shape:
        client = Client(shape, max_tokens=3)
        lease, epoch = await handoff(shape)
        shape.p0.die()
        fence = await shape.d0.told(Fence)
        assert (fence.lease, fence.epoch, fence.output_ids) == (lease, epoch + 1, ())
        shape.d0.say(Fenced(lease, fence.epoch, 0))
        start = await shape.p1.told(StartPrefill)
        assert (start.lease, start.epoch) == (lease, fence.epoch)
        shape.p1.say(Tokens(lease, start.epoch, 0, 0, tokens_of(0, 1)))
        shape.d0.say(Tokens(lease, start.epoch, 0, 0, tokens_of(0, 3)))
        assert (await client.done()).text == "abc"
        assert shape.sample("baton_migration_total", migration_type="prefill_lost") == 1


async def test_a_dead_prefill_whose_commit_was_taken_needs_no_retry() -> None:
    async with cluster(prefill=2) as shape:
        client = Client(shape, max_tokens=3)
        lease, epoch = await handoff(shape)
        shape.d0.say(Tokens(lease, epoch - 1, 0, 0, tokens_of(5, 1)))  # an older attempt's: never accepted
        shape.p0.die()
        await shape.d0.told(Fence)
        shape.d0.say(Tokens(lease, epoch, 0, 1, tokens_of(1, 2)))  # held until the fence is answered
        await settle()
        assert client.answer.text == ""
        shape.d0.say(Committed(lease, epoch, 0, (FirstToken(0, Token(100)),)))
        assert (await client.done()).text == "abc"
        assert shape.p1.sent.empty()


async def test_decode_dies_in_mid_stream_and_no_token_is_lost_or_said_twice() -> None:
    async with cluster(prefill=1, decode=2) as shape:
        client = Client(shape, max_tokens=5)
        lease, epoch = await handoff(shape)
        shape.p0.say(Tokens(lease, epoch, 0, 0, tokens_of(0, 1)), HandedOff(lease, epoch))
        shape.d0.say(Tokens(lease, epoch, 0, 0, tokens_of(0, 2)))
        await settle()
        shape.d0.die()
        assert await shape.p0.told(End) == End(lease)
        again, epoch = await handoff(shape, decode="d1")
        assert again != lease
        shape.d1.say(Tokens(lease, epoch, 0, 2, tokens_of(7, 1)))  # the old lease's: dropped
        shape.p0.say(Tokens(again, epoch, 0, 2, tokens_of(2, 1)))
        shape.d1.say(Tokens(again, epoch, 0, 2, tokens_of(2, 3)))
        answer = await client.done()
        assert answer.ids == {0: [100, 101, 102, 103, 104]}
        assert answer.timeline.recoveries == 1
        assert shape.sample("baton_migration_total", migration_type="decode_lost") == 1


async def test_the_recovered_request_carries_what_was_accepted() -> None:
    async with cluster(decode=2) as shape:
        client = Client(shape, max_tokens=9)
        lease, epoch = await handoff(shape)
        shape.p0.say(Tokens(lease, epoch, 0, 0, tokens_of(0, 2)))
        await settle()
        shape.d0.die()
        reserve = await shape.d1.told(StartDecode)
        assert reserve.spec.output_ids == (100, 101)
        assert reserve.spec.total_len == 5
        await client.leave()


async def test_a_lease_that_decode_forgot_goes_on_elsewhere() -> None:
    async with cluster(prefill=2, decode=2) as shape:
        client = Client(shape, max_tokens=2)
        lease, epoch = await handoff(shape)
        shape.p0.say(Failed(lease, epoch, "engine"))
        fence = await shape.d0.told(Fence)
        shape.d0.say(Gone(lease, fence.epoch))
        again, epoch = await handoff(shape, prefill="p1", decode="d1")
        shape.p1.say(Tokens(again, epoch, 0, 0, tokens_of(0, 2)))
        assert (await client.done()).text == "ab"


async def test_a_preempted_request_is_placed_again_and_costs_no_attempt() -> None:
    async with cluster() as shape:
        client = Client(shape, max_tokens=8)
        for num_tokens in range(5):  # more often than there are attempts
            lease, epoch = await handoff(shape)
            shape.p0.say(Tokens(lease, epoch, 0, num_tokens, tokens_of(num_tokens, 1)), HandedOff(lease, epoch))
            await settle()
            shape.d0.say(Preempted(lease, epoch, 0))
            await shape.d0.told(End)
            await shape.p0.told(End)
        lease, epoch = await handoff(shape)
        shape.d0.say(Tokens(lease, epoch, 0, 5, tokens_of(5, 3)))
        assert (await client.done()).text == "abcdefgh"
        assert shape.sample("baton_migration_total", migration_type="preempted") == 5


async def test_one_token_that_remains_is_asked_of_prefill_alone() -> None:
    async with cluster(decode=2) as shape:
        client = Client(shape, max_tokens=3)
        lease, epoch = await handoff(shape)
        shape.p0.say(Tokens(lease, epoch, 0, 0, tokens_of(0, 2)))
        await settle()
        shape.d0.die()
        await shape.p0.told(End)
        start = await shape.p0.told(StartPrefill)
        assert (start.decode, start.spec.output_ids) == (None, (100, 101))
        assert shape.d1.sent.empty()
        shape.p0.say(Tokens(start.lease, start.epoch, 0, 2, tokens_of(2, 1)), HandedOff(start.lease, start.epoch))
        assert (await client.done()).text == "abc"


async def test_three_attempts_then_503() -> None:
    async with cluster(prefill=4) as shape:
        client = Client(shape)
        lease, epoch = await handoff(shape)
        for retry in ("p1", "p2"):
            shape.links["p0" if retry == "p1" else "p1"].say(Failed(lease, epoch, "connect"))
            fence = await shape.d0.told(Fence)
            shape.d0.say(Fenced(lease, fence.epoch, 0))
            epoch = (await shape.links[retry].told(StartPrefill)).epoch
        shape.p2.say(Failed(lease, epoch, "connect"))
        fence = await shape.d0.told(Fence)
        shape.d0.say(Fenced(lease, fence.epoch, 0))
        with pytest.raises(Unavailable) as caught:
            await client.done()
        assert caught.value.retry_after_s
        assert lease in shape.d0.ended
        assert shape.sample("baton_transfers_failed_total") == 3
        assert shape.sample("baton_requests_total", outcome="unavailable") == 1


async def test_a_decode_that_the_only_prefill_cannot_reach_is_given_up_for_another() -> None:
    async with cluster(decode=2) as shape:
        client = Client(shape, max_tokens=2)
        lease, epoch = await handoff(shape)
        shape.p0.say(Failed(lease, epoch, "connect"))
        fence = await shape.d0.told(Fence)
        shape.d0.say(Fenced(lease, fence.epoch, 0))
        await shape.d0.told(End)
        start = await shape.links["d1"].told(StartDecode)
        shape.links["d1"].say(Reserved(start.lease, start.epoch, 0))
        await shape.p0.told(End)
        started = await shape.p0.told(StartPrefill)
        assert started.lease == start.lease
        shape.p0.say(Tokens(start.lease, started.epoch, 0, 0, tokens_of(0, 2)))
        assert (await client.done()).text == "ab"


async def test_the_only_pair_rests_before_it_is_tried_again_and_holds_up_nobody() -> None:
    async with cluster() as shape:
        client = Client(shape, max_tokens=2)
        lease, epoch = await handoff(shape)
        shape.p0.say(Failed(lease, epoch, "connect"))
        fence = await shape.d0.told(Fence)
        await shape.p0.told(End)
        shape.d0.say(Fenced(lease, fence.epoch, 0))
        await settle()
        assert shape.p0.sent.empty()
        other = Client(shape, max_tokens=2)
        newer, its_epoch = await handoff(shape)
        shape.p0.say(Tokens(newer, its_epoch, 0, 0, tokens_of(0, 2)))
        assert (await other.done()).text == "ab"
        await shape.p0.told(End)
        start = await shape.p0.told(StartPrefill)
        assert (start.lease, start.epoch) == (lease, fence.epoch)
        shape.p0.say(Tokens(lease, start.epoch, 0, 0, tokens_of(0, 2)))
        assert (await client.done()).text == "ab"


async def test_a_fault_of_the_request_is_not_tried_again() -> None:
    async with cluster(prefill=2) as shape:
        client = Client(shape)
        lease, epoch = await handoff(shape)
        shape.p0.say(Failed(lease, epoch, "broken", "cannot sample", retryable=False))
        with pytest.raises(Internal, match="cannot sample"):
            await client.done()
        assert shape.p1.sent.empty()
        assert lease in shape.d0.ended


async def test_a_reservation_that_is_not_answered_goes_to_another_decode() -> None:
    async with cluster(decode=2, timeouts={"reserve_s": 0.05}) as shape:
        client = Client(shape, max_tokens=2)
        silent = await shape.d0.told(StartDecode)
        lease, epoch = await handoff(shape, decode="d1")
        assert silent.lease in shape.d0.ended
        shape.p0.say(Tokens(lease, epoch, 0, 0, tokens_of(0, 2)))
        assert (await client.done()).text == "ab"


async def test_a_refused_commit_is_prefilled_again() -> None:
    async with cluster(prefill=2) as shape:
        client = Client(shape, max_tokens=2)
        lease, epoch = await handoff(shape)
        shape.d0.say(Refused(lease, epoch, "digest"))
        shape.p0.say(Failed(lease, epoch, "digest"))
        fence = await shape.d0.told(Fence)
        shape.d0.say(Fenced(lease, fence.epoch, 0))
        start = await shape.p1.told(StartPrefill)
        shape.p1.say(Tokens(lease, start.epoch, 0, 0, tokens_of(0, 2)))
        assert (await client.done()).text == "ab"
        assert shape.sample("baton_transfers_failed_total") == 1


async def test_the_only_prefill_comes_back_and_takes_the_same_lease() -> None:
    async with cluster() as shape:
        client = Client(shape, max_tokens=2)
        lease, epoch = await handoff(shape)
        shape.p0.die()
        fence = await shape.d0.told(Fence)
        shape.p0.come(life=2)
        shape.d0.say(Fenced(lease, fence.epoch, 0))
        start = await shape.p0.told(StartPrefill)
        assert (start.lease, start.epoch) == (lease, epoch + 1)
        shape.p0.say(Tokens(lease, start.epoch, 0, 0, tokens_of(0, 2)))
        assert (await client.done()).text == "ab"


async def test_one_worker_may_have_both_roles() -> None:
    async with cluster(prefill=0, decode=0, infos={"b0": worker_info(Role.BOTH)}) as shape:
        client = Client(shape, max_tokens=3)
        lease, epoch = await handoff(shape, prefill="b0", decode="b0")
        shape.b0.say(Tokens(lease, epoch, 0, 0, tokens_of(0, 1)), HandedOff(lease, epoch))
        shape.b0.say(Tokens(lease, epoch, 0, 0, tokens_of(0, 3)))
        assert (await client.done()).text == "abc"
        assert shape.b0.ended == [lease]


async def test_decode_dies_while_the_lease_waits_for_a_new_prefill() -> None:
    async with cluster(prefill=1, decode=2) as shape:
        client = Client(shape, max_tokens=2)
        lease, epoch = await handoff(shape)
        shape.p0.die()
        fence = await shape.d0.told(Fence)
        shape.d0.say(Fenced(lease, fence.epoch, 0))
        await settle()  # no prefill is there
        shape.d0.die()
        await settle()
        shape.p0.come()
        again, epoch = await handoff(shape, decode="d1")
        shape.p0.say(Tokens(again, epoch, 0, 0, tokens_of(0, 2)))
        assert (await client.done()).text == "ab"


async def test_a_request_with_tokens_waits_a_while_for_a_worker_to_come_back() -> None:
    async with cluster(timeouts={"replace_s": PATIENCE_S}) as shape:
        client = Client(shape, max_tokens=3)
        lease, epoch = await handoff(shape)
        shape.p0.say(Tokens(lease, epoch, 0, 0, tokens_of(0, 1)))
        await settle()
        shape.d0.die()
        await settle()
        await shape.p0.told(End)
        shape.d0.come(life=2)
        again, epoch = await handoff(shape, decode="d0")
        shape.p0.say(Tokens(again, epoch, 0, 1, tokens_of(1, 1)))
        shape.d0.say(Tokens(again, epoch, 0, 1, tokens_of(1, 2)))
        assert (await client.done()).text == "abc"


async def test_but_not_for_ever() -> None:
    async with cluster(timeouts={"replace_s": 0.05}) as shape:
        client = Client(shape, max_tokens=3)
        await handoff(shape)
        shape.d0.die()
        with pytest.raises(Unavailable, match="no decode worker"):
            await client.done()


async def test_a_stop_string_ends_the_request_before_the_workers_do() -> None:
    async with cluster() as shape:
        client = Client(shape, max_tokens=20, stop="c")
        lease, epoch = await handoff(shape)
        shape.p0.say(Tokens(lease, epoch, 0, 0, tokens_of(0, 1)))
        shape.d0.say(Tokens(lease, epoch, 0, 0, tokens_of(0, 6)))
        answer = await client.done()
        assert (answer.text, answer.finish) == ("ab", {0: FinishReason.STOP})
        assert answer.usage.completion_tokens == 3
        assert shape.sample("baton_generation_tokens_total") == 3


async def test_a_worker_may_end_a_choice_that_its_text_would_continue() -> None:
    async with cluster() as shape:
        client = Client(shape, max_tokens=20)
        lease, epoch = await handoff(shape)
        shape.d0.say(Tokens(lease, epoch, 0, 0, tokens_of(0, 2)), Finished(lease, epoch, 0, FinishReason.STOP, 2))
        answer = await client.done()
        assert (answer.text, answer.finish) == ("ab", {0: FinishReason.STOP})


async def test_n_choices_share_one_handoff_and_end_one_by_one() -> None:
    async with cluster() as shape:
        client = Client(shape, max_tokens=3, n=3, stop="b")
        lease, epoch = await handoff(shape)
        shape.p0.say(*(Tokens(lease, epoch, choice, 0, tokens_of(0 if choice else 1, 1)) for choice in range(3)))
        assert await shape.d0.told(Finish) == Finish(lease, 0)  # its first token was the stop
        shape.d0.say(*(Tokens(lease, epoch, choice, 0, tokens_of(0, 2)) for choice in (1, 2)))
        answer = await client.done()
        assert answer.texts == {0: "", 1: "a", 2: "a"}
        assert answer.usage.completion_tokens == 5


async def test_n_choices_recover_each_by_itself() -> None:
    async with cluster(decode=2) as shape:
        client = Client(shape, max_tokens=4, n=3)
        lease, epoch = await handoff(shape)
        shape.p0.say(*(Tokens(lease, epoch, choice, 0, tokens_of(0, 1)) for choice in range(3)))
        shape.d0.say(Tokens(lease, epoch, 1, 0, tokens_of(0, 4)))  # choice 1 is complete
        await settle()
        shape.d0.die()
        seen: dict[int, bytes] = {}
        for _ in range(2):
            reserve = await shape.d1.told(StartDecode)
            (choice,) = reserve.spec.choices
            seen[choice] = reserve.lease
            assert reserve.spec.output_ids == (100,)
            shape.d1.say(Reserved(reserve.lease, reserve.epoch, 0))
            shape.d1.say(Tokens(reserve.lease, reserve.epoch, choice, 1, tokens_of(1, 3)))
        answer = await client.done()
        assert seen.keys() == {0, 2}
        assert answer.texts == dict.fromkeys(range(3), "abcd")
        assert answer.usage.completion_tokens == 12


STAGES = ["placing", "reserving", "prefilling", "streaming", "fencing"]


@pytest.mark.parametrize("stage", STAGES)
async def test_a_client_that_leaves_ends_everything(stage: str) -> None:
    async with cluster(prefill=2) as shape:
        if stage == "placing":
            shape.d0.report(kv_blocks_used=128)
            shape.service._pool.worker("d0").full = True
        client = Client(shape, max_tokens=9)
        await settle()
        leases = []
        if stage == "reserving":
            leases = [(await shape.d0.told(StartDecode)).lease]
        if stage in ("prefilling", "streaming", "fencing"):
            lease, epoch = await handoff(shape)
            leases = [lease]
        if stage == "streaming":
            shape.p0.say(Tokens(lease, epoch, 0, 0, tokens_of(0, 1)))
            await settle()
        if stage == "fencing":
            shape.p0.say(Failed(lease, epoch, "connect"))
            await shape.d0.told(Fence)
        await client.leave()
        shape.assert_idle()
        assert shape.d0.ended == leases
        assert shape.sample("baton_requests_total", outcome="cancelled") == 1


async def test_leaving_at_once_leaves_nothing() -> None:
    async with cluster() as shape:
        async with shape.request():
            pass
        shape.assert_idle()
        assert shape.sample("baton_requests_total", outcome="cancelled") == 1


async def test_a_pair_that_cannot_reach_each_other_is_avoided_and_both_workers_are_used() -> None:
    async with cluster(prefill=2, decode=2) as shape:
        client = Client(shape, max_tokens=2)
        lease, epoch = await handoff(shape)
        shape.p0.say(Failed(lease, epoch, "connect"))
        fence = await shape.d0.told(Fence)
        shape.d0.say(Fenced(lease, fence.epoch, 0))
        start = await shape.p1.told(StartPrefill)
        shape.p1.say(Tokens(lease, start.epoch, 0, 0, tokens_of(0, 2)))
        await client.done()
        pairs = set()
        for _ in range(8):
            client = Client(shape, max_tokens=2)
            await settle()
            decode = next(name for name in ("d0", "d1") if _drop_ends(shape.links[name]) and shape.links[name].sent.qsize())
            reserve = await shape.links[decode].told(StartDecode)
            shape.links[decode].say(Reserved(reserve.lease, reserve.epoch, 0))
            await settle()
            prefill = next(name for name in ("p0", "p1") if _drop_ends(shape.links[name]) and shape.links[name].sent.qsize())
            start = await shape.links[prefill].told(StartPrefill)
            pairs.add((prefill, decode))
            shape.links[prefill].say(Tokens(start.lease, start.epoch, 0, 0, tokens_of(0, 2)))
            await client.done()
        assert ("p0", "d0") not in pairs
        assert {prefill for prefill, _ in pairs} == {"p0", "p1"}
        assert {decode for _, decode in pairs} == {"d0", "d1"}


def _drop_ends(link) -> bool:
    """Takes ends off the queue of commands; always true."""
    waiting = [link.sent.get_nowait() for _ in range(link.sent.qsize())]
    for command in waiting:
        if not isinstance(command, End):
            link.sent.put_nowait(command)
    return True
