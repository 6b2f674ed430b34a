"""Places attempts: snapshots of the pool, guesses about caches and what failed before go in, claimed workers come out."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from baton.wire.types import DecodeTarget, LeaseId
from kvtransfer.protocol.actions import PlaceKind
from router.affinity import Keys, PrefixIndex
from router.links import WorkerPool
from router.placement import Avoid, Choice, Need, Pair, choose
from router.workers import Worker

NUM_CANDIDATES = 32
"""Of more workers than these, so many are drawn and compared, with those that hold the prompt's prefix: the best of many draws
is nearly the best of all, and a request costs the same in a cluster of any size."""

SHUN_S = 10.0
"""How long a pair that could not reach each other is avoided, by every request."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One attempt's wish. `num_tokens`: positions to compute; `growth_tokens`: what decode reserves beyond them.

    `lease` and `decode` are set for PREFILL alone: the lease that decode still holds. `rest_s`: how long to wait for other
    workers than those that could not reach each other, before they are tried again.
    """

    model: str
    kind: PlaceKind
    num_tokens: int
    growth_tokens: int = 0
    keys: Keys = ()
    exclude: frozenset[str] = frozenset()
    lease: LeaseId | None = None
    decode: str | None = None
    rest_s: float = 0.0

    @property
    def decodes(self) -> bool:
        return self.kind is PlaceKind.PAIR


@dataclass(slots=True)
class Claim:
    """A worker's work for one lease, counted against it until released."""

    worker: Worker
    lease: LeaseId
    book: dict[LeaseId, int]
    on_release: Callable[[], None]

    def release(self) -> None:
        """The work is over. Idempotent."""
        if self.book.pop(self.lease, None) is not None:
            self.on_release()


@dataclass(frozen=True, slots=True)
class Placement:
    """Workers claimed for an attempt: whoever holds it releases both claims. `decode` None: no decode was to be chosen."""

    lease: LeaseId
    prefill: Claim
    decode: Claim | None = None

    @property
    def target(self) -> DecodeTarget | None:
        """Where prefill ships KV to."""
        if self.decode is None or self.decode.worker.link.info is None:
            return None
        return DecodeTarget(self.decode.worker.address, self.decode.worker.link.info.incarnation)

    def release(self) -> None:
        self.prefill.release()
        if self.decode is not None:
            self.decode.release()


@dataclass(slots=True)
class Placer:
    """Owns what placement remembers between requests. `on_release` is called after each released claim."""

    pool: WorkerPool
    clock: Callable[[], float]
    on_release: Callable[[], None] = lambda: None
    _prefill_index: PrefixIndex = field(default_factory=PrefixIndex)
    _decode_index: PrefixIndex = field(default_factory=PrefixIndex)
    _shunned: dict[Pair, float] = field(default_factory=dict)
    _turns: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def place(self, ask: Ask, *, picky: bool = False) -> Placement | None:
        """Claims the best workers with room now; None: there is none. `picky`: none that failed, even if there is no other."""
        rotation = self.pool.rotation(ask.model)
        choice = self._choose(ask, self._candidates(ask, rotation), picky) or self._choose(ask, rotation, picky)
        return self._claim(ask, choice) if choice else None

    def shortage(self, model: str, decodes: bool) -> str | None:
        """Why nothing can be placed with the workers that are there, however long it waits; None: it can."""
        return self.pool.shortage(model, decodes=decodes)

    def shun(self, pair: Pair) -> None:
        """The pair could not reach each other: both stay in use, but not together."""
        self._shunned[pair] = self.clock() + SHUN_S

    def cut_off(self, ask: Ask) -> bool:
        """Whether no prefill worker reached the decode worker that holds the lease of `ask`, and another can be reached."""
        if ask.decode is None:
            return False
        workers, shunned = self.pool.rotation(ask.model), self._shunned_now()
        prefills = [worker.address for worker in workers if worker.link.info and worker.link.info.role.prefills]
        decodes = [worker.address for worker in workers if worker.link.info and worker.link.info.role.decodes]
        reached = {decode for prefill in prefills for decode in decodes if (prefill, decode) not in shunned}
        return bool(reached) and ask.decode not in reached

    def forget(self, address: str) -> None:
        """The worker's process ended: its cache and what it could not reach are history."""
        self._prefill_index.forget(address)
        self._decode_index.forget(address)
        self._shunned = {pair: until for pair, until in self._shunned.items() if address not in pair}

    def _candidates(self, ask: Ask, rotation: Sequence[Worker]) -> Sequence[Worker]:
        """Few of many workers; none where all are to be compared anyway."""
        if len(rotation) <= NUM_CANDIDATES or ask.exclude or self._shunned_now():
            return ()
        holders = self._prefill_index.holders(ask.keys) | self._decode_index.holders(ask.keys)
        drawn = random.sample(rotation, NUM_CANDIDATES)
        return [*drawn, *(worker for worker in map(self.pool.worker, holders) if worker.in_rotation and worker not in drawn)]

    def _choose(self, ask: Ask, workers: Sequence[Worker], picky: bool) -> Choice | None:
        if not workers:
            return None
        return choose([worker.snapshot() for worker in workers], replace(self._need(ask, workers), picky=picky))

    def _need(self, ask: Ask, rotation: Sequence[Worker]) -> Need:
        addresses = [worker.address for worker in rotation] if ask.keys else []
        return Need(
            num_tokens=ask.num_tokens,
            decodes=ask.decodes,
            decode=ask.decode,
            avoid=Avoid(ask.exclude, self._shunned_now()),
            prefill_hits={address: self._prefill_index.hit_len(ask.keys, address) for address in addresses},
            decode_hits={address: self._decode_index.hit_len(ask.keys, address) for address in addresses},
        )

    def _shunned_now(self) -> frozenset[Pair]:
        now = self.clock()
        self._shunned = {pair: until for pair, until in self._shunned.items() if until > now}
        return frozenset(self._shunned)

    def _claim(self, ask: Ask, choice: Choice) -> Placement:
        lease = ask.lease or os.urandom(16)
        prefill = self.pool.worker(choice.prefill)
        self._prefill_index.remember(ask.keys, choice.prefill)
        claim = self._enter(prefill, lease, prefill.prefilling, ask.num_tokens)
        if choice.decode is None:
            return Placement(lease, claim)
        decode = self.pool.worker(choice.decode)
        self._decode_index.remember(ask.keys, choice.decode)
        return Placement(lease, claim, self._enter(decode, lease, decode.decoding, ask.num_tokens + ask.growth_tokens))

    def _enter(self, worker: Worker, lease: LeaseId, book: dict[LeaseId, int], num_tokens: int) -> Claim:
        book[lease] = num_tokens
        worker.turn = next(self._turns)
        return Claim(worker, lease, book, self.on_release)
