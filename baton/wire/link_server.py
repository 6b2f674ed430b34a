"""The worker's end of links: takes routers' commands to the role services, and their records back.

A link outlives its streams: after a break it waits `worker_grace_s` for its router, then everything it started is ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import grpc
import grpc.aio

from baton.wire import convert
from baton.wire.pb import worker_pb2 as pb
from baton.wire.records import LeaseRecord, Side
from baton.wire.router_link import RouterLink
from baton.wire.types import (
    MIN_PROTOCOL_VERSION,
    PROTOCOL_VERSION,
    Command,
    End,
    Failed,
    Fence,
    Finish,
    Gone,
    LeaseId,
    LoadReport,
    Refused,
    RouterHello,
    StartDecode,
    StartPrefill,
    Timeouts,
    WorkerHello,
    WorkerInfo,
)

_Context = grpc.aio.ServicerContext[pb.LinkUp, pb.LinkDown]


class PrefillRole(Protocol):
    """The prefill half of a worker. No method blocks; what it has to say goes into the record."""

    def start(self, record: LeaseRecord, command: StartPrefill) -> None:
        """Begins attempt `command.epoch`, which is new to the record; a lower one of the lease ends."""
        ...

    def end(self, lease: LeaseId) -> None:
        """Stops the lease's work and frees its blocks. Unknown leases are none."""
        ...


class DecodeRole(Protocol):
    """The decode half of a worker. No method blocks; what it has to say goes into the record."""

    def start(self, record: LeaseRecord, command: StartDecode) -> None:
        """Begins attempt `command.epoch`, which is new to the record; a lower one of the lease ends."""
        ...

    def fence(self, record: LeaseRecord, command: Fence) -> None:
        """Moves the lease to `command.epoch` unless it is committed; answers Fenced, Committed or Gone."""
        ...

    def finish(self, lease: LeaseId, choices: Iterable[int]) -> None:
        """Stops these choices and frees their blocks."""
        ...

    def end(self, lease: LeaseId) -> None:
        """Stops the lease's work and frees its blocks. Unknown leases are none."""
        ...


