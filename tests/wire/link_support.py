"""A worker without an engine, its router's link, and a relay between them that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterable

from baton.wire.link_client import Inbox, LinkDied, WorkerLink
from baton.wire.link_server import LinkServer
from baton.wire.records import LeaseRecord
from baton.wire.servers import WorkerServer
from baton.wire.types import (
    Capabilities,
    Event,
    Fence,
    Fenced,
    Identity,
    KvLayout,
    LeaseId,
    LoadReport,
    ModelCard,
    Position,
    RequestSpec,
    Reserved,
    Role,
    SamplingParams,
    StartDecode,
    StartPrefill,
    Timeouts,
    Tokens,
    WorkerInfo,
)

TOKEN = "a token"
TIMEOUTS = Timeouts(connect_s=5.0, heartbeat_s=0.2, heartbeat_misses=25, router_grace_s=10.0, worker_grace_s=10.0)
LIMIT_S = 20.0


def worker_info(incarnation: bytes = b"w" * 16) -> WorkerInfo:
    identity = Identity("llama", "digest", "none", "f32", "rope", "tok", "tpl", 128)
    card = ModelCard("tiny", "{}", None, None, "</s>", (1,), (0, 1), False, 256, 128)
    return WorkerInfo(incarnation, Role.BOTH, identity, Capabilities(KvLayout(2, 16, 2, 8, "float32")), card, 1024, 8)


def request() -> RequestSpec:
    return RequestSpec((1, 2, 3), SamplingParams(max_tokens=8))


class FakeDecode:
    """Reserves everything at once; the test writes the tokens through `records`."""

    def __init__(self) -> None:
        self.records: dict[LeaseId, LeaseRecord] = {}
        self.starts: list[tuple[LeaseId, int]] = []
        self.finished: list[tuple[LeaseId, int]] = []
        self.ended = asyncio.Queue[LeaseId]()

    def start(self, record: LeaseRecord, command: StartDecode | StartPrefill) -> None:
        self.starts.append((command.lease, command.epoch))
        self.records[command.lease] = record
        record.answer(Reserved(command.lease, command.epoch, 0))

    def fence(self, record: LeaseRecord, command: Fence) -> None:
        record.restart(command.epoch)
        record.answer(Fenced(command.lease, command.epoch, 0))

    def finish(self, lease: LeaseId, choices: Iterable[int]) -> None:
        self.finished += [(lease, choice) for choice in choices]

    def end(self, lease: LeaseId) -> None:
        self.ended.put_nowait(lease)


class Relay:
    """A TCP relay to `target`; `cut` resets what runs through it, `hold` keeps new connections waiting."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._pipes: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()
        self.waiting = asyncio.Event()  # a connection came while held
        self.address = ""

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    def aim(self, target: str) -> None:
        self._target = target

    def cut(self) -> None:
        for pipe in self._pipes:
            pipe.cancel()

    def hold(self) -> None:
        self._open.clear()
        self.waiting.clear()
        self.cut()

    def let_go(self) -> None:
        self._open.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pipes.add(task)
        with contextlib.suppress(asyncio.CancelledError, OSError):
            if not self._open.is_set():
                self.waiting.set()
            await self._open.wait()
            host, port = self._target.split(":")
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_pump(reader, far_writer))
                    both.create_task(_pump(far_reader, writer))
            except* OSError:
                pass
            finally:
                far_writer.transport.abort()
        writer.transport.abort()
        self._pipes.discard(task)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError


class Worker:
    """A link server over a fake decode role, listening."""

    def __init__(self, timeouts: Timeouts = TIMEOUTS, incarnation: bytes = b"w" * 16, token: str = TOKEN) -> None:
        self.role = FakeDecode()
        self.load = LoadReport(kv_blocks_total=4)
        self.links = LinkServer(worker_info(incarnation), None, self.role, lambda: self.load, timeouts)
        self.server = WorkerServer("127.0.0.1", 0, token)

    async def __aenter__(self) -> Worker:
        await self.server.start(self.links)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.links.stop()
        await self.server.stop()


class Router:
    """A link and an inbox that keeps its positions as a flow does."""

    def __init__(self, address: str, timeouts: Timeouts = TIMEOUTS, token: str = TOKEN) -> None:
        self.live: dict[tuple[LeaseId, int], Position] = {}
        self.inbox = Inbox(lambda: tuple(self.live.values()))
        self.changed = asyncio.Event()
        self.link = WorkerLink(address, os.urandom(16), token, timeouts, lambda _: self.changed.set())

    async def __aenter__(self) -> Router:
        self._task = asyncio.create_task(self.link.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def up(self) -> None:
        await self.until(lambda: self.link.up)

    def start(self, lease: LeaseId, choices: tuple[int, ...] = (0,), epoch: int = 1) -> None:
        for choice in choices:
            self.live[lease, choice] = Position(lease, epoch, choice, 0)
        self.link.attach(lease, self.inbox)
        self.link.send(StartDecode(lease, epoch, request()))

    async def get(self) -> Event | LinkDied:
        async with asyncio.timeout(LIMIT_S):
            _, event = await self.inbox.get()
        if isinstance(event, Tokens):
            self.live[event.lease, event.choice] = Position(
                event.lease, event.epoch, event.choice, event.index + len(event.tokens)
            )
        return event

    async def ids(self, count: int) -> list[int]:
        """The next `count` token ids of choice 0, over any resumptions; fails if one is skipped or repeated."""
        found: list[int] = []
        while len(found) < count:
            event = await self.get()
            if isinstance(event, Reserved):
                continue  # told again by a resumption
            assert isinstance(event, Tokens), event
            assert event.choice == 0
            found += [token.id for token in event.tokens]
        return found


@contextlib.asynccontextmanager
async def linked(timeouts: Timeouts = TIMEOUTS) -> AsyncIterator[tuple[Worker, Relay, Router]]:
    """A router's link through a relay to a worker, up."""
    async with (
        Worker(timeouts) as worker,
        Relay(worker.server.address) as relay,
        Router(relay.address, timeouts) as router,
    ):
        await router.up()
        yield worker, relay, router
