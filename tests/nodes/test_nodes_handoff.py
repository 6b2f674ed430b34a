"""Prefill and decode workers as real servers: the text is one engine's text, and everything is given back."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from node_support import BLOCK_SIZE, Node, Script, alone, node, spec

from baton.engine.weights import LoadedModel
from baton.wire.types import Failed, Finished, HandedOff, Refused, Reserved, Role, Tokens


async def test_the_text_is_one_engines_text(model: LoadedModel, pair: tuple[Node, Node]) -> None:
    lengths = (1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 5 * BLOCK_SIZE + 3)
    requests = [spec(length, first_id=length) for length in lengths]
    expected = await alone(model, requests)
    for request, ids in zip(requests, expected, strict=True):
        assert await Script(request).run(*pair) == ids


async def test_requests_run_together(model: LoadedModel, pair: tuple[Node, Node]) -> None:
    requests = [spec(20 + i, first_id=i) for i in range(6)]
    expected = await alone(model, requests)
    async with asyncio.TaskGroup() as group:
        runs = [group.create_task(Script(request).run(*pair)) for request in requests]
    assert [run.result() for run in runs] == expected


async def test_only_what_decode_lacks_is_shipped(model: LoadedModel, pair: tuple[Node, Node]) -> None:
    request = spec(4 * BLOCK_SIZE + 2)
    first, second = Script(request), Script(request)
    expected = await alone(model, [request])
    assert [await first.run(*pair)] == expected
    assert [await second.run(*pair)] == expected
    assert first.seen[0] == Reserved(first.lease, 1, 0)
    assert second.seen[0] == Reserved(second.lease, 1, 4 * BLOCK_SIZE)
    whole, rest = shipped_bytes(first), shipped_bytes(second)
    assert 0 < rest < whole / 8


def shipped_bytes(script: Script) -> int:
    """Bytes that prefill shipped, as it reports them."""
    done = next(event for event in script.seen if isinstance(event, HandedOff))
    assert done.spans is not None
    assert done.spans.transport == "shm"
    return done.spans.transfer_bytes


async def test_the_first_token_comes_from_prefill_and_decode_repeats_it(model: LoadedModel, pair: tuple[Node, Node]) -> None:
    script = Script(spec(BLOCK_SIZE))
    await script.run(*pair)
    firsts = [event for event in script.seen if isinstance(event, Tokens) and event.index == 0]
    assert len(firsts) == 2
    assert firsts[0].tokens[0] == firsts[1].tokens[0]


async def test_choices_share_one_handoff(model: LoadedModel, pair: tuple[Node, Node]) -> None:
    request = spec(BLOCK_SIZE + 5, choices=(0, 1, 2), temperature=1.0)
    expected = await alone(model, [request])
    script = Script(request)
    assert [await script.run(*pair)] == expected
    assert len({tuple(ids) for ids in expected[0].values()}) == 3
    assert sum(isinstance(event, HandedOff) for event in script.seen) == 1


async def test_a_first_token_that_ends_the_request_commits_nothing(model: LoadedModel, pair: tuple[Node, Node]) -> None:
    prefill, decode = pair
    script = Script(spec(BLOCK_SIZE + 1, max_tokens=1))
    await script.run(prefill, decode)
    assert [type(event) for event in script.seen[:3]] == [Reserved, Tokens, Finished]
    await decode.idle()
    assert decode.link.load.transfers_total == 0


async def test_prefill_alone_answers_without_decode(model: LoadedModel, pair: tuple[Node, Node]) -> None:
    request = spec(BLOCK_SIZE + 1, max_tokens=1)
    script = Script(request)
    script.prefill(pair[0], None)
    await script.until(HandedOff)
    script.end()
    assert [{0: script.ids()}] == await alone(model, [request])


async def test_one_worker_with_both_roles_hands_off_to_itself(model: LoadedModel) -> None:
    request = spec(3 * BLOCK_SIZE + 7)
    async with node(model, Role.BOTH) as both:
        assert [await Script(request).run(both, both)] == await alone(model, [request])


async def test_decode_refuses_what_it_cannot_hold(model: LoadedModel) -> None:
    async with node(model, Role.DECODE, kv_blocks=4) as decode:
        script = Script(spec(5 * BLOCK_SIZE))
        refused = await script.reserve(decode)
        assert isinstance(refused, Refused)
        assert refused.reason == "no_blocks"
        script.end()


async def test_an_end_in_mid_stream_gives_everything_back(model: LoadedModel, pair: tuple[Node, Node]) -> None:
    script = Script(spec(BLOCK_SIZE, max_tokens=2000))
    reserved = await script.reserve(pair[1])
    assert isinstance(reserved, Reserved)
    script.prefill(*pair)
    while len(script.ids()) < 5:
        await script.get()
    script.end()
    for worker in pair:
        await worker.idle()
    assert pair[1].link.load.generated_tokens_total < 2000


async def test_a_deadline_ends_the_work_here(pair: tuple[Node, Node]) -> None:
    script = Script(replace(spec(BLOCK_SIZE), deadline_s=0.05))
    await script.reserve(pair[1])
    failed = await script.until(Failed)
    assert isinstance(failed, Failed)
    assert (failed.reason, failed.retryable) == ("deadline", False)
    script.end()


@pytest.mark.parametrize("kv_transport", ["tcp", "grpc"])
async def test_a_forced_transport_is_taken(model: LoadedModel, kv_transport: str) -> None:
    request = spec(2 * BLOCK_SIZE + 1)
    async with (
        node(model, Role.PREFILL, kv_transport=kv_transport) as prefill,
        node(model, Role.DECODE) as decode,
    ):
        script = Script(request)
        assert [await script.run(prefill, decode)] == await alone(model, [request])
        done = next(event for event in script.seen if isinstance(event, HandedOff))
        assert done.spans is not None
        assert done.spans.transport == kv_transport


async def test_a_worker_with_both_roles_hands_over_to_itself_without_a_wire(model: LoadedModel) -> None:
    request = spec(2 * BLOCK_SIZE + 1)
    async with node(model, Role.BOTH) as both:
        script = Script(request)
        assert [await script.run(both, both)] == await alone(model, [request])
        done = next(event for event in script.seen if isinstance(event, HandedOff))
        assert done.spans is not None
        assert done.spans.transport == "local"
