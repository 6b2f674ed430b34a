"""Deadlines, and workers as a registry names them."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton.wire.types.model import Incarnation, Role


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Every wait's default in seconds (docs/behaviour.md has the table)."""

    connect_s: float = 1.0
    reserve_s: float = 1.0
    transfer_stall_s: float = 2.0
    heartbeat_s: float = 1.0
    heartbeat_misses: int = 3
    router_grace_s: float = 1.0
    worker_grace_s: float = 2.0
    request_s: float = 600.0
    replace_s: float = 5.0
    drain_s: float = 30.0
    registry_ttl_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A worker as the registry names it."""

    address: str
    role: Role
    labels: tuple[tuple[str, str], ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Registration:
    """What a worker says of itself to a registry, of which it is the only writer. It finds; the link's word decides."""

    address: str
    role: Role
    model: str
    capacity_tokens: int
    max_num_seqs: int
    incarnation: Incarnation

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.address, self.role)
