"""Prefill's end of the handoff: ships a request's KV while it is computed, then commits. The rules are protocol/sender.py's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from baton.wire.types import DecodeTarget, KvHello, LeaseId, Timeouts
from kvtransfer.outgoing import Outgoing
from kvtransfer.pair import Pair
from kvtransfer.store import BlockStore
from kvtransfer.thread import KvThread
from kvtransfer.transports.base import Connect

TRANSPORT_FAULTS = frozenset({"channel_lost", "stall", "digest", "sequence", "cover", "overlap", "range"})
"""Ends of an attempt that no sender of ours brings about by itself over a wire that delivers what it was given."""


class Sender:
    """One a worker. Used on the event loop only; KV is read, hashed and copied on a thread of its own.

    `hello` names both ends for a target. Channels are dialled when first needed, shared by all attempts to the same life of a
    receiver, and forgotten when they break: the next attempt dials afresh. `on_fault` hears of a transport that broke under an
    attempt, or damaged what it carried, before that attempt's failure is told: the next one can take another transport.
    """

    def __init__(
        self,
        store: BlockStore,
        hello: Callable[[DecodeTarget], KvHello],
        token: str,
        timeouts: Timeouts,
        connect: Connect,
        on_fault: Callable[[DecodeTarget, str], None] = lambda target, transport: None,
    ) -> None:
        self.sent_bytes = 0
        self.transfers = 0
        self.transfers_failed = 0
        self._store = store
        self._hello = hello
        self._token = token
        self._timeouts = timeouts
        self._connect = connect
        self._on_fault = on_fault
        self._thread = KvThread("kv-send")
        self._pairs: list[Pair] = []

    def begin(
        self, lease: LeaseId, epoch: int, target: DecodeTarget, block_ids: Sequence[int], cover_start: int, cover_end: int
    ) -> Outgoing:
        """Opens an attempt that ships KV of positions [cover_start, cover_end) out of `block_ids`, the request's block table.

        The caller pins the blocks, and keeps the pin until `commit` or `cancel` of what this returns has returned or raised; it
        must await one of the two.
        """
        pair = self._pair(target)
        over = partial(self._over, pair)
        return Outgoing(self._store, self._thread, pair, lease, epoch, block_ids, cover_start, cover_end, over)

    async def stop(self) -> None:
        """Closes every channel, which fails what is still on its way, and gives the thread back."""
        for pair in list(self._pairs):
            await pair.close()
        self._thread.close()

    def _pair(self, target: DecodeTarget) -> Pair:
        for pair in self._pairs:
            if pair.target == target and not pair.broken and not pair.retired:
                return pair
        dial = partial(self._connect, target.address, self._hello(target), self._token, self._timeouts)
        pair = Pair(target, dial, self._timeouts.transfer_stall_s, self._pairs.remove)
        self._pairs.append(pair)
        return pair

    def _over(self, pair: Pair, outgoing: Outgoing) -> None:
        self.sent_bytes += outgoing.facts.num_bytes
        reason = outgoing.error.reason if outgoing.error is not None else ""
        if not reason:
            self.transfers += 1
        elif reason != "cancelled":
            self.transfers_failed += 1
        if reason in TRANSPORT_FAULTS and pair.transport:
            self._on_fault(pair.target, pair.transport)
            pair.retire()
