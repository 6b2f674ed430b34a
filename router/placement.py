"""Chooses the workers of one attempt. Pure: snapshots in, addresses out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from baton.wire.types import LoadReport, Role

AFFINITY = 0.1
"""A decode worker that holds the whole prompt already may be this much fuller than another and still win."""

Pair = tuple[str, str]
"""(prefill address, decode address)."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A paired worker as placement sees it: its last report, and what this router has given it since.

    `*_tokens` count positions that the router's requests hold or wait for there; `turn` grows with each choice of the worker.
    """

    address: str
    role: Role
    load: LoadReport
    capacity_tokens: int
    max_num_seqs: int
    num_prefills: int = 0
    prefill_tokens: int = 0
    num_decodes: int = 0
    decode_tokens: int = 0
    full: bool = False
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Avoid:
    """What not to use as long as something else is up: workers that failed this request, pairs that cannot reach each other."""

    workers: frozenset[str] = frozenset()
    pairs: frozenset[Pair] = frozenset()


@dataclass(frozen=True, slots=True)
class Need:
    """What one attempt asks for. `decodes`: a decode worker is to be chosen; else `decode` names the one that holds the
    request already, if any.

    `*_hits`: tokens of the prompt that an address probably holds. `window_tokens`: a prefill worker with two requests may get
    more while their tokens together stay within it; two are always near. `picky`: rather wait than use what is avoided.
    """

    num_tokens: int
    decodes: bool = True
    decode: str | None = None
    avoid: Avoid = Avoid()
    prefill_hits: dict[str, int] = field(default_factory=dict)
    decode_hits: dict[str, int] = field(default_factory=dict)
    window_tokens: int = 1024
    picky: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """Where an attempt goes; `decode` None: none was to be chosen."""

    prefill: str
    decode: str | None


def choose(workers: Sequence[Snapshot], need: Need) -> Choice | None:
    """The best pair that has room now, or None: wait."""
    prefills = _ready(workers, need, lambda worker: worker.role.prefills, lambda worker: _near(worker, need))
    prefills.sort(key=lambda worker: _prefill_cost(worker, need))
    decodes = _decodes(workers, need) if prefills else []
    pairs = ((prefill.address, decode) for decode in decodes for prefill in prefills)
    best = next((pair for pair in pairs if pair not in need.avoid.pairs), None)
    if best is None and prefills and decodes and not need.picky:
        best = prefills[0].address, decodes[0]
    return Choice(best[0], best[1] if need.decodes else None) if best else None


def _decodes(workers: Sequence[Snapshot], need: Need) -> list[str]:
    """Decode addresses, the best first; the given one, or a nameless one, where none is to be chosen."""
    if not need.decodes:
        return [need.decode or ""]
    ready = _ready(workers, need, lambda worker: worker.role.decodes, _has_room)
    return [worker.address for worker in sorted(ready, key=lambda worker: _decode_cost(worker, need))]


def _ready(
    workers: Iterable[Snapshot], need: Need, fits: Callable[[Snapshot], bool], has_room: Callable[[Snapshot], bool]
) -> list[Snapshot]:
    """Workers of a role with room. A failed worker counts only where no other of its role is up, busy or not."""
    of_role = [worker for worker in workers if fits(worker)]
    unharmed = [worker for worker in of_role if worker.address not in need.avoid.workers]
    return [worker for worker in (unharmed if need.picky else unharmed or of_role) if has_room(worker)]


def _near(worker: Snapshot, need: Need) -> bool:
    if worker.num_prefills < 2:
        return True
    return worker.prefill_tokens + need.num_tokens <= need.window_tokens


def _has_room(worker: Snapshot) -> bool:
    return not worker.full and worker.num_decodes < worker.max_num_seqs


def _prefill_cost(worker: Snapshot, need: Need) -> tuple[int, int, int]:
    """Tokens to compute before the first token; then the one with fewer requests, then the one whose turn it is."""
    ahead = max(worker.load.queued_prefill_tokens, worker.prefill_tokens)
    missing = max(1, need.num_tokens - need.prefill_hits.get(worker.address, 0))
    return ahead + missing, worker.num_prefills, worker.turn


def _decode_cost(worker: Snapshot, need: Need) -> tuple[float, int]:
    """How full its batch or its pool is, less what its cache saves; then the one whose turn it is."""
    hit = need.decode_hits.get(worker.address, 0) / max(1, need.num_tokens)
    return max(_batch_use(worker), _pool_use(worker)) - AFFINITY * hit, worker.turn


def _batch_use(worker: Snapshot) -> float:
    return max(worker.load.num_running + worker.load.num_waiting, worker.num_decodes) / max(1, worker.max_num_seqs)


def _pool_use(worker: Snapshot) -> float:
    reported = worker.load.kv_blocks_used / max(1, worker.load.kv_blocks_total)
    return max(reported, worker.decode_tokens / max(1, worker.capacity_tokens))
