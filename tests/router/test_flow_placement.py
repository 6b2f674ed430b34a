"""Placement over snapshots, the guess about caches, and what may be paired."""

from __future__ import annotations

import asyncio
import dataclasses
import logging

import pytest
from flow_support import IDENTITY, LAYOUT, ScriptedLink, cluster, settle, tokens_of, worker_info
from hypothesis import given
from hypothesis import strategies as st

from baton.wire.types import Capabilities, Endpoint, Identity, LoadReport, Reserved, Role, StartDecode, StartPrefill, Tokens
from router.affinity import SPAN_LEN, PrefixIndex, prefix_keys
from router.fit import fits
from router.pairing import mismatch, unspoken
from router.placement import Avoid, Choice, Need, Snapshot, choose


def snapshot(address: str, role: Role, **changes: object) -> Snapshot:
    fields = {"load": LoadReport(kv_blocks_total=100), "capacity_tokens": 1600, "max_num_seqs": 8}
    return Snapshot(address, role, **(fields | changes))


def prefill(address: str, **changes: object) -> Snapshot:
    return snapshot(address, Role.PREFILL, **changes)


def decode(address: str, **changes: object) -> Snapshot:
    return snapshot(address, Role.DECODE, **changes)


def test_the_shorter_queue_wins() -> None:
    workers = [
        prefill("p0", prefill_tokens=500, num_prefills=1),
        prefill("p1", prefill_tokens=20, num_prefills=1),
        decode("d0"),
    ]
    assert choose(workers, Need(10)) == Choice("p1", "d0")


def test_what_others_queued_counts_too() -> None:
    workers = [prefill("p0", load=LoadReport(queued_prefill_tokens=900)), prefill("p1", prefill_tokens=20), decode("d0")]
    assert choose(workers, Need(10)) == Choice("p1", "d0")


def test_the_emptier_decode_wins() -> None:
    workers = [
        prefill("p0"),
        decode("d0", load=LoadReport(kv_blocks_used=60, kv_blocks_total=100)),
        decode("d1", num_decodes=2),
    ]
    assert choose(workers, Need(10)) == Choice("p0", "d1")


def test_a_cached_prefix_draws_prefill_unless_the_queue_is_longer() -> None:
    workers = [prefill("p0", num_prefills=1, prefill_tokens=400), prefill("p1"), decode("d0")]
    assert choose(workers, Need(1000, prefill_hits={"p0": 960})) == Choice("p0", "d0")
    assert choose(workers, Need(1000, prefill_hits={"p0": 320})) == Choice("p1", "d0")


def test_a_cached_prefix_draws_decode_unless_it_is_much_fuller() -> None:
    need = Need(100, decode_hits={"d0": 96})
    assert choose([prefill("p0"), decode("d0", decode_tokens=100), decode("d1")], need) == Choice("p0", "d0")
    assert choose([prefill("p0"), decode("d0", decode_tokens=800), decode("d1")], need) == Choice("p0", "d1")


def test_workers_take_turns_when_nothing_else_speaks() -> None:
    workers = [prefill("p0", turn=3), prefill("p1", turn=1), decode("d0", turn=2), decode("d1", turn=4)]
    assert choose(workers, Need(10)) == Choice("p1", "d0")


def test_two_prefills_are_near_and_more_while_they_are_short() -> None:
    busy = [prefill("p0", num_prefills=2, prefill_tokens=600), decode("d0")]
    assert choose(busy, Need(500)) is None
    assert choose(busy, Need(400)) == Choice("p0", "d0")
    assert choose([prefill("p0", num_prefills=1, prefill_tokens=5000), decode("d0")], Need(500)) is not None


@pytest.mark.parametrize("full", [{"full": True}, {"num_decodes": 8}])
def test_no_room_at_decode_means_waiting(full: dict[str, object]) -> None:
    assert choose([prefill("p0"), decode("d0", **full)], Need(10)) is None


def test_a_failed_worker_is_used_only_if_there_is_no_other() -> None:
    avoid = Avoid(workers=frozenset({"p0", "d0"}))
    workers = [prefill("p0"), prefill("p1", prefill_tokens=900), decode("d0"), decode("d1", decode_tokens=900)]
    assert choose(workers, Need(10, avoid=avoid)) == Choice("p1", "d1")
    assert choose([prefill("p0"), decode("d0")], Need(10, avoid=avoid)) == Choice("p0", "d0")
    assert choose([prefill("p0"), decode("d0"), decode("d1", full=True)], Need(10, avoid=avoid)) is None


