"""What goes wrong between the nodes: failed transfers, fences, dead ends; and what the router stops early."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from node_support import BLOCK_SIZE, Node, Script, alone, node, spec

from baton.cli.worker import Hooks
from baton.engine.kernels.interface import StepBatch
from baton.engine.weights import LoadedModel
from baton.engine.weights.load import AnyDecoder
from baton.wire.types import (
    Committed,
    Failed,
    Fence,
    Fenced,
    Finish,
    Finished,
    Gone,
    HandedOff,
    KvAnswer,
    KvHello,
    Preempted,
    Refused,
    Reserved,
    Role,
    StartDecode,
    StartPrefill,
    Timeouts,
    Tokens,
)
from kvtransfer.transports.base import Channel, Connect


class Flipping:
    """A channel that damages the payload of the first frame it carries."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._flipped = False
        self.transport = channel.transport

    async def write(self, message: bytes) -> None:
        if not self._flipped and len(message) > 1000:
            self._flipped = True
            message = message[:-1] + bytes([message[-1] ^ 1])
        await self._channel.write(message)

    async def read(self) -> KvAnswer:
        return await self._channel.read()

    async def close(self) -> None:
        await self._channel.close()


def flipping(connect: Connect) -> Connect:
    async def dial(address: str, hello: KvHello, token: str, timeouts: Timeouts) -> Channel:
        return Flipping(await connect(address, hello, token, timeouts))

    return dial


def gate(steps: threading.Semaphore) -> Callable[[], None]:
    """An engine takes one step for each count of `steps`."""

    def wait() -> None:
        steps.acquire()

    return wait


async def test_damaged_kv_is_refused_and_another_prefill_continues(model: LoadedModel) -> None:
    request = spec(2 * BLOCK_SIZE + 3)
    async with (
        node(model, Role.PREFILL, Hooks(wrap_transport=flipping), kv_transport="grpc") as damaging,
        node(model, Role.PREFILL) as healthy,
        node(model, Role.DECODE) as decode,
    ):
        script = Script(request)
        await script.reserve(decode)
        script.prefill(damaging, decode)
        told: set[type] = set()
        while not {Failed, Refused, Tokens} <= told:
            told.add(type(await script.get()))
        accepted = script.ids()
        assert len(accepted) == 1
        fenced = await script.fence(decode)
        assert fenced == Fenced(script.lease, 2, 0)
        script.prefill(healthy, decode)
        await script.finish()
        assert [{0: script.ids()}] == await alone(model, [request])
        await decode.until(lambda: decode.link.load.frames_refused_total > 0)


async def test_a_fence_after_the_commit_is_answered_with_it(model: LoadedModel, pair: tuple[Node, Node]) -> None:
    script = Script(spec(BLOCK_SIZE + 1))
    await script.reserve(pair[1])
    script.prefill(*pair)
    await script.until(HandedOff)
    pair[1].link.send(Fence(script.lease, 2, tuple(script.ids()[:1])))
    committed = await script.until(Committed)
    assert isinstance(committed, Committed)
    assert (committed.epoch, committed.index, committed.first[0].token) == (1, 0, script.tokens[0][0])
    await script.finish()
    assert [{0: script.ids()}] == await alone(model, [script.request])


async def test_the_commit_is_remembered_when_the_blocks_are_gone(pair: tuple[Node, Node]) -> None:
    script = Script(spec(BLOCK_SIZE + 1))
    await script.reserve(pair[1])
    script.prefill(*pair)
    await script.until(Finished)
    await pair[1].until(lambda: pair[1].link.load.kv_blocks_used == 0)
    pair[1].link.send(Fence(script.lease, 2))
    await script.until(Committed)
    script.end()


async def test_an_unknown_lease_is_gone(pair: tuple[Node, Node]) -> None:
    script = Script(spec(3))
    script.attach(pair[1])
    pair[1].link.send(Fence(script.lease, 2))
    assert await script.get() == Gone(script.lease, 2)
    script.end()


async def test_a_fence_over_a_block_boundary_keeps_the_reservation(pair: tuple[Node, Node]) -> None:
    script = Script(spec(BLOCK_SIZE))
    await script.reserve(pair[1])
    pair[1].link.send(Fence(script.lease, 2, (65,)))
    assert await script.get() == Fenced(script.lease, 2, 0)
    script.end()


async def test_a_fence_beyond_the_reserved_blocks_gives_the_lease_up(pair: tuple[Node, Node]) -> None:
    script = Script(spec(BLOCK_SIZE))
    await script.reserve(pair[1])
    pair[1].link.send(Fence(script.lease, 2, (65,) * 200))
    assert await script.get() == Gone(script.lease, 2)
    script.end()


async def test_a_fence_after_the_deadline_is_answered(pair: tuple[Node, Node]) -> None:
    script = Script(replace(spec(BLOCK_SIZE), deadline_s=0.05))
    await script.reserve(pair[1])
    await script.until(Failed)
    pair[1].link.send(Fence(script.lease, 2))
    assert await script.get() == Gone(script.lease, 2)
    script.end()


