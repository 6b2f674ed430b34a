"""Deadlines, and workers as a registry names them."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton.wire.types.model import Role


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


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A worker as the registry names it."""

    address: str
    role: Role
    labels: tuple[tuple[str, str], ...] = field(default=())
