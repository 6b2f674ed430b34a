"""Router to worker."""

from __future__ import annotations

from dataclasses import dataclass

from baton.wire.types.model import Incarnation, LeaseId
from baton.wire.types.request import RequestSpec


@dataclass(frozen=True, slots=True)
class DecodeTarget:
    """Where prefill ships KV: told by the router, never by a peer."""

    address: str
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class StartDecode:
    """Reserve every block for `spec` or refuse. Answered by Reserved or Refused. Idempotent by (lease, epoch)."""

    lease: LeaseId
    epoch: int
    spec: RequestSpec


@dataclass(frozen=True, slots=True)
class StartPrefill:
    """Compute KV of [0, spec.total_len), sample the next token of each choice, ship [num_cached, total_len) to `decode`.

    `decode` None: prefill alone (one token remains), nothing is shipped or committed.
    """

    lease: LeaseId
    epoch: int
    spec: RequestSpec
    num_cached: int = 0
    decode: DecodeTarget | None = None


@dataclass(frozen=True, slots=True)
class Fence:
    """Ask decode, the arbiter, to move the lease to `epoch`. Answered by Fenced, Committed or Gone."""

    lease: LeaseId
    epoch: int
    output_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class End:
    """The router has no more use for the lease: free its blocks, stop its work, drop its record. No answer."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class Finish:
    """The router ended one choice of a lease (its stop string was found): decode stops it and frees its blocks. No answer.

    Lost with a broken link it needs no repetition: a lease that is named at the resumption without a choice says the same.
    """

    lease: LeaseId
    choice: int


Command = StartDecode | StartPrefill | Fence | End | Finish
