"""What an event meant for a request that has begun: how it goes on, and why an ending was an error."""

from __future__ import annotations

from collections.abc import Iterable

from baton.wire.errors import BatonError, Internal, Unavailable
from baton.wire.link_client import LinkDied
from baton.wire.types import Event, Failed, Fence, Fenced, Gone, Preempted, Refused, Reserved
from kvtransfer.protocol.actions import Action, Fail, Place, Requeue, Send, Split

RETRY_AFTER_S = 1.0

UNREACHABLE = frozenset({"connect", "stall", "stalled", "channel_lost", "pairing_refused"})
"""Reasons of a failed handoff that speak against the pair, not against one of its workers."""

REST_S = (0.0, 1.0, 2.5)
"""Between the starts of an attempt and the next, where no other pair is left: a link that is cut for a moment is outlived."""


def recovery_kind(event: Event | LinkDied, from_decode: bool, actions: Iterable[Action]) -> str | None:
    """A word for the recovery that `event` began; None: it began none. `from_decode`: its source decodes the lease."""
    if isinstance(event, Reserved | Fenced) or not _goes_on(list(actions)):
        return None
    match event:
        case Preempted():
            return "preempted"
        case LinkDied():
            return "decode_lost" if from_decode else "prefill_lost"
        case Gone():
            return "lease_gone"
        case _:
            return "decode_failed" if from_decode else "prefill_failed"


def handoff_failed(event: Event | LinkDied, actions: Iterable[Action]) -> bool:
    """Whether `event` is the first news of an attempt whose handoff failed."""
    return isinstance(event, Failed | Refused) and (_goes_on(list(actions)) or any(isinstance(one, Fail) for one in actions))


def error_of(ending: Fail) -> BatonError:
    """What the client is told."""
    if ending.retryable:
        return Unavailable(ending.message, retry_after_s=RETRY_AFTER_S)
    return Internal(f"{ending.reason}: {ending.message}")


def _goes_on(actions: list[Action]) -> bool:
    """Another attempt follows. A refused reservation is not one: nothing had begun."""
    if any(isinstance(action, Requeue) for action in actions):
        return False
    return any(isinstance(action, Place | Split) or _is_fence(action) for action in actions)


def _is_fence(action: Action) -> bool:
    return isinstance(action, Send) and isinstance(action.command, Fence)