class LinkServer:
    """The Worker service. Several routers may be linked at once, each with its own leases.

    `load` is read while links are served. While `draining` every start is refused.
    """

    def __init__(
        self,
        info: WorkerInfo,
        prefill: PrefillRole | None,
        decode: DecodeRole | None,
        load: Callable[[], LoadReport],
        timeouts: Timeouts,
    ) -> None:
        self.draining = False
        self._info = info
        self._prefill = prefill
        self._decode = decode
        self._load = load
        self._timeouts = timeouts
        self._links: dict[bytes, RouterLink] = {}
        self._all_ended = asyncio.Event()
        self._all_ended.set()

    @property
    def num_leases(self) -> int:
        return sum(len(link.leases) for link in self._links.values())

    async def drained(self) -> None:
        """Returns once no lease has a record here."""
        await self._all_ended.wait()

    async def stop(self) -> None:
        """Ends every link with all its leases."""
        for link in list(self._links.values()):
            self._end_link(link)
            await link.claim()

    async def Link(self, _requests: Any, context: _Context) -> None:
        """One stream of one router: hello, then commands up and records down until it breaks."""
        hello = await self._greeting(context)
        link, resumed = await self._open(hello)
        try:
            lacking = link.reconcile(hello.live, self._end_lease, self._finish)
            await context.write(convert.pack_worker_hello(WorkerHello(self._info, resumed, lacking)))
            await link.carry(self._read(link, context), context.write)
        finally:
            link.release()
            if self._links.get(link.link_id) is link:
                link.expire_in(self._timeouts.worker_grace_s, self._end_link)

    # --- opening and ending --------------------------------------------------------------------------------------

    async def _greeting(self, context: _Context) -> RouterHello:
        try:
            async with asyncio.timeout(self._timeouts.connect_s):
                message = await context.read()
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no hello")
        if not isinstance(message, pb.LinkUp) or not message.HasField("hello"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message of a link must be a hello")
        theirs = message.hello
        if theirs.min_protocol > PROTOCOL_VERSION or theirs.protocol < MIN_PROTOCOL_VERSION:
            ours = f"{MIN_PROTOCOL_VERSION} to {PROTOCOL_VERSION}"
            refusal = f"protocol: worker speaks {ours}, router {theirs.min_protocol} to {theirs.protocol}"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal)
        return convert.unpack_router_hello(message)

    async def _open(self, hello: RouterHello) -> tuple[RouterLink, bool]:
        """The named link, free of its old stream; a new one ends everything that its router had under an old id."""
        link = self._links.get(hello.link_id)
        if link is not None:
            await link.claim()
            if self._links.get(hello.link_id) is link:
                return link, True
        for old in [old for old in self._links.values() if old.router == hello.incarnation]:
            self._end_link(old)
            await old.claim()
        link = self._links[hello.link_id] = RouterLink(hello, self._load, self._timeouts)
        await link.claim()
        return link, False

    def _end_link(self, link: RouterLink) -> None:
        self._links.pop(link.link_id, None)
        for lease in link.leases:
            self._end_lease(link, lease)

    def _end_lease(self, link: RouterLink, lease: LeaseId) -> None:
        for side in link.drop(lease):
            role = self._prefill if side is Side.PREFILL else self._decode
            if role is not None:
                role.end(lease)
        if not self.num_leases:
            self._all_ended.set()

    # --- commands ------------------------------------------------------------------------------------------------

    async def _read(self, link: RouterLink, context: _Context) -> None:
        """Until the router closes the stream or is silent for too long."""
        silence_s = self._timeouts.heartbeat_s * self._timeouts.heartbeat_misses
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(silence_s) as deadline:
            while isinstance(message := await context.read(), pb.LinkUp):
                deadline.reschedule(loop.time() + silence_s)
                for command in convert.unpack_up(message).commands:
                    self._obey(link, command)
                    link.publisher.look()

    def _obey(self, link: RouterLink, command: Command) -> None:
        match command:
            case StartDecode():
                self._start_decode(self._record(link, command.lease, Side.DECODE), command)
            case StartPrefill():
                self._start_prefill(self._record(link, command.lease, Side.PREFILL), command)
            case Fence():
                self._fence(self._record(link, command.lease, Side.DECODE), command)
            case Finish(lease, choice):
                self._finish(lease, (choice,))
            case End(lease):
                self._end_lease(link, lease)

    def _record(self, link: RouterLink, lease: LeaseId, side: Side) -> LeaseRecord:
        self._all_ended.clear()
        return link.record(lease, side)

    def _start_decode(self, record: LeaseRecord, command: StartDecode) -> None:
        if command.epoch <= record.epoch:
            return  # sent again after a break: its answer stands in the record
        record.restart(command.epoch)
        if self.draining or self._decode is None:
            reason = "draining" if self._decode is not None else "role"
            record.answer(Refused(command.lease, command.epoch, reason))
        else:
            self._decode.start(record, command)

    def _start_prefill(self, record: LeaseRecord, command: StartPrefill) -> None:
        if command.epoch <= record.epoch:
            return
        record.restart(command.epoch)
        if self.draining or self._prefill is None:
            reason = "draining" if self._prefill is not None else "role"
            record.answer(Failed(command.lease, command.epoch, reason))
        else:
            self._prefill.start(record, command)

    def _fence(self, record: LeaseRecord, command: Fence) -> None:
        if self._decode is None:
            record.answer(Gone(command.lease, command.epoch))
        elif command.epoch > record.epoch:
            self._decode.fence(record, command)

    def _finish(self, lease: LeaseId, choices: Iterable[int]) -> None:
        if self._decode is not None:
            self._decode.finish(lease, choices)
