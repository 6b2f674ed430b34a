"""Decode's end of the handoff: verifies KV and puts it into the blocks of its attempt. The rules are protocol/receiver.py's."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from baton.wire.errors import TransferError
from baton.wire.types import Commit, Committed, Fenced, Gone, KvAnswer, KvHello, LeaseId, Refused, WorkerInfo
from kvtransfer import frames, pairing
from kvtransfer.fields import malformed
from kvtransfer.frames import Frame
from kvtransfer.protocol.receiver import Action, Answer, Expected, Free, Live, ReceiveLease, Report, State, Write
from kvtransfer.store import BlockStore
from kvtransfer.thread import KvThread

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


class Receiver:
    """One a worker; a Sink for every transport. Used on the event loop only; KV is verified and copied on a thread of its own.

    `refused` counts answers that were not ok, by reason.
    """

    def __init__(self, store: BlockStore, info: WorkerInfo) -> None:
        self.refused: Counter[str] = Counter()
        self.received_bytes = 0
        self.transfers = 0
        self._store = store
        self._info = info
        self._thread = KvThread("kv-receive")
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
        self._thread.close()

    # --- what a transport's server does (Sink) -------------------------------------------------------------------

    def open(self, message: bytes) -> None:
        hello = frames.decode(message)
        if not isinstance(hello, KvHello):
            raise malformed("a channel begins with hello")
        pairing.check(hello, self._info)

    async def take(self, message: bytes) -> list[KvAnswer]:
        match frames.decode(message):
            case Frame() as frame:
                return await self._take_frame(frame)
            case Commit() as commit:
                held = self._leases.get(commit.lease)
                return self._perform(held, held.machine.commit(commit)) if held else self._unknown(commit.lease, commit.epoch)
            case _:
                raise malformed("a second hello")

    async def _take_frame(self, frame: Frame) -> list[KvAnswer]:
        header = frame.header
        held = self._leases.get(header.lease)
        if held is None:
            return self._unknown(header.lease, header.epoch)
        actions = held.machine.frame(header)
        if not any(isinstance(action, Write) for action in actions):
            return self._perform(held, actions)
        ok = False
        try:
            ok = await self._thread.run(partial(self._write, frame, held.block_ids))
        finally:
            answers = self._perform(held, held.machine.written(header.epoch, header.sequence, ok))
        self.received_bytes += frame.payload.nbytes
        return answers

    def _write(self, frame: Frame, block_ids: tuple[int, ...]) -> bool:
        """On the KV thread: copies what was verified, and nothing else, into the attempt's blocks."""
        header, payload = frame.header, frame.payload
        try:
            frames.verify(frame)
            self._store.scatter(block_ids, header.token_start, header.token_end, header.layer_start, header.layer_end, payload)
        except (TransferError, ValueError):
            return False
        return True

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


def _tell(fences: list[asyncio.Future[Verdict]], verdict: Verdict) -> None:
    while fences:
        fence = fences.pop()
        if not fence.done():
            fence.set_result(verdict)
