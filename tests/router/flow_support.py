"""A router's core over links that a test plays by hand: commands come out, events go in, nothing has a clock of its own."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from baton.cluster.config import RouterConfig
from baton.cluster.registry import MemoryRegistry
from baton.wire.link_client import Inbox, LinkDied
from baton.wire.types import (
    Capabilities,
    Command,
    End,
    Endpoint,
    Event,
    Fence,
    Fenced,
    FinishReason,
    HandedOff,
    Identity,
    KvLayout,
    LeaseId,
    LoadReport,
    ModelCard,
    Reserved,
    Role,
    SamplingParams,
    Spans,
    StartDecode,
    StartPrefill,
    Timeouts,
    Token,
    Tokens,
    WorkerInfo,
)
from router.request import GenerateRequest, Piece, TokenText
from router.service import RouterService

PATIENCE_S = 20.0
"""How long a test waits for what must come: generous, never reached."""

IDENTITY = Identity("llama", "w0", "none", "f32", "plain", "t0", "c0", 4096)
LAYOUT = KvLayout(2, 16, 2, 8, "float32")
CARD = ModelCard("tiny", "{}", None, None, None, (0,), (), False, 256, 4096)


def worker_info(role: Role, life: int = 1, **changes: object) -> WorkerInfo:
    fields = {
        "incarnation": bytes([life]) * 16,
        "role": role,
        "identity": IDENTITY,
        "capabilities": Capabilities(LAYOUT),
        "card": CARD,
        "capacity_tokens": 2048,
        "max_num_seqs": 8,
    }
    return WorkerInfo(**(fields | changes))


class FakeLink:
    """Same face as WorkerLink. `sent` holds commands that no test has taken yet."""

    def __init__(self, address: str, info: WorkerInfo, on_change) -> None:
        self.address = address
        self.info: WorkerInfo | None = None
        self.load = LoadReport(kv_blocks_total=128)
        self.up = False
        self.error: str | None = None
        self.running = False
        self.inboxes: dict[LeaseId, Inbox] = {}
        self.ended: list[LeaseId] = []
        self.sent: asyncio.Queue[Command] = asyncio.Queue()
        self._info = info
        self._on_change = on_change

    async def run(self) -> None:
        self.running = True
        self.come()
        try:
            await asyncio.Event().wait()
        finally:
            self.running = False

    def attach(self, lease: LeaseId, inbox: Inbox) -> None:
        if self.up:
            self.inboxes[lease] = inbox
        else:
            inbox.put(self, LinkDied(lease, "the link is down"))

    def detach(self, lease: LeaseId) -> None:
        self.inboxes.pop(lease, None)

    def send(self, command: Command) -> None:
        if isinstance(command, End):
            self.detach(command.lease)
        if not self.up:
            return
        if isinstance(command, End):
            self.ended.append(command.lease)
        self.sent.put_nowait(command)
        self.answer(command)

    def answer(self, command: Command) -> None:
        """What a scripted worker says at once; a hand-played one says nothing."""

    # --- the test's hands ------------------------------------------------------------------------------------------

    def come(self, life: int | None = None) -> None:
        if life is not None:
            self._info = dataclasses.replace(self._info, incarnation=bytes([life]) * 16)
        self.info, self.up = self._info, True
        self._on_change(self)

    def die(self) -> None:
        self.up, self.load = False, LoadReport()
        for lease, inbox in self.inboxes.items():
            inbox.put(self, LinkDied(lease, "the link broke"))
        self.inboxes.clear()
        self._on_change(self)

    def report(self, **changes: object) -> None:
        self.load = dataclasses.replace(self.load, **changes)
        self._on_change(self)

    def say(self, *events: Event) -> None:
        for event in events:
            if event.lease in self.inboxes:
                self.inboxes[event.lease].put(self, event)

    async def told(self, kind: type[Command]) -> Command:
        """The next command, which must be of `kind`."""
        async with asyncio.timeout(PATIENCE_S):
            command = await self.sent.get()
        assert isinstance(command, kind), f"{self.address} was told {command}, not {kind.__name__}"
        return command


class ScriptedLink(FakeLink):
    """Serves by itself: token `i` of a choice has id 100 + i."""

    def answer(self, command: Command) -> None:
        loop = asyncio.get_running_loop()
        match command:
            case StartDecode(lease, epoch, spec):
                loop.call_soon(self.say, Reserved(lease, epoch, 0))
                self.specs[lease] = spec
            case StartPrefill(lease, epoch, spec):
                loop.call_soon(self.prefill, lease, epoch, spec, command.decode)
            case Fence(lease, epoch):
                loop.call_soon(self.say, Fenced(lease, epoch, 0))

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.specs = {}
        self.peers: dict[str, ScriptedLink] = {}

    def prefill(self, lease, epoch, spec, decode) -> None:
        index = len(spec.output_ids)
        self.say(*(Tokens(lease, epoch, choice, index, tokens_of(index, 1), Spans(0.0, 0.0)) for choice in spec.choices))
        self.say(HandedOff(lease, epoch, Spans(transfer_bytes=64)))
        if decode is not None:
            asyncio.get_running_loop().call_soon(self.peers[decode.address].decode, lease, epoch, spec, index)

    def decode(self, lease, epoch, spec, index) -> None:
        left = spec.params.max_tokens - index
        self.say(*(Tokens(lease, epoch, choice, index, tokens_of(index, left)) for choice in spec.choices))


def tokens_of(index: int, count: int) -> tuple[Token, ...]:
    return tuple(Token(100 + at) for at in range(index, index + count))


class Letters:
    """A TextMaker: token 100 + i is the i-th letter; ends at max_tokens, or at the letter `stop`."""

    def __init__(self, max_tokens: int, stop: str = "") -> None:
        self._left = max_tokens
        self._stop = stop

    def push(self, token: Token) -> Piece:
        self._left -= 1
        letter = chr(ord("a") + token.id - 100)
        shown = (TokenText(token.id, letter, letter.encode()),)
        if letter == self._stop:
            return Piece("", shown, FinishReason.STOP)
        return Piece(letter, shown, FinishReason.LENGTH if self._left == 0 else None)


class Cluster:
    """A service over fake links, by name: p0, p1, ... prefill, d0, d1, ... decode."""

    def __init__(self, service: RouterService, links: dict[str, FakeLink]) -> None:
        self.service = service
        self.links = links
        self.__dict__.update(links)

    def request(self, max_tokens: int = 4, *, stop: str = "", prompt_len: int = 3, **changes: object):
        params = SamplingParams(max_tokens=max_tokens)
        fields = {"request_id": "r", "model": "tiny", "prompt_ids": tuple(range(prompt_len)), "params": params}
        request = GenerateRequest(**(fields | changes))
        return self.service.generate(request, lambda choice: Letters(max_tokens, stop))

    def sample(self, name: str, **labels: str) -> float:
        return self.service._metrics.registry.get_sample_value(name, labels) or 0.0

    async def collect(self, **kwargs) -> Answer:
        answer = Answer()
        async with asyncio.timeout(PATIENCE_S), self.request(**kwargs) as generation:
            await answer.read(generation)
        return answer

    def assert_idle(self) -> None:
        """Nothing is left of any request."""
        for link in self.links.values():
            assert not link.inboxes, f"{link.address} still has inboxes"
        for worker in self.service._pool.workers():
            assert worker.idle, f"{worker} is still busy"
        assert self.service._admission.num_waiting == self.service._admission.num_running == 0
        assert not self.service._admission._waiters
        left = [task for task in asyncio.all_tasks() if task.get_name().startswith("request")]
        assert not left


class Answer:
    """What a reader got."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self.ids: dict[int, list[int]] = {}
        self.finish: dict[int, FinishReason] = {}
        self.usage = None
        self.timeline = None

    async def read(self, generation) -> None:
        async for pieces in generation:
            for choice, piece in pieces:
                self.texts[choice] = self.texts.get(choice, "") + piece.text
                self.ids.setdefault(choice, []).extend(token.id for token in piece.tokens)
                if piece.finish is not None:
                    self.finish[choice] = piece.finish
        self.usage, self.timeline = generation.usage, generation.timeline

    @property
    def text(self) -> str:
        return self.texts.get(0, "")


@asynccontextmanager
async def cluster(
    prefill: int = 1,
    decode: int = 1,
    kind: type[FakeLink] = FakeLink,
    infos: dict[str, WorkerInfo] | None = None,
    **config: object,
) -> AsyncIterator[Cluster]:
    names = {f"p{i}": worker_info(Role.PREFILL) for i in range(prefill)}
    names |= {f"d{i}": worker_info(Role.DECODE) for i in range(decode)}
    names |= infos or {}
    links: dict[str, FakeLink] = {}

    def dial(address: str, on_change) -> FakeLink:
        links[address] = kind(address, names[address], on_change)
        return links[address]

    timeouts = Timeouts(**{"reserve_s": PATIENCE_S, **config.pop("timeouts", {})})
    service = RouterService(RouterConfig(timeouts=timeouts, **config), dial)
    registry = MemoryRegistry(Endpoint(name, info.role) for name, info in names.items())
    running = asyncio.create_task(service.run(registry))
    await settle()  # the links come up
    for link in links.values():
        link.peers = links
    shape = Cluster(service, links)
    shape.registry = registry
    try:
        yield shape
        shape.assert_idle()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def settle() -> None:
    """Lets everything that is ready run."""
    for _ in range(20):
        await asyncio.sleep(0)
