"""Workers in the test's own loop over real gRPC, a router that follows a script, and one engine to compare with."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from baton.cli.worker import Hooks, build
from baton.cluster.config import WorkerConfig
from baton.engine.api import EngineEvent, Sampled
from baton.engine.config import EngineConfig
from baton.engine.core import EngineCore
from baton.engine.loop import EngineLoop
from baton.engine.weights import LoadedModel
from baton.wire.link_client import Inbox, LinkDied, WorkerLink
from baton.wire.servers import WorkerServer
from baton.wire.types import (
    DecodeTarget,
    End,
    Event,
    Fence,
    Finished,
    HandedOff,
    LeaseId,
    Position,
    RequestSpec,
    Reserved,
    Role,
    SamplingParams,
    StartDecode,
    StartPrefill,
    Timeouts,
    Token,
    Tokens,
)

TOKEN = "a cluster token"
LIMIT_S = 60.0
TIMEOUTS = Timeouts(connect_s=10.0, heartbeat_s=0.2, heartbeat_misses=100, transfer_stall_s=20.0)
BLOCK_SIZE = 16


def spec(
    prompt_len: int, max_tokens: int = 12, choices: tuple[int, ...] = (0,), first_id: int = 40, temperature: float = 0.0
) -> RequestSpec:
    """A request over printable ids that never ends early; different `first_id`s share no prefix."""
    ids = tuple(33 + (first_id * 7 + 11 * i) % 90 for i in range(prompt_len))
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, ignore_eos=True, eos_ids=(257, 258), seed=7)
    return RequestSpec(ids, params, choices)


@dataclass
class Node:
    """A worker as its router sees it."""

    link: WorkerLink
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def target(self) -> DecodeTarget:
        assert self.link.info is not None
        return DecodeTarget(self.link.address, self.link.info.incarnation)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def idle(self) -> None:
        """Returns when the worker reports its baseline: nothing running, no block held, no lease."""
        await self.until(lambda: self._at_baseline())

    def _at_baseline(self) -> bool:
        load = self.link.load
        return load.kv_blocks_total > 0 and not (load.num_running or load.num_waiting or load.kv_blocks_used or load.num_leases)


@asynccontextmanager
async def node(
    model: LoadedModel,
    role: Role,
    hooks: Hooks | None = None,
    *,
    kv_blocks: int = 64,
    growth_reserve: int = 16,
    kv_transport: str = "auto",
) -> AsyncIterator[Node]:
    """A worker over `model`, linked; its baseline is checked at the end."""
    config = WorkerConfig(
        role=role,
        cluster_token=TOKEN,
        kv_blocks=kv_blocks,
        growth_reserve=growth_reserve,
        kv_transport=kv_transport,
        block_size=BLOCK_SIZE,
        max_num_seqs=8,
        threads=1,
        timeouts=TIMEOUTS,
    )
    server = WorkerServer(config.host, 0, config.cluster_token)
    async with build(config, hooks or Hooks(), model, server), linked(server.address) as worker:
        yield worker
        await worker.idle()


@asynccontextmanager
async def linked(address: str) -> AsyncIterator[Node]:
    """A router's link to the worker at `address`, up."""
    changed = asyncio.Event()
    link = WorkerLink(address, os.urandom(16), TOKEN, TIMEOUTS, lambda _: changed.set())
    running = asyncio.create_task(link.run())
    worker = Node(link, changed)
    try:
        await worker.until(lambda: link.up)
        yield worker
    finally:
        running.cancel()
        await asyncio.wait([running])