def test_a_pair_is_avoided_and_not_its_workers() -> None:
    avoid = Avoid(pairs=frozenset({("p0", "d0")}))
    assert choose([prefill("p0"), prefill("p1", prefill_tokens=9), decode("d0")], Need(10, avoid=avoid)) == Choice("p1", "d0")
    assert choose([prefill("p0"), decode("d0"), decode("d1", decode_tokens=9)], Need(10, avoid=avoid)) == Choice("p0", "d1")
    assert choose([prefill("p0"), decode("d0")], Need(10, avoid=avoid)) == Choice("p0", "d0")


def test_the_picky_wait_for_what_did_not_fail() -> None:
    pair = Avoid(pairs=frozenset({("p0", "d0")}))
    assert choose([prefill("p0"), decode("d0")], Need(10, avoid=pair, picky=True)) is None
    assert choose([prefill("p0"), decode("d0"), decode("d1")], Need(10, avoid=pair, picky=True)) == Choice("p0", "d1")
    failed = Avoid(workers=frozenset({"p0"}))
    assert choose([prefill("p0"), decode("d0")], Need(10, avoid=failed, picky=True)) is None


def test_prefill_for_a_lease_that_decode_holds_minds_the_pair() -> None:
    need = Need(10, decodes=False, decode="d0", avoid=Avoid(pairs=frozenset({("p0", "d0")})))
    assert choose([prefill("p0"), prefill("p1", prefill_tokens=9)], need) == Choice("p1", None)


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "num_choices", "held"),
    [
        (60, 5, 1, True),  # 64 positions: the last token's KV is never written
        (60, 6, 1, False),
        (32, 17, 2, True),  # two full blocks of prompt are shared, and each choice has one of its own
        (32, 17, 3, False),
        (32, 18, 2, False),
        (33, 1, 2, True),  # the prompt's last block is not full: each choice has its own
        (33, 1, 3, False),
    ],
)
def test_what_can_ever_fit_a_pool_of_four_blocks(prompt_len: int, max_tokens: int, num_choices: int, held: bool) -> None:
    info = worker_info(Role.DECODE, capacity_tokens=64)
    assert fits(info, prompt_len, max_tokens, num_choices) is held


roles = st.sampled_from(Role)
snapshots = st.builds(
    lambda number, role, prefills, decodes, full: snapshot(
        f"w{number}", role, num_prefills=prefills, decode_tokens=decodes, num_decodes=decodes // 100, full=full
    ),
    st.integers(0, 9),
    roles,
    st.integers(0, 3),
    st.integers(0, 900),
    st.booleans(),
)


@given(
    st.lists(snapshots, max_size=6, unique_by=lambda worker: worker.address),
    st.sets(st.integers(0, 9).map("w{}".format)),
    st.booleans(),
)
def test_never_a_worker_of_the_wrong_role_nor_a_full_one(workers: list[Snapshot], failed: set[str], decodes: bool) -> None:
    by_address = {worker.address: worker for worker in workers}
    choice = choose(workers, Need(2000, decodes=decodes, avoid=Avoid(frozenset(failed))))
    if choice is None:
        return
    assert by_address[choice.prefill].role.prefills
    assert by_address[choice.prefill].num_prefills < 2
    assert (choice.decode is not None) == decodes
    if choice.decode is not None:
        assert by_address[choice.decode].role.decodes
        assert not by_address[choice.decode].full
        if choice.decode in failed:
            assert {worker.address for worker in workers if worker.role.decodes} <= failed


def test_keys_share_whole_spans_and_no_tenant_or_model() -> None:
    ids = list(range(3 * SPAN_LEN + 5))
    keys = prefix_keys(ids, model="m", tenant="")
    assert len(keys) == 3
    assert prefix_keys([*ids[: 2 * SPAN_LEN], 9, *ids], model="m", tenant="")[:2] == keys[:2]
    assert not set(keys) & set(prefix_keys(ids, model="m", tenant="other"))
    assert not set(keys) & set(prefix_keys(ids, model="other", tenant=""))


def test_the_index_keeps_the_beginning_of_a_prompt_longest() -> None:
    index = PrefixIndex(capacity=4)
    old = prefix_keys(range(3 * SPAN_LEN), model="m", tenant="")
    index.remember(old, "p0")
    index.remember(prefix_keys(range(7, 7 + 2 * SPAN_LEN), model="m", tenant=""), "p1")
    assert len(index) == 4
    assert index.hit_len(old, "p0") == 2 * SPAN_LEN
    assert index.hit_len(old, "p1") == 0
    index.forget("p0")
    assert index.hit_len(old, "p0") == 0


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Identity)])
def test_a_mismatch_names_the_field_and_both_values(field: str) -> None:
    mine, theirs = worker_info(Role.PREFILL), worker_info(Role.DECODE)
    assert mismatch(mine, theirs) is None
    odd = 77 if field == "max_model_len" else "odd"
    reason = mismatch(mine, dataclasses.replace(theirs, identity=dataclasses.replace(IDENTITY, **{field: odd})))
    assert reason is not None
    assert f"identity.{field}" in reason
    assert repr(odd) in reason
    assert repr(getattr(IDENTITY, field)) in reason


