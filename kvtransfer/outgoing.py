"""One attempt on its way: drives protocol/sender.py's machine over a pair, block by block as KV is computed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from baton.wire.errors import TransferError
from baton.wire.types import Failed, FirstToken, FrameHeader, KvAnswer, LeaseId
from kvtransfer import frames
from kvtransfer.forms import COPIED, Sealed, form_of
from kvtransfer.pair import Pair
from kvtransfer.protocol.sender import Action, Report, SendAttempt, SendCommit, Ship
from kvtransfer.store import BlockStore
from kvtransfer.thread import KvThread, outlast

log = logging.getLogger(__name__)

SLOWEST_BYTES_S = 256 << 20
"""KV that a receiver puts away in a second at least, while its batch runs: so much longer may the answer to a commit take."""


@dataclass(frozen=True, slots=True)
class Facts:
    """An attempt's part of the timeline. `transfer_s`: first KV read to the answer; `hidden_s`: the part of it in which KV was
    still being computed."""

    num_bytes: int
    transfer_s: float
    hidden_s: float
    transport: str


class Outgoing:
    """Made by `Sender.begin`, which says who owns the blocks and until when. Used on the event loop only."""

    def __init__(
        self,
        store: BlockStore,
        thread: KvThread,
        pair: Pair,
        lease: LeaseId,
        epoch: int,
        block_ids: Sequence[int],
        cover_start: int,
        cover_end: int,
        on_over: Callable[[Outgoing], None],
    ) -> None:
        self._store, self._thread, self._pair = store, thread, pair
        self._block_ids = tuple(block_ids)
        self._cover_end = cover_end
        self._on_over = on_over
        self._machine = SendAttempt(lease, epoch, cover_start, cover_end, store.layout.num_layers, frames.digest_of)
        self._ready = cover_start  # KV below it is in the blocks
        self._sampled: tuple[int, tuple[FirstToken, ...]] | None = None  # until the machine was told
        self._more = asyncio.Event()
        self._outcome: KvAnswer | TransferError | None = None
        self._over = asyncio.Event()
        self._answer_due: asyncio.TimerHandle | None = None
        self._form = COPIED  # until the pair's transport is known
        self._num_bytes = 0
        self._clock = _Clock()
        pair.join((lease, epoch), self)
        self._task = asyncio.create_task(self._ship(), name="kv-ship")
        self._task.add_done_callback(self._ship_ended)

    # --- what the caller does ------------------------------------------------------------------------------------

    def computed(self, num_tokens: int) -> None:
        """KV of [0, num_tokens) is in the blocks. Ships whole blocks soon, the last partial one with the end. Never blocks."""
        if num_tokens > self._ready:
            self._ready = min(num_tokens, self._cover_end)
            if self._ready == self._cover_end:
                self._clock.computed()
            self._more.set()

    async def commit(self, index: int, first: tuple[FirstToken, ...]) -> KvAnswer:
        """Ships what is left, commits with the first tokens (one a choice, at output `index`) and returns decode's ok.

        All KV must be in the blocks. If every choice has ended with its first token, nothing is committed and the answer is ok.
        Raises TransferError with a word of protocol/receiver.py (decode refused), or "connect", "wrong_incarnation",
        "pairing_refused", "unauthenticated", "channel_lost", "stall": whether decode took the commit is then for the router to
        ask. The blocks are not read any more once this has returned or raised.
        """
        try:
            self._sampled = (index, first)
            self.computed(self._cover_end)
            self._more.set()
            await self._over.wait()
        finally:
            await self.cancel()
        if isinstance(self._outcome, KvAnswer):
            return self._outcome
        raise self._outcome or TransferError("cancelled")

    async def cancel(self) -> None:
        """Gives the attempt up. The blocks are not read any more once this has returned. Idempotent."""
        self._settle(TransferError("cancelled"))
        self._machine.end()
        await outlast(self._task)

    @property
    def error(self) -> TransferError | None:
        """Why the attempt failed, as soon as that is known: `commit` will raise it, and computing more is of no use."""
        return self._outcome if isinstance(self._outcome, TransferError) else None

    @property
    def facts(self) -> Facts:
        """What the transfer took, up to now or to its end."""
        return Facts(self._num_bytes, self._clock.transfer_s, self._clock.hidden_s, self._pair.transport)

    # --- what the pair says --------------------------------------------------------------------------------------

    def answered(self, answer: KvAnswer) -> None:
        self._report(self._machine.answer(answer))

    def failed(self, error: TransferError) -> None:
        self._report(self._machine.lost(error.reason, error.message))

    # --- inside --------------------------------------------------------------------------------------------------

    async def _ship(self) -> None:
        """The only one to wait for the pair: it is cancelled when the attempt is over, however that came."""
        await self._pair.opened()
        self._form = form_of(self._pair.transport)
        while True:
            actions = self._next()
            for action in actions:
                if isinstance(action, Ship):
                    await self._ship_run(action)
                elif isinstance(action, SendCommit):
                    await self._pair.send(frames.encode_commit(action.commit))
                    self._expect_answer()
            if not actions:
                await self._more.wait()
                self._more.clear()

    def _next(self) -> list[Action]:
        """What can be shipped, or else, once the first tokens are known, the commit."""
        actions = self._machine.computed(self._boundary())
        if not actions and self._sampled is not None:
            actions, self._sampled = self._machine.sampled(*self._sampled), None
            self._report(actions)
        return actions

    def _boundary(self) -> int:
        """How far to ship: a block that is still being filled would be read, hashed and sent in crumbs."""
        unfinished = self._ready % self._store.layout.block_size
        return self._ready if self._ready == self._cover_end else self._ready - unfinished

    async def _ship_run(self, ship: Ship) -> None:
        runs = frames.plan(self._store.layout, ship.token_start, ship.token_end, self._form.piece_bytes)
        while some := list(islice(runs, self._form.num_pieces)):
            headers = [header for run in some if (header := self._machine.frame(*run)) is not None]
            await self._ship_frames(headers)

    async def _ship_frames(self, headers: list[FrameHeader]) -> None:
        self._clock.start()
        try:
            headers, messages = await self._thread.run(partial(self._read, headers))
        finally:
            for header in headers:
                self._machine.sent(header)
        self._num_bytes += sum(frames.payload_bytes(self._store.layout, header) for header in headers)
        for message in messages:
            await self._pair.send(message)

    def _read(self, headers: list[FrameHeader]) -> tuple[list[FrameHeader], list[bytes]]:
        """On the KV thread: hashes the blocks' bytes, and copies them where the transport needs a copy."""
        sealed = [self._seal(header) for header in headers]
        return [frame.header for frame, _ in sealed], self._form.pack(sealed)

    def _seal(self, header: FrameHeader) -> Sealed:
        run = (header.token_start, header.token_end, header.layer_start, header.layer_end)
        block = self._block_ids[header.token_start // self._store.layout.block_size]
        return frames.seal(header, self._store.gather(self._block_ids, *run)), block

    def _expect_answer(self) -> None:
        if self._outcome is None:
            patience_s = self._pair.stall_s + self._num_bytes / SLOWEST_BYTES_S
            stall = TransferError("stall", f"no answer to the commit for {patience_s:g} s")
            self._answer_due = asyncio.get_running_loop().call_later(patience_s, self._pair.fail, stall)

    def _report(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Report):
                event = action.event
                taken = KvAnswer(event.lease, event.epoch, ok=True)
                self._settle(TransferError(event.reason, event.message) if isinstance(event, Failed) else taken)

    def _settle(self, outcome: KvAnswer | TransferError) -> None:
        """The first outcome stands. Shipping stops; a read in flight may still return."""
        if self._outcome is not None:
            return
        self._outcome = outcome
        self._clock.stop()
        if self._answer_due is not None:
            self._answer_due.cancel()
        self._pair.leave((self._machine.lease, self._machine.epoch))
        self._task.cancel()
        self._over.set()
        self._on_over(self)

    def _ship_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("cannot read KV to ship", exc_info=error)
            self._report(self._machine.lost("internal", f"the blocks cannot be read: {error}"))


class _Clock:
    """When the attempt's transfer began and ended, and when its KV was all computed."""

    def __init__(self) -> None:
        self._started: float | None = None
        self._computed: float | None = None
        self._stopped: float | None = None

    def start(self) -> None:
        self._started = self._started or time.monotonic()

    def computed(self) -> None:
        self._computed = self._computed or time.monotonic()

    def stop(self) -> None:
        self._stopped = time.monotonic()

    @property
    def transfer_s(self) -> float:
        return self._until(self._stopped)

    @property
    def hidden_s(self) -> float:
        return min(self._until(self._computed), self.transfer_s)

    def _until(self, end: float | None) -> float:
        if self._started is None:
            return 0.0
        return max(0.0, (end or time.monotonic()) - self._started)
