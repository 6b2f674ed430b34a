"""What travels on a link beside commands and events: hellos, positions, load."""

from __future__ import annotations

from dataclasses import dataclass

from baton.wire.types.commands import Command
from baton.wire.types.events import Event
from baton.wire.types.model import Incarnation, LeaseId, WorkerInfo


@dataclass(frozen=True, slots=True)
class LoadReport:
    """A worker's gauges (now) and counters (since its start). Blocks kept as prefix cache are not in use."""

    num_running: int = 0
    num_waiting: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    kv_blocks_cached: int = 0
    queued_prefill_tokens: int = 0
    num_leases: int = 0
    draining: bool = False
    prompt_tokens_total: int = 0
    generated_tokens_total: int = 0
    overrun_tokens_total: int = 0
    prefix_hit_tokens_total: int = 0
    prefix_query_tokens_total: int = 0
    preemptions_total: int = 0
    transfer_bytes_total: int = 0
    transfers_total: int = 0
    transfers_failed_total: int = 0
    frames_refused_total: int = 0
    aborted_total: int = 0
    last_step_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Position:
    """How far the router has accepted a choice of a live lease, named when a link resumes."""

    lease: LeaseId
    epoch: int
    choice: int
    next_index: int


@dataclass(frozen=True, slots=True)
class RouterHello:
    """First message of a stream. `link_id` names the logical link over breaks; a new one ends everything under the old."""

    incarnation: Incarnation
    link_id: bytes
    live: tuple[Position, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerHello:
    """First answer. `lacking`: named leases this worker does not know (a start was lost, or it ended them)."""

    info: WorkerInfo
    resumed: bool
    lacking: tuple[LeaseId, ...] = ()


@dataclass(frozen=True, slots=True)
class Down:
    """One message worker -> router: events in order, at most one load report. Empty: a heartbeat."""

    events: tuple[Event, ...] = ()
    load: LoadReport | None = None


@dataclass(frozen=True, slots=True)
class Up:
    """One message router -> worker: commands in order. Empty: a heartbeat."""

    commands: tuple[Command, ...] = ()
