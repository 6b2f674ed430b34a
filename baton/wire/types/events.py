"""Worker to router: events of leases. The link adds the worker's load."""

from __future__ import annotations

from dataclasses import dataclass

from baton.wire.types.model import LeaseId
from baton.wire.types.request import FinishReason, FirstToken, Token


@dataclass(frozen=True, slots=True)
class Spans:
    """A worker's part of the timeline. Durations in seconds, each measured within one process; 0 where not known."""

    queue_s: float = 0.0
    compute_s: float = 0.0
    transfer_s: float = 0.0
    hidden_s: float = 0.0
    transfer_bytes: int = 0
    num_cached: int = 0
    num_computed: int = 0
    transport: str = ""


@dataclass(frozen=True, slots=True)
class Reserved:
    """Decode holds every block of the request; its own cache covers the first `num_cached` positions (pinned)."""

    lease: LeaseId
    epoch: int
    num_cached: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Decode holds nothing (`no_blocks`, `busy`, `draining`), or refused a commit (any other reason)."""

    lease: LeaseId
    epoch: int
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Output tokens `index`, `index + 1`, ... of one choice."""

    lease: LeaseId
    epoch: int
    choice: int
    index: int
    tokens: tuple[Token, ...]
    spans: Spans | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """A worker proposes the end of a choice after `num_tokens` output tokens; its blocks there are freed."""

    lease: LeaseId
    epoch: int
    choice: int
    reason: FinishReason
    num_tokens: int
    spans: Spans | None = None


@dataclass(frozen=True, slots=True)
class HandedOff:
    """Prefill's commit was answered ok (or nothing was to commit); its blocks are unpinned."""

    lease: LeaseId
    epoch: int
    spans: Spans | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt failed here. `retryable`: another attempt may succeed; else the request itself is at fault."""

    lease: LeaseId
    epoch: int
    reason: str
    message: str = ""
    retryable: bool = True


@dataclass(frozen=True, slots=True)
class Fenced:
    """Decode now takes only `epoch`; of the KV received before only the pinned cached prefix stays."""

    lease: LeaseId
    epoch: int
    num_cached: int


@dataclass(frozen=True, slots=True)
class Committed:
    """Decode had taken the commit of `epoch` already: nothing to retry."""

    lease: LeaseId
    epoch: int
    index: int
    first: tuple[FirstToken, ...]


@dataclass(frozen=True, slots=True)
class Gone:
    """Decode does not know the lease: take the decode-death path."""

    lease: LeaseId
    epoch: int


@dataclass(frozen=True, slots=True)
class Preempted:
    """Decode gave the choice's blocks back for want of room; what it sampled before stands."""

    lease: LeaseId
    epoch: int
    choice: int


Event = Reserved | Refused | Tokens | Finished | HandedOff | Failed | Fenced | Committed | Gone | Preempted
