"""What the coordinator tells the router to do. Perform a list in order, each action before the next input.

No list holds both an `Accept` and a decision (`Place`, `Split`, `Fail`, a start or a fence): whoever performs an `Accept` may
call `choice_done` at once and perform what that returns in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from baton.wire.types import Command, Event, FinishReason, RequestSpec, Token

WorkerId = str
"""A worker as the router names it: its address. Opaque to the coordinator."""


class PlaceKind(StrEnum):
    """PAIR: decode and prefill under a new lease. PREFILL: another prefill for the lease that decode still holds.
    ALONE: one token remains, a prefill without decode under a new lease."""

    PAIR = "pair"
    PREFILL = "prefill"
    ALONE = "alone"


@dataclass(frozen=True, slots=True)
class Place:
    """Find workers, then call `placed`. It may wait in the router's queue; a later Place, Done or Fail voids it.

    `exclude`: workers that failed this request; avoid them while others exist. `num_cached`: positions that decode holds
    already (PREFILL only; decode is `Coordinator.decode`).
    """

    kind: PlaceKind
    exclude: frozenset[WorkerId] = frozenset()
    num_cached: int = 0


@dataclass(frozen=True, slots=True)
class Requeue:
    """`worker` refused to reserve (`no_blocks`, `busy`, `draining`). The Place that follows goes to the head of the queue and
    waits until a load report says otherwise. Not an attempt."""

    reason: str
    worker: WorkerId


@dataclass(frozen=True, slots=True)
class Send:
    """Put `command` on the link to `worker`: attach the lease there before a start, detach it after an End."""

    worker: WorkerId
    command: Command


@dataclass(frozen=True, slots=True)
class Accept:
    """`token` is output token `index` of `choice`, now fixed for good. Skip it if the choice is done."""

    choice: int
    index: int
    token: Token


@dataclass(frozen=True, slots=True)
class Propose:
    """A worker holds that `choice` ended with its last accepted token. If the router's text does not say so too, the
    choice ends here with `reason`: the worker has freed its blocks and no more tokens come. Skip it if the choice is done."""

    choice: int
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Replay:
    """Give `event` back to `Coordinator.event`: it was held during a fence, and its epoch turned out to be committed."""

    source: WorkerId
    event: Event


@dataclass(frozen=True, slots=True)
class Split:
    """These choices leave this coordinator: run each spec in one of its own, made with `attempt` and `exclude`.

    Each spec has one choice and its accepted ids as `output_ids`.
    """

    specs: tuple[RequestSpec, ...]
    attempt: int
    exclude: frozenset[WorkerId]


@dataclass(frozen=True, slots=True)
class Fail:
    """The ending with an error. `retryable`: attempts are used up (503); else the request itself is at fault, or we are."""

    reason: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class Done:
    """The ending without an error: every choice of this coordinator is done, split off, or cancelled."""


Action = Place | Requeue | Send | Accept | Propose | Replay | Split | Fail | Done