async def test_starts_are_idempotent_and_a_higher_epoch_ends_the_lower(model: LoadedModel, pair: tuple[Node, Node]) -> None:
    prefill, decode = pair
    script = Script(spec(BLOCK_SIZE + 2))
    await script.reserve(decode)
    decode.link.send(StartDecode(script.lease, 1, script.request))
    script.attach(prefill)
    old = StartPrefill(script.lease, 1, script.request, 0, decode.target)
    prefill.link.send(old)
    assert isinstance(await script.fence(decode), Fenced | Committed | Tokens)
    script.end()
    again = Script(spec(BLOCK_SIZE + 2))
    assert [await again.run(prefill, decode)] == await alone(model, [again.request])


async def test_prefill_fails_when_nobody_listens(pair: tuple[Node, Node]) -> None:
    script = Script(spec(BLOCK_SIZE))
    script.attach(pair[0])
    target = pair[1].target
    pair[0].link.send(StartPrefill(script.lease, 1, script.request, 0, type(target)(target.address, b"?" * 16)))
    failed = await script.until(Failed)
    assert isinstance(failed, Failed)
    assert (failed.reason, failed.retryable) == ("wrong_incarnation", True)
    script.end()


async def test_a_finished_choice_stops_and_the_others_go_on(model: LoadedModel) -> None:
    steps = threading.Semaphore(0)
    request = spec(BLOCK_SIZE, choices=(0, 1), max_tokens=200, temperature=1.0)
    async with node(model, Role.PREFILL) as prefill, node(model, Role.DECODE, Hooks(gate(steps))) as decode:
        script = Script(request)
        await script.reserve(decode)
        script.prefill(prefill, decode)
        steps.release(2)
        while len(script.ids(1)) < 3:
            await script.get()
        decode.link.send(Finish(script.lease, 1))
        decode.link.send(Fence(script.lease, 2))
        await script.until(Committed)  # the Finish was heard before
        steps.release(1000)
        while 0 not in script.finished:
            await script.get()
        assert len(script.ids(1)) == 3
        assert 1 not in script.finished
        await decode.until(lambda: 0 < decode.link.load.overrun_tokens_total < 10)
        script.end()
        assert script.ids(0) == (await alone(model, [request]))[0][0]


class Spoiled:
    """A model whose logits are what `fault` makes of them."""

    def __init__(self, model: AnyDecoder, fault: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.spec = model.spec
        self._model = model
        self._fault = fault

    def forward(self, batch: StepBatch, pool: torch.Tensor) -> torch.Tensor:
        return self._fault(self._model.forward(batch, pool))


def no_kernel(_logits: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("kernel said no")


def no_number(logits: torch.Tensor) -> torch.Tensor:
    return logits * float("nan")


@pytest.mark.parametrize(("fault", "retryable"), [(no_kernel, True), (no_number, False)])
async def test_a_failed_step_may_be_tried_elsewhere_and_a_bad_request_may_not(
    model: LoadedModel, fault: Callable[[torch.Tensor], torch.Tensor], retryable: bool
) -> None:
    spoiled = replace(model, model=Spoiled(model.model, fault))
    async with node(spoiled, Role.PREFILL) as bad_prefill, node(spoiled, Role.DECODE) as bad_decode:
        script = Script(spec(20))
        script.prefill(bad_prefill, None)
        failed = await script.until(Failed)
        assert (failed.reason, failed.retryable) == ("engine", retryable)
        script.end()
        async with node(model, Role.PREFILL) as prefill:
            script = Script(spec(20))
            await script.reserve(bad_decode)
            script.prefill(prefill, bad_decode)
            failed = await script.until(Failed)
            assert (failed.reason, failed.retryable) == ("engine", retryable)
            script.end()


async def test_the_youngest_is_handed_back_for_want_of_room(model: LoadedModel) -> None:
    steps = threading.Semaphore(0)
    requests = [spec(20, max_tokens=24, first_id=i) for i in (1, 2)]
    expected = await alone(model, requests)
    async with (
        node(model, Role.PREFILL) as prefill,
        node(model, Role.DECODE, Hooks(gate(steps)), kv_blocks=4, growth_reserve=0) as decode,
    ):
        old, young = [Script(request) for request in requests]
        for script in (old, young):
            assert isinstance(await script.reserve(decode), Reserved)
        for script in (old, young):
            script.prefill(prefill, decode)
            await script.until(HandedOff)
        steps.release(1000)
        preempted = await young.until(Preempted)
        assert preempted == Preempted(young.lease, 1, 0)
        young.end()
        await old.finish()
        assert old.ids() == expected[0][0]
        again = Script(replace(requests[1], output_ids=tuple(young.ids())))
        assert young.ids() + (await again.run(prefill, decode))[0] == expected[1][0]