def test_what_is_negotiated_may_differ_where_it_can() -> None:
    def info(**changes: object):
        return worker_info(Role.DECODE, capabilities=Capabilities(**({"layout": LAYOUT} | changes)))

    assert mismatch(info(), info(layout=dataclasses.replace(LAYOUT, block_size=64))) is None
    assert "layout.dtype" in (mismatch(info(), info(layout=dataclasses.replace(LAYOUT, dtype="bfloat16"))) or "")
    assert "transports" in (mismatch(info(), info(transports=("tcp",))) or "")
    assert mismatch(info(), info(transports=("tcp", "grpc"))) is None
    assert "protocol is 2 to 3" in (mismatch(info(protocol=3, min_protocol=2), info()) or "")
    assert "protocol" in (unspoken(info(protocol=9, min_protocol=9)) or "")


async def test_a_worker_with_other_weights_is_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    odd = dataclasses.replace(IDENTITY, weights_digest="w1")
    with caplog.at_level(logging.ERROR):
        async with cluster(kind=ScriptedLink, infos={"dx": worker_info(Role.DECODE, identity=odd)}) as shape:
            assert shape.service.ready() is None
            for _ in range(4):
                await shape.collect()
            assert shape.dx.sent.empty()
            assert "identity.weights_digest is 'w1' here and 'w0' there" in caplog.text
            shape.p0.die()
            shape.d0.die()  # the last of the others: now it sets the tone
            await settle()
            assert "no prefill worker" in (shape.service.ready() or "")
            shape.p0.come(life=2)
            assert "w0" in (shape.service.ready() or "")


async def test_ready_says_what_is_missing() -> None:
    async with cluster(decode=0) as shape:
        assert shape.service.ready() == "no decode worker is ready"
        shape.p0.die()
        assert "no prefill and no decode worker is ready; p0:" in (shape.service.ready() or "")
        assert "tiny" in shape.service.models()  # still known


async def test_equal_workers_get_equal_shares() -> None:
    async with cluster(prefill=2, decode=2, kind=ScriptedLink) as shape:
        for _ in range(40):
            await shape.collect()
        assert {name: len(link.ended) for name, link in shape.links.items()} == dict.fromkeys(("p0", "p1", "d0", "d1"), 20)


async def test_a_repeated_prompt_goes_where_it_was() -> None:
    async with cluster(prefill=3, decode=3, kind=ScriptedLink) as shape:
        for _ in range(6):
            await shape.collect(prompt_len=300)
        assert sorted(len(link.ended) for name, link in shape.links.items() if name[0] == "p") == [0, 0, 6]
        await shape.collect(prompt_len=300, tenant="other")
        assert sorted(len(link.ended) for name, link in shape.links.items() if name[0] == "p") == [0, 1, 6]


async def test_a_worker_taken_out_finishes_its_requests_and_comes_back() -> None:
    async with cluster(decode=2) as shape:
        running = asyncio.create_task(shape.collect(max_tokens=4))
        reserve = await shape.d0.told(StartDecode)
        shape.d0.say(Reserved(reserve.lease, reserve.epoch, 0))
        start = await shape.p0.told(StartPrefill)
        shape.registry.remove(Endpoint("d0", Role.DECODE))
        await settle()
        assert shape.d0.running
        waiting = asyncio.create_task(shape.collect(max_tokens=1 + 1))
        await shape.d1.told(StartDecode)
        shape.d0.say(Tokens(start.lease, start.epoch, 0, 0, tokens_of(0, 4)))
        assert (await running).text == "abcd"
        await settle()
        assert not shape.d0.running
        shape.registry.add(Endpoint("d0", Role.DECODE))
        shape.registry.add(Endpoint("d0", Role.BOTH))
        await settle()
        assert sorted(worker.address for worker in shape.service._pool.rotation("tiny")) == ["d0", "d1", "p0"]
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_a_draining_worker_gets_no_new_work() -> None:
    async with cluster(decode=2, kind=ScriptedLink) as shape:
        shape.d0.report(draining=True)
        for _ in range(4):
            await shape.collect()
        assert len(shape.d1.ended) == 4
        shape.d1.report(draining=True)
        assert "no decode worker" in (shape.service.ready() or "")
