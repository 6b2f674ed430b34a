"""The router's end of a link: one worker, dialled for ever, resumed after short breaks, declared dead after long ones.

link id A  ──stream──x  grace: redial, resume  ──stream──x  grace over: LinkDied to every inbox, link id B ──stream── ...
                                                            or sooner, when nothing listens there or another life answers
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from baton.wire.errors import BatonError
from baton.wire.link_stream import LinkBroken, NobodyListens, Stream
from baton.wire.types import (
    Command,
    Committed,
    Down,
    End,
    Event,
    Failed,
    Fence,
    Fenced,
    Finish,
    Gone,
    HandedOff,
    Incarnation,
    LeaseId,
    LoadReport,
    Position,
    Refused,
    Reserved,
    RouterHello,
    StartDecode,
    StartPrefill,
    Timeouts,
    Tokens,
    WorkerInfo,
)

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.05
MAX_BACKOFF_S = 1.0

_Retained = StartDecode | StartPrefill | Fence

_ANSWERS: dict[type[_Retained], tuple[type[Event], ...]] = {
    StartDecode: (Reserved, Refused, Failed),
    StartPrefill: (Tokens, HandedOff, Failed),
    Fence: (Fenced, Committed, Gone),
}


@dataclass(frozen=True, slots=True)
class LinkDied:
    """The worker is lost to `lease`: its link died, or it came back without knowing the lease."""

    lease: LeaseId
    reason: str


class Inbox:
    """One request's events from all its workers, in the order they arrived.

    `positions` names every live choice of the request's live leases; a link asks for it when it resumes.
    """

    def __init__(self, positions: Callable[[], tuple[Position, ...]]) -> None:
        self.positions = positions
        self._items: deque[tuple[WorkerLink, Event | LinkDied]] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, source: WorkerLink, event: Event | LinkDied) -> None:
        self._items.append((source, event))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> tuple[WorkerLink, Event | LinkDied]:
        """The next event; waits for one without bound: the caller, who is the only one, sets the deadline."""
        while not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._items.popleft()

    def get_nowait(self) -> tuple[WorkerLink, Event | LinkDied] | None:
        """The next event if one is here: lets a flow take all of a step's tokens at once."""
        return self._items.popleft() if self._items else None


@dataclass(slots=True)
class _Attachment:
    inbox: Inbox
    pending: list[_Retained] = field(default_factory=list)  # sent and not answered: sent again when the link resumes
    answered: bool = False  # the worker has known this lease


