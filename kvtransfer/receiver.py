"""Decode's end of the handoff: verifies KV and puts it into the blocks of its attempt. The rules are protocol/receiver.py's."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from baton.wire.types import Commit, Committed, Fenced, Gone, KvAnswer, KvHello, LeaseId, Refused, WorkerInfo
from kvtransfer import frames, pairing
from kvtransfer.frames import Frame, SharedFrame
from kvtransfer.protocol.receiver import Action, Answer, Expected, Free, Live, ReceiveLease, Report, State, Write
from kvtransfer.store import BlockStore
from kvtransfer.transports.base import Delivery
from kvtransfer.writer import Writer, Writing

Verdict = Fenced | Committed | Gone


@dataclass(slots=True)
class _Expected:
    """A lease's machine, the blocks that it may write, and who waits to hear of it."""

    machine: ReceiveLease
    block_ids: tuple[int, ...]
    on_commit: Callable[[Commit], None]
    on_refused: Callable[[Refused], None]
    fences: list[asyncio.Future[Verdict]] = field(default_factory=list)
    freed: asyncio.Event = field(default_factory=asyncio.Event)


_FrameWriting = tuple[_Expected, Writing]


class Receiver:
    """One a worker; a Sink for every transport. Used on the event loop only; KV is verified and copied on a thread of its own.

    `refused` counts answers that were not ok, by reason. `step_s`: the engine's last step, 0 while no batch runs (Writer).
    """

    def __init__(self, store: BlockStore, info: WorkerInfo, step_s: Callable[[], float] = lambda: 0.0) -> None:
        self.refused: Counter[str] = Counter()
        self.received_bytes = 0
        self.transfers = 0
        self._store = store
        self._info = info
        self._writer = Writer(store, step_s)
        self._leases: dict[LeaseId, _Expected] = {}

    def __len__(self) -> int:
        """Leases that are expected or committed, and not closed."""
        return len(self._leases)

    # --- what the node does --------------------------------------------------------------------------------------

    def expect(
        self,
        lease: LeaseId,
        epoch: int,
        block_ids: Sequence[int],
        num_cached: int,
        total_len: int,
        index: int,
        on_commit: Callable[[Commit], None],
        *,
        choices: tuple[int, ...] = (0,),
        on_refused: Callable[[Refused], None] = lambda refused: None,
    ) -> None:
        """From now on takes KV of [num_cached, total_len) into `block_ids`, the lease's block table, and a commit with the
        first tokens of `choices` at output `index`.

        The blocks from `num_cached` on belong to the transfer until `on_commit`, or until `close` has returned. `on_commit` is
        called once, on the loop, after cover and digests were verified and before the answer goes out. `on_refused` is called
        when the attempt is given up: a fence may follow. ValueError if the lease is expected: only `fence` raises an epoch.
        """
        if lease in self._leases:
            raise ValueError("the lease is expected already")
        expected = Expected(epoch, num_cached, total_len, index, choices)
        machine = ReceiveLease(lease, expected, self._store.layout.num_layers, frames.digest_of)
        self._leases[lease] = _Expected(machine, tuple(block_ids), on_commit, on_refused)

    async def fence(self, lease: LeaseId, epoch: int, total_len: int, index: int) -> Verdict | None:
        """Moves the lease to `epoch`, unless a commit was taken: then nothing older can be written any more.

        Returns when a write in flight, about a millisecond, has ended. None: a fence of a later epoch came before.
        """
        held = self._leases.get(lease)
        if held is None:
            return Gone(lease, epoch)
        if epoch < held.machine.epoch and held.machine.state is not State.COMMITTED:
            return None
        verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        held.fences.append(verdict)
        self._perform(held, held.machine.fence(epoch, total_len, index))
        return await verdict

    async def close(self, lease: LeaseId) -> None:
        """Forgets the lease. Once this has returned nothing more is written to its blocks: they may be freed. Idempotent."""
        held = self._leases.pop(lease, None)
        if held is None:
            return
        self._perform(held, held.machine.end())
        _tell(held.fences, Gone(lease, held.machine.epoch))
        await held.freed.wait()

    def stop(self) -> None:
        """Gives the thread back. Call it after the server has stopped and every lease was closed."""
        self._writer.close()

    # --- what a transport's server does (Sink) -------------------------------------------------------------------

    def open(self, hello: KvHello) -> None:
        pairing.check(hello, self._info)

    async def take(self, deliveries: Sequence[Delivery]) -> list[KvAnswer]:
        answers: list[KvAnswer] = []
        writings: list[_FrameWriting] = []
        for delivery in deliveries:
            if isinstance(delivery, Commit):
                answers += await self._write(writings)
                answers += self._take_commit(delivery)
                writings = []
            else:
                answers += self._admit(delivery, writings)
        return answers + await self._write(writings)

    def _take_commit(self, commit: Commit) -> list[KvAnswer]:
        held = self._leases.get(commit.lease)
        return self._perform(held, held.machine.commit(commit)) if held else self._unknown(commit.lease, commit.epoch)

    def _admit(self, frame: Frame | SharedFrame, writings: list[_FrameWriting]) -> list[KvAnswer]:
        """Adds the frame to what is to be written, or answers why not."""
        header = frame.header
        held = self._leases.get(header.lease)
        if held is None:
            return self._unknown(header.lease, header.epoch)
        actions = held.machine.frame(header)
        if not any(isinstance(action, Write) for action in actions):
            return self._perform(held, actions)
        writings.append((held, Writing(frame, held.block_ids, partial(_wants, held.machine, header.epoch))))
        return []

    async def _write(self, writings: Sequence[_FrameWriting]) -> list[KvAnswer]:
        answers: list[KvAnswer] = []
        try:
            await self._writer.write(writing for _, writing in writings)
        finally:
            for held, writing in writings:
                header = writing.frame.header
                answers += self._perform(held, held.machine.written(header.epoch, header.sequence, writing.ok))
                self.received_bytes += frames.payload_bytes(self._store.layout, header) if writing.ok else 0
        return answers

    # --- inside --------------------------------------------------------------------------------------------------

    def _perform(self, held: _Expected, actions: list[Action]) -> list[KvAnswer]:
        """Does what the machine says, in order; returns the answers among it."""
        answers: list[KvAnswer] = []
        for action in actions:
            match action:
                case Answer(answer):
                    answers.append(self._count(answer))
                case Live(commit):
                    self.transfers += 1
                    held.on_commit(commit)
                case Report(Refused() as refused):
                    held.on_refused(refused)
                case Report(Fenced() | Committed() | Gone() as verdict):
                    _tell(held.fences, verdict)
                case Free():
                    held.freed.set()
        return answers

    def _count(self, answer: KvAnswer) -> KvAnswer:
        if not answer.ok:
            self.refused[answer.reason] += 1
        return answer

    def _unknown(self, lease: LeaseId, epoch: int) -> list[KvAnswer]:
        return [self._count(KvAnswer(lease, epoch, ok=False, reason="unknown_lease"))]


def _wants(machine: ReceiveLease, epoch: int) -> bool:
    return machine.state is State.RECEIVING and machine.epoch == epoch


def _tell(fences: list[asyncio.Future[Verdict]], verdict: Verdict) -> None:
    while fences:
        fence = fences.pop()
        if not fence.done():
            fence.set_result(verdict)
