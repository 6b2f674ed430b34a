"""A whole handoff: sender to receiver, over gRPC on loopback and over the fake."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import grpc.aio
import pytest
from transfer_support import FIRST, IDENTITY, KINDS, LEASE, TOKEN, WIRES, cluster, faulty, grpc_server

from baton.wire.channel import TOKEN_KEY
from baton.wire.errors import TransferError
from baton.wire.types import Committed, DecodeTarget, Fenced, FinishReason, FirstToken, Gone, KvHello, Refused, Timeouts, Token
from kvtransfer.transports.base import Channel, Connect


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("prefill_block", "decode_block"), [(16, 16), (16, 64), (64, 16)])
@pytest.mark.parametrize(("total_len", "num_cached"), [(1, 0), (16, 0), (17, 0), (63, 0), (130, 64), (200, 199)])
async def test_bytes_arrive_as_they_were(
    kind: str, prefill_block: int, decode_block: int, total_len: int, num_cached: int
) -> None:
    async with cluster(kind, prefill_block=prefill_block, decode_block=decode_block) as both:
        outgoing = both.begin(total_len, num_cached)
        answer = await outgoing.commit(0, FIRST)
        assert answer.ok
        assert both.arrived(total_len, num_cached)
        assert not both.decode.pool[both.decode_ids(total_len)[0], :, :, :num_cached].any()
        assert [(one.first, one.cover_start, one.cover_end) for one in both.commits] == [(FIRST, num_cached, total_len)]
        facts = outgoing.facts
        assert facts.transport == kind
        assert facts.num_bytes == (total_len - num_cached) * both.prefill.layout.token_bytes == both.receiver.received_bytes
        assert facts.transfer_s > 0
        assert (both.sender.transfers, both.receiver.transfers) == (1, 1)
        await both.receiver.close(LEASE)
        assert len(both.receiver) == 0


async def test_blocks_are_shipped_while_the_rest_is_computed() -> None:
    async with cluster("fake") as both:
        outgoing = both.begin(40)
        outgoing.computed(39)
        await both.decode.written(2)
        assert both.decode.runs == [(0, 16), (16, 32)]
        assert (await outgoing.commit(0, FIRST)).ok
        assert outgoing.facts.num_bytes == 40 * both.prefill.layout.token_bytes
        assert 0 < outgoing.facts.hidden_s <= outgoing.facts.transfer_s


@pytest.mark.parametrize("kind", WIRES)
async def test_many_attempts_share_one_channel(kind: str) -> None:
    dials: list[str] = []

    def counting(connect: Connect) -> Connect:
        async def dial(address: str, hello: KvHello, token: str, timeouts: Timeouts) -> Channel:
            dials.append(address)
            return await connect(address, hello, token, timeouts)

        return dial

    async with cluster(kind, wrap=counting) as both:
        leases = [bytes([n]) * 16 for n in range(5)]
        outgoing = [both.begin(48, lease=lease) for lease in leases]
        answers = await asyncio.gather(*(one.commit(0, FIRST) for one in outgoing))
        assert all(answer.ok for answer in answers)
        assert [answer.lease for answer in answers] == leases
        assert len(dials) == 1
        for lease in leases:
            await both.receiver.close(lease)


async def test_nothing_is_committed_when_every_choice_has_ended() -> None:
    async with cluster("fake") as both:
        outgoing = both.begin(16)
        assert (await outgoing.commit(0, (FirstToken(0, Token(7), FinishReason.STOP),))).ok
        assert both.commits == []
        await both.receiver.close(LEASE)


@pytest.mark.parametrize("kind", WIRES)
async def test_a_cancelled_attempt_reads_nothing_more_and_leaves_the_channel(kind: str) -> None:
    async with cluster(kind) as both:
        outgoing = both.begin(64)
        outgoing.computed(64)
        await outgoing.cancel()
        other = both.begin(64, lease=b"M" * 16)
        assert (await other.commit(0, FIRST)).ok
        with pytest.raises(TransferError, match="cancelled"):
            await outgoing.commit(0, FIRST)
        assert both.sender.transfers_failed == 0
        await both.receiver.close(LEASE)
        await both.receiver.close(b"M" * 16)


@pytest.mark.parametrize("kind", WIRES)
async def test_an_attempt_that_nobody_expects_is_refused_and_counted(kind: str) -> None:
    async with cluster(kind) as both:
        with pytest.raises(TransferError) as caught:
            await both.begin(32, expect=False).commit(0, FIRST)
        assert caught.value.reason == "unknown_lease"
        assert both.receiver.refused["unknown_lease"] >= 1
        assert both.sender.transfers_failed == 1
        assert not both.decode.pool.any()


@pytest.mark.parametrize("kind", WIRES)
async def test_a_fence_refuses_the_old_epoch_and_takes_the_next(kind: str) -> None:
    async with cluster(kind, prefill_block=64) as both:
        old = both.begin(64)
        old.computed(64)
        await both.decode.written(1)
        assert await both.receiver.fence(LEASE, 2, 65, 1) == Fenced(LEASE, 2, 0)
        with pytest.raises(TransferError) as caught:
            await old.commit(0, FIRST)
        assert caught.value.reason == "stale_epoch"
        new = both.begin(65, epoch=2, expect=False)
        assert (await new.commit(1, FIRST)).ok
        assert both.arrived(65)
        assert await both.receiver.fence(LEASE, 3, 65, 1) == Committed(LEASE, 2, 1, FIRST)
        await both.receiver.close(LEASE)
        assert await both.receiver.fence(LEASE, 4, 65, 1) == Gone(LEASE, 4)


async def test_a_fence_left_over_from_before_says_nothing() -> None:
    async with cluster("fake") as both:
        both.receiver.expect(LEASE, 3, (1,), 0, 16, 0, both.commits.append)
        assert await both.receiver.fence(LEASE, 2, 16, 0) is None


@pytest.mark.parametrize("kind", WIRES)
async def test_closing_during_a_transfer_stops_the_writes(kind: str) -> None:
    async with cluster(kind) as both:
        outgoing = both.begin(600)
        outgoing.computed(600)
        await both.decode.written(1)
        await both.receiver.close(LEASE)
        both.decode.pool[:] = 0
        with pytest.raises(TransferError) as caught:
            await outgoing.commit(0, FIRST)
        assert caught.value.reason == "unknown_lease"
        assert not both.decode.pool.any()


@pytest.mark.parametrize("kind", WIRES)
async def test_a_restarted_receiver_is_another_one_and_the_next_attempt_dials_afresh(kind: str) -> None:
    async with cluster(kind) as both:
        assert (await both.begin(32).commit(0, FIRST)).ok
        restarted = replace(both.target, incarnation=b"E" * 16)
        await both.receiver.close(LEASE)
        outgoing = both.sender.begin(LEASE, 1, restarted, (1, 2), 0, 32)
        with pytest.raises(TransferError) as caught:
            await outgoing.commit(0, FIRST)
        assert caught.value.reason == "wrong_incarnation"
        assert (await both.begin(32).commit(0, FIRST)).ok
        await both.receiver.close(LEASE)


async def test_a_server_that_comes_back_at_the_same_address_is_dialled_again() -> None:
    async with cluster() as both:
        async with grpc_server(both.receiver) as address:
            both.target = DecodeTarget(address, b"D" * 16)
            outgoing = both.begin(48)
            outgoing.computed(32)
            await both.decode.written(1)
        with pytest.raises(TransferError) as caught:
            await outgoing.commit(0, FIRST)
        assert caught.value.reason == "channel_lost"
        await both.receiver.close(LEASE)
        with pytest.raises(TransferError) as caught:
            await both.begin(48).commit(0, FIRST)
        assert caught.value.reason == "connect"
        await both.receiver.close(LEASE)
        async with grpc_server(both.receiver, address):
            assert (await both.begin(48).commit(0, FIRST)).ok
        await both.receiver.close(LEASE)


@pytest.mark.parametrize("kind", WIRES)
async def test_a_channel_that_stands_still_is_given_up(kind: str) -> None:
    stalled = asyncio.Event()
    async with cluster(kind, wrap=lambda connect: faulty(connect, lambda message: [message], stalled)) as both:
        first, second = both.begin(48), both.begin(48, lease=b"M" * 16)
        assert first.error is None
        stalled.set()
        for outgoing in (first, second):
            with pytest.raises(TransferError) as caught:
                await outgoing.commit(0, FIRST)
            assert caught.value.reason == "stall"
        stalled.clear()
        for lease in (LEASE, b"M" * 16):
            await both.receiver.close(lease)
        assert (await both.begin(48).commit(0, FIRST)).ok
        await both.receiver.close(LEASE)


@pytest.mark.parametrize("kind", WIRES)
async def test_a_commit_without_an_answer_is_a_stall(kind: str) -> None:
    def swallow_commits(message: bytes) -> list[bytes]:
        return [] if message[0] == 0x1A else [message]

    async with cluster(kind, wrap=lambda connect: faulty(connect, swallow_commits)) as both:
        with pytest.raises(TransferError) as caught:
            await both.begin(48).commit(0, FIRST)
        assert caught.value.reason == "stall"
        assert both.commits == []
        await both.receiver.close(LEASE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["architecture", "weights_digest", "recipe", "rope", "max_model_len"])
async def test_another_identity_is_refused_by_field_and_values(kind: str, name: str) -> None:
    other = replace(IDENTITY, **{name: 77 if name == "max_model_len" else "other"})
    async with cluster(kind, identity=other) as both:
        with pytest.raises(TransferError, match=f"{name} differs.*{getattr(other, name)}.*{getattr(IDENTITY, name)}") as caught:
            await both.begin(16).commit(0, FIRST)
        assert caught.value.reason == "pairing_refused"
        await both.receiver.close(LEASE)


@pytest.mark.parametrize("kind", KINDS)
async def test_another_clusters_token_is_refused(kind: str) -> None:
    def forged(connect: Connect) -> Connect:
        async def dial(address: str, hello: KvHello, token: str, timeouts: Timeouts) -> Channel:
            return await connect(address, hello, "guess", timeouts)

        return dial

    async with cluster(kind, wrap=forged) as both:
        with pytest.raises(TransferError) as caught:
            await both.begin(16).commit(0, FIRST)
        assert caught.value.reason == "unauthenticated"
        await both.receiver.close(LEASE)


async def test_an_address_that_never_answers_costs_the_connect_deadline() -> None:
    async with cluster(timeouts=replace(Timeouts(), connect_s=0.1)) as both:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            both.target = DecodeTarget(f"127.0.0.1:{port}", b"D" * 16)
            with pytest.raises(TransferError) as caught:
                await both.begin(16).commit(0, FIRST)
        assert caught.value.reason == "connect"
        await both.receiver.close(LEASE)


async def test_a_channel_that_does_not_begin_with_hello_is_hung_up_on() -> None:
    async with cluster() as both, grpc.aio.insecure_channel(both.target.address) as channel:
        call = channel.stream_stream("/baton.v1.KvTransfer/Push", None, None)(None, metadata=((TOKEN_KEY, TOKEN),))
        await call.write(b"what?")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.DATA_LOSS


async def test_every_choice_must_bring_a_first_token() -> None:
    first = (FirstToken(0, Token(7)), FirstToken(1, Token(8), FinishReason.STOP))
    async with cluster("fake") as both:
        both.receiver.expect(LEASE, 1, both.decode_ids(16), 0, 16, 0, both.commits.append, choices=(0, 1))
        assert (await both.begin(16, expect=False).commit(0, first)).ok
        refusals: list[Refused] = []
        other = b"M" * 16
        both.receiver.expect(
            other, 1, both.decode_ids(16), 0, 16, 0, both.commits.append, choices=(0, 1), on_refused=refusals.append
        )
        with pytest.raises(TransferError) as caught:
            await both.begin(16, lease=other, expect=False).commit(0, FIRST)
        assert caught.value.reason == "index"
        assert refusals == [Refused(other, 1, "index")]
        assert len(both.commits) == 1
        for lease in (LEASE, other):
            await both.receiver.close(lease)


async def test_a_pool_that_cannot_be_read_fails_the_attempt() -> None:
    async with cluster("fake") as both:
        both.receiver.expect(LEASE, 1, (1,), 0, 16, 0, both.commits.append)
        outgoing = both.sender.begin(LEASE, 1, both.target, (9999,), 0, 16)
        with pytest.raises(TransferError) as caught:
            await outgoing.commit(0, FIRST)
        assert caught.value.reason == "internal"
        await both.receiver.close(LEASE)


@pytest.mark.parametrize("kind", WIRES)
async def test_stopping_the_sender_fails_what_is_on_its_way(kind: str) -> None:
    async with cluster(kind) as both:
        outgoing = both.begin(64)
        outgoing.computed(32)
        await both.decode.written(1)
        await both.sender.stop()
        with pytest.raises(TransferError) as caught:
            await outgoing.commit(0, FIRST)
        assert caught.value.reason == "channel_lost"
        await both.receiver.close(LEASE)


async def test_nothing_is_read_before_the_wire_is_known_and_a_commit_hears_of_its_end() -> None:
    dialled, refused = asyncio.Event(), asyncio.Event()

    def slow(connect: Connect) -> Connect:
        async def dial(address: str, hello: KvHello, token: str, timeouts: Timeouts) -> Channel:
            dialled.set()
            await refused.wait()
            raise TransferError("connect", "nobody there")

        return dial

    async with cluster("fake", wrap=slow) as both:
        outgoing = both.begin(32)
        outgoing.computed(32)
        commit = asyncio.create_task(outgoing.commit(0, FIRST))
        await dialled.wait()
        refused.set()
        with pytest.raises(TransferError) as caught:
            await asyncio.wait_for(commit, 30)
        assert caught.value.reason == "connect"
        assert both.prefill.num_read == 0
        await both.receiver.close(LEASE)