class WorkerLink:
    """A link to the worker at `address`.

    `run` is owned by the caller and never returns; cancelling it closes the link. `on_change` is called on the loop after
    every change of `up`, `info`, `load` or `error`. `up` stays true over a break shorter than `timeouts.router_grace_s`,
    which no inbox notices; a worker whose address refuses connections is not waited for. `error` says why the last dial
    or stream failed, None while connected.
    """

    def __init__(
        self,
        address: str,
        incarnation: Incarnation,
        token: str,
        timeouts: Timeouts,
        on_change: Callable[[WorkerLink], None],
    ) -> None:
        self.address = address
        self.info: WorkerInfo | None = None
        self.load = LoadReport()
        self.up = False
        self.error: str | None = None
        self._incarnation = incarnation
        self._token = token
        self._timeouts = timeouts
        self._on_change = on_change
        self._attached: dict[LeaseId, _Attachment] = {}
        self._named: frozenset[LeaseId] = frozenset()  # by the last hello
        self._stream: Stream | None = None

    def attach(self, lease: LeaseId, inbox: Inbox) -> None:
        """From now on the lease's events go to `inbox`. On a link that is down: LinkDied at once."""
        if not self.up:
            inbox.put(self, LinkDied(lease, "the link is down"))
            return
        self._attached[lease] = _Attachment(inbox)

    def detach(self, lease: LeaseId) -> None:
        """The lease's events are dropped from now on. Idempotent."""
        self._attached.pop(lease, None)

    def send(self, command: Command) -> None:
        """Queues a command; never blocks. Starts and fences need an attached lease, and are sent again after a break until
        answered. End detaches its lease. On a link that is down nothing is sent: its worker ends every lease by itself."""
        if isinstance(command, End):
            self.detach(command.lease)
        elif not isinstance(command, Finish):
            attachment = self._attached.get(command.lease)
            if attachment is None:
                return
            attachment.pending.append(command)
        if self._stream is not None:
            self._stream.send(command)

    async def run(self) -> None:
        """Dials, serves, resumes and dials again until cancelled."""
        try:
            while True:
                await self._life(os.urandom(16))
                self._die("the link broke")
        finally:
            self._die("the link was closed")

    # --- one link id ---------------------------------------------------------------------------------------------

    async def _life(self, link_id: bytes) -> None:
        """From the first stream under `link_id` to the worker's death: a refused connection, or a grace without one."""
        stream: Stream | None = await self._dial(link_id, gives_up_on=())
        while stream is not None:
            self._open(stream)
            await self._serve(stream)
            stream = await self._redial(link_id)

    async def _dial(self, link_id: bytes, gives_up_on: tuple[type[LinkBroken], ...]) -> Stream:
        backoff = FIRST_BACKOFF_S
        while True:
            try:
                return await Stream.dial(self.address, self._hello(link_id), self._token, self._timeouts)
            except (LinkBroken, BatonError) as error:
                self._note(str(error))
                if isinstance(error, gives_up_on):
                    raise
            await asyncio.sleep(backoff * random.uniform(0.5, 1.0))
            backoff = min(2 * backoff, MAX_BACKOFF_S)

    async def _redial(self, link_id: bytes) -> Stream | None:
        try:
            async with asyncio.timeout(self._timeouts.router_grace_s):
                await asyncio.sleep(FIRST_BACKOFF_S * random.random())
                return await self._dial(link_id, gives_up_on=(NobodyListens,))
        except (TimeoutError, NobodyListens):
            return None

    async def _serve(self, stream: Stream) -> None:
        try:
            await stream.serve(self._receive)
        except LinkBroken as error:
            self._note(str(error))
        finally:
            self._stream = None
            await stream.close()

    def _hello(self, link_id: bytes) -> RouterHello:
        live = [p for lease, a in self._attached.items() for p in a.inbox.positions() if p.lease == lease]
        self._named = frozenset(position.lease for position in live)
        return RouterHello(self._incarnation, link_id, tuple(live))

    # --- what a stream brings ------------------------------------------------------------------------------------

    def _open(self, stream: Stream) -> None:
        """Takes the worker's hello: a new process life is the old one's death; the rest is reconciled."""
        info = stream.hello.info
        if self.info is not None and self.info.incarnation != info.incarnation:
            self._bury("the worker was restarted")
        self.info, self.up, self.error, self._stream = info, True, None, stream
        self._reconcile(frozenset(stream.hello.lacking))
        self._on_change(self)

    def _reconcile(self, lacking: frozenset[LeaseId]) -> None:
        """Commands that may be lost are sent again; a lease that the worker knew and forgot has died there.

        A lease that ended while the hello was on its way was named as live: its End could not be sent then, and is due now.
        """
        for ended in self._named - self._attached.keys() - lacking:
            self.send(End(ended))
        for lease, attachment in list(self._attached.items()):
            if lease in lacking and attachment.answered:
                self._drop(lease, "the worker no longer knows the lease")
                continue
            for command in attachment.pending:
                if self._stream is not None:
                    self._stream.send(command)

    def _receive(self, down: Down) -> None:
        for event in down.events:
            attachment = self._attached.get(event.lease)
            if attachment is not None:
                _settle(attachment, event)
                attachment.inbox.put(self, event)
        if down.load is not None:
            self.load = down.load
            self._on_change(self)

    # --- ends ----------------------------------------------------------------------------------------------------

    def _note(self, error: str) -> None:
        if error != self.error:
            log.warning("link to %s: %s", self.address, error)
            self.error = error
            self._on_change(self)

    def _die(self, reason: str) -> None:
        if self.up:
            self.up, self.load = False, LoadReport()
            self._bury(reason)
            self._on_change(self)

    def _bury(self, reason: str) -> None:
        for lease in list(self._attached):
            self._drop(lease, reason)

    def _drop(self, lease: LeaseId, reason: str) -> None:
        self._attached.pop(lease).inbox.put(self, LinkDied(lease, reason))


def _settle(attachment: _Attachment, event: Event) -> None:
    """Forgets the commands that `event` answers."""
    attachment.answered = True
    if attachment.pending:
        attachment.pending = [command for command in attachment.pending if not _answers(event, command)]


def _answers(event: Event, command: _Retained) -> bool:
    """Committed names the committed attempt, which is older than the fence that it answers."""
    return isinstance(event, _ANSWERS[type(command)]) and (isinstance(command, Fence) or event.epoch >= command.epoch)