class Script:
    """One request's router, step by step. Keeps what it accepted, as the real one does."""

    def __init__(self, request: RequestSpec) -> None:
        self.request = request
        self.lease: LeaseId = os.urandom(16)
        self.epoch = 1
        self.tokens: dict[int, dict[int, Token]] = {choice: {} for choice in request.choices}
        self.finished: dict[int, Finished] = {}
        self.seen: list[Event | LinkDied] = []
        self.inbox = Inbox(self._positions)
        self._nodes: list[Node] = []

    def _positions(self) -> tuple[Position, ...]:
        return tuple(Position(self.lease, self.epoch, choice, len(taken)) for choice, taken in self.tokens.items())

    async def get(self) -> Event | LinkDied:
        async with asyncio.timeout(LIMIT_S):
            _, event = await self.inbox.get()
        self.seen.append(event)
        if isinstance(event, Tokens):
            for offset, token in enumerate(event.tokens):
                known = self.tokens[event.choice].setdefault(event.index + offset, token)
                assert known == token, "two tokens for one place"
        if isinstance(event, Finished):
            self.finished[event.choice] = event
        return event

    async def until(self, kind: type | tuple[type, ...]) -> Event | LinkDied:
        """The next event of `kind`; what comes before is taken in."""
        while not isinstance(event := await self.get(), kind):
            pass
        return event

    def attach(self, worker: Node) -> None:
        worker.link.attach(self.lease, self.inbox)
        self._nodes.append(worker)

    async def reserve(self, decode: Node) -> Event | LinkDied:
        self.attach(decode)
        decode.link.send(StartDecode(self.lease, self.epoch, self.request))
        return await self.get()

    def prefill(self, prefill: Node, decode: Node | None, num_cached: int = 0) -> None:
        if prefill is not decode:
            self.attach(prefill)
        target = decode.target if decode is not None else None
        prefill.link.send(StartPrefill(self.lease, self.epoch, self.request, num_cached, target))

    async def fence(self, decode: Node) -> Event | LinkDied:
        """Raises the epoch with what was accepted; the answer."""
        output_ids = tuple(self.ids(self.request.choices[0]))
        self.epoch += 1
        decode.link.send(Fence(self.lease, self.epoch, output_ids))
        self.request = replace(self.request, output_ids=output_ids)
        return await self.get()

    async def run(self, prefill: Node, decode: Node) -> dict[int, list[int]]:
        """An undisturbed request, from reservation to end; the ids by choice."""
        reserved = await self.reserve(decode)
        assert isinstance(reserved, Reserved), reserved
        self.prefill(prefill, decode, reserved.num_cached)
        await self.finish()
        return {choice: self.ids(choice) for choice in self.request.choices}

    async def finish(self) -> None:
        """Takes events until prefill is done and every choice has ended with all its tokens; then ends the lease."""
        while not (self._is_handed_off() and all(map(self._is_whole, self.request.choices))):
            event = await self.get()
            assert not isinstance(event, LinkDied), event
        self.end()

    def _is_whole(self, choice: int) -> bool:
        return choice in self.finished and self.finished[choice].num_tokens == max(self.tokens[choice], default=-1) + 1

    def _is_handed_off(self) -> bool:
        return any(isinstance(event, HandedOff) for event in self.seen)

    def end(self) -> None:
        for worker in self._nodes:
            worker.link.send(End(self.lease))

    def ids(self, choice: int = 0) -> list[int]:
        return [self.tokens[choice][index].id for index in sorted(self.tokens[choice])]


async def alone(model: LoadedModel, requests: Sequence[RequestSpec]) -> list[dict[int, list[int]]]:
    """What one engine answers by itself, each request in a fresh engine."""
    return [await _alone(model, request) for request in requests]


async def _alone(model: LoadedModel, request: RequestSpec) -> dict[int, list[int]]:
    config = EngineConfig(num_blocks=64, block_size=BLOCK_SIZE, num_threads=1)
    engine = EngineLoop(EngineCore(model.model, model.identity, config), model.card, model.identity)
    ids: dict[int, list[int]] = {choice: [] for choice in request.choices}
    going = set(request.choices)
    done = asyncio.Event()

    def take(events: Sequence[EngineEvent]) -> None:
        for event in events:
            if isinstance(event, Sampled):
                ids[event.choice].append(event.token.id)
                if event.finish is not None:
                    going.discard(event.choice)
        if not going:
            done.set()

    await engine.start(take)
    try:
        reservation = await engine.generate(request)
        async with asyncio.timeout(LIMIT_S):
            await done.wait()
        await engine.release(reservation.handle)
    finally:
        await engine.stop()
    return ids
