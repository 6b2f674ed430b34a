"""A wire that damages, drops, repeats and withholds: whatever it does, KV that was changed is never taken (F12).

`BATON_TRIALS=10000` runs as many.
"""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest
import transfer_support
from transfer_support import FIRST, SHORT, Cluster, cluster, faulty

from baton.wire.errors import TransferError
from baton.wire.types import KvAnswer
from kvtransfer.forms import form_of
from kvtransfer.transports.base import Connect

TRIALS = int(os.environ.get("BATON_TRIALS", "300"))
BATCH = 50
KINDS = ("none", "flip", "truncate", "drop", "reorder", "duplicate", "cut", "foreign")


class Fault:
    """One fault of `kind` at message `victim` of the attempt at `lease`; the last message is the commit."""

    def __init__(self, lease: bytes, kind: str, victim: int, rng: random.Random) -> None:
        self._lease = lease
        self._kind = kind
        self._victim = victim
        self._rng = rng
        self._held: list[bytes] = []
        self._count = 0

    def deliver(self, message: bytes) -> Sequence[bytes]:
        if self._lease not in message:  # of an attempt that was given up before
            return [message]
        at, self._count = self._count, self._count + 1
        if at == self._victim:
            return self._damage(message)
        late, self._held = self._held, []
        return [message, *late]

    def _damage(self, message: bytes) -> Sequence[bytes]:
        position = self._rng.randrange(len(message))
        match self._kind:
            case "flip":
                flipped = message[position] ^ self._rng.randrange(1, 256)
                return [message[:position] + bytes([flipped]) + message[position + 1 :]]
            case "truncate":
                return [message[:position]]
            case "drop":
                return []
            case "reorder":
                self._held = [message]
                return []
            case "duplicate":
                return [message, message]
            case "cut":
                raise TransferError("channel_lost", "cut")
            case "foreign":
                return [message.replace(self._lease, b"F" * 16)]
        return [message]


def num_messages(both: Cluster, total_len: int, num_cached: int) -> int:
    """One for each of prefill's blocks, or for a run of them, and the commit."""
    blocks = (total_len - 1) // both.prefill.layout.block_size - num_cached // both.prefill.layout.block_size + 1
    pieces = form_of(both.kind).num_pieces if both.kind == "shm" else 1
    return -(-blocks // pieces) + 1


async def run_trial(both: Cluster, arm: Callable[[Fault], None], rng: random.Random) -> None:
    lease, total_len = rng.randbytes(16), rng.randrange(1, 200)
    num_cached = rng.randrange(total_len)
    kind, messages = rng.choice(KINDS), num_messages(both, total_len, num_cached)
    victim = round(0.9 * messages) - 1 if kind == "cut" and messages > 2 else rng.randrange(messages)
    both.decode.pool[:] = 0
    both.commits.clear()
    arm(Fault(lease, kind, victim, rng))
    outgoing = both.begin(total_len, num_cached, lease=lease)
    error = await outcome(outgoing.commit(0, FIRST))
    harmless = kind == "none" or (kind == "duplicate" and victim == messages - 1)
    assert (error is None) == harmless, (kind, victim, messages, error)
    assert len(both.commits) == (error is None)
    assert error is not None or (both.arrived(total_len, num_cached) and both.commits[0].first == FIRST)
    await both.receiver.close(lease)
    assert len(both.receiver) == 0


async def outcome(commit: Awaitable[KvAnswer]) -> TransferError | None:
    try:
        await commit
    except TransferError as error:
        return error
    return None


@pytest.mark.parametrize("batch", range((TRIALS + BATCH - 1) // BATCH))
async def test_changed_kv_is_never_taken(batch: int) -> None:
    rng = random.Random(batch)
    armed: list[Fault] = []

    def wrap(connect: Connect) -> Connect:
        return faulty(connect, lambda message: armed[-1].deliver(message))

    timeouts = replace(SHORT, transfer_stall_s=0.2)
    sizes = {"prefill_block": rng.choice([16, 64]), "decode_block": rng.choice([16, 64])}
    async with cluster(
        transfer_support.KINDS[batch % len(transfer_support.KINDS)], wrap=wrap, timeouts=timeouts, **sizes
    ) as both:
        for _ in range(BATCH):
            await run_trial(both, armed.append, rng)
    assert sum(both.receiver.refused.values()) > 0
