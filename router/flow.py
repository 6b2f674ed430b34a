"""The life of one request: placed, reserved, prefilled, its tokens accepted, recovered if need be, and always ended.

What comes next is decided by kvtransfer.protocol.coordinator; here it is done, with links, clocks, claims and output.
"""

from __future__ import annotations

import asyncio

from baton.wire.errors import BatonError
from baton.wire.link_client import Inbox, LinkDied
from baton.wire.types import (
    Command,
    End,
    Event,
    Failed,
    Fence,
    HandedOff,
    LoadReport,
    StartDecode,
    StartPrefill,
    Tokens,
)
from kvtransfer.protocol.actions import Accept, Action, Done, Fail, Place, PlaceKind, Propose, Replay, Requeue, Send, Split
from kvtransfer.protocol.coordinator import Coordinator
from router.fit import GROWTH_RESERVE
from router.holdings import Holdings
from router.placer import Ask, Placement
from router.plant import Life, Plant
from router.recovery import REST_S, UNREACHABLE, error_of, handoff_failed, recovery_kind
from router.timeline import Phase
from router.workers import Link, Worker


class Flow:
    """The hands of one coordinator: of a whole request, or of one choice that was split from it."""

    def __init__(self, plant: Plant, life: Life, machine: Coordinator) -> None:
        self._plant, self._life, self._machine = plant, life, machine
        self._inbox = Inbox(lambda: machine.positions)
        self._holdings = Holdings(self._inbox)
        self._wanted: Place | None = None
        self._reserve_by = 0.0
        self._started_at = 0.0
        self._unreachable = False
        self._asked_with = LoadReport()
        self._error: BatonError | None = None

    async def run(self) -> None:
        """Returns when every choice of the machine has ended; raises the BatonError that ended it.

        A client that leaves, or a deadline, cancels it. Whichever way it ends, every worker that was started is told, and
        nothing stays attached or claimed.
        """
        try:
            self._perform(self._machine.begin())
            while not self._machine.finished:
                self._perform(await self._next())
                self._hear_the_rest()
                self._life.output.flush()
        finally:
            self._perform(self._machine.cancel())
            self._holdings.let_go()
            self._plant.pool.let_go()
        if self._error is not None:
            raise self._error

    # --- what happens next -----------------------------------------------------------------------------------------

    async def _next(self) -> list[Action]:
        """Waits for the one thing that can happen: workers are found, decode reserves in time, or somebody says something."""
        if self._wanted is not None:
            return await self._find_workers(self._wanted)
        if self._machine.reserving:
            return await self._reserve()
        return self._hear(*await self._inbox.get())

    async def _find_workers(self, wanted: Place) -> list[Action]:
        ask = self._ask(wanted)
        if self._plant.placer.cut_off(ask):
            self._unreachable = False
            return self._machine.move()
        with self._plant.admission.wait(self._life.ticket, ask) as waiter:
            if wanted.kind is PlaceKind.PREFILL:  # decode holds the lease and may die: then other workers are needed
                heard = await self._hear_before(waiter.placed)
                if heard is not None:
                    return self._hear(*heard)
            else:
                await waiter.placed
            return self._placed(waiter.take())

    async def _hear_before(self, placed: asyncio.Future[Placement]) -> tuple[Link, Event | LinkDied] | None:
        hearing = asyncio.ensure_future(self._inbox.get())
        try:
            await asyncio.wait((hearing, placed), return_when=asyncio.FIRST_COMPLETED)
            return hearing.result() if hearing.done() else None
        finally:
            hearing.cancel()

    def _placed(self, found: Placement) -> list[Action]:
        self._wanted = None
        self._holdings.claim(found)
        return self._machine.placed(found.lease, found.prefill.worker.address, found.target, self._life.remaining_s)

    async def _reserve(self) -> list[Action]:
        try:
            async with asyncio.timeout_at(self._reserve_by):
                heard = await self._inbox.get()
        except TimeoutError:
            self._recover("reserve_timeout")
            return self._machine.reserve_timeout()
        return self._hear(*heard)

    def _hear_the_rest(self) -> None:
        """Takes all that came with the same step: it leaves for the client together."""
        while (heard := self._inbox.get_nowait()) is not None:
            self._perform(self._hear(*heard))

    def _hear(self, source: Link, event: Event | LinkDied) -> list[Action]:
        prefill, decode = self._machine.prefill, self._machine.decode
        if source.address == prefill:
            self._note(event)
        if isinstance(event, LinkDied):
            self._holdings.lose(self._plant.pool.worker(source.address))
            actions = self._machine.lost(source.address, event.lease)
        else:
            actions = self._machine.event(source.address, event)
        if not actions or isinstance(actions[0], Accept):  # no list holds both a token and a decision
            return actions
        if handoff_failed(event, actions):
            self._plant.metrics.transfer_failed()
        kind = recovery_kind(event, source.address == decode, actions)
        if kind is not None:
            self._recover(kind)
            self._unreachable = isinstance(event, Failed) and event.reason in UNREACHABLE
        if self._unreachable and kind is not None and prefill and decode:
            self._plant.placer.shun((prefill, decode))
        return actions

    def _note(self, event: Event | LinkDied) -> None:
        """What prefill measured goes into the timeline; its place is free for another as soon as it has sampled or failed."""
        timeline = self._life.output.timeline
        if isinstance(event, Tokens) and event.spans is not None and timeline.first_token_s is None:
            timeline.prefilled(event.spans)
        if isinstance(event, HandedOff) and event.spans is not None:
            timeline.handed_off(event.spans)
            self._plant.metrics.transferred(event.spans)
        if isinstance(event, Tokens | HandedOff | Failed | LinkDied):
            self._holdings.release_prefill()

    def _recover(self, kind: str) -> None:
        self._life.output.timeline.recover(kind)
        self._plant.metrics.recovered(kind)

    # --- what is done about it -------------------------------------------------------------------------------------

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Accept(choice, index, token):
                if self._life.output.accept(choice, index, token):
                    self._perform(self._machine.choice_done(choice, index + 1))
            case Place(PlaceKind.PREFILL):  # decode holds the lease: its claim stays
                self._wanted = action
                self._holdings.release_prefill()
            case Place():
                self._wanted = action
                self._holdings.release()
            case Requeue(_, address):
                self._plant.pool.worker(address).refuse(self._asked_with)
                self._life.output.timeline.enter(Phase.QUEUE)
            case Send(address, command):
                self._send(self._plant.pool.worker(address), command)
            case Propose(choice, reason):
                if self._life.output.propose(choice, reason):
                    self._perform(self._machine.choice_done(choice, self._life.output.num_tokens(choice)))
            case Replay(address, event):
                self._perform(self._machine.event(address, event))
            case Split(specs, attempt, exclude):
                for spec in specs:
                    machine = Coordinator(spec, attempt=attempt, exclude=exclude)
                    self._life.spawn(Flow(self._plant, self._life, machine).run())
            case Fail():
                self._error = error_of(action)
            case Done():
                pass

    def _send(self, worker: Worker, command: Command) -> None:
        timeline = self._life.output.timeline
        match command:
            case StartDecode(lease):
                self._holdings.attach(worker, lease)
                self._reserve_by = asyncio.get_running_loop().time() + self._plant.reserve_s
                self._asked_with = worker.link.load
                timeline.enter(Phase.RESERVE)
            case StartPrefill(lease):
                self._holdings.attach(worker, lease)
                self._started_at = asyncio.get_running_loop().time()
                self._life.ticket.admitted = True
                timeline.enter(Phase.PREFILL)
            case Fence():
                self._holdings.release_prefill()
        worker.link.send(command)
        if isinstance(command, End):
            self._holdings.detach(worker, command.lease)

    def _ask(self, wanted: Place) -> Ask:
        spec = self._machine.spec
        growth = min(spec.params.max_tokens - len(spec.output_ids), GROWTH_RESERVE)
        holds = wanted.kind is PlaceKind.PREFILL
        return Ask(
            model=self._life.model,
            kind=wanted.kind,
            num_tokens=spec.total_len,
            growth_tokens=growth * len(spec.choices),
            keys=self._life.keys,
            exclude=wanted.exclude,
            lease=self._machine.lease if holds else None,
            decode=self._machine.decode if holds else None,
            rest_s=self._rest_s(),
        )

    def _rest_s(self) -> float:
        """How long to leave a pair alone that could not reach each other: an attempt that took long has rested already."""
        if not self._unreachable:
            return 0.0
        rest_s = REST_S[min(self._machine.attempt, len(REST_S)) - 1]
        return max(0.0, self._started_at + rest_s - asyncio.get_running_loop().time())
