"""The engine's face to a node: what it is asked and what it tells. Everything here is safe to use from asyncio."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from baton.wire.types import FinishReason, FirstToken, Identity, KvLayout, ModelCard, RequestSpec, Token

Handle = int
"""Names one request inside one engine; never reused in a process life."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Blocks promised to a request: `block_ids` cover at least [0, spec.total_len), the first `num_cached` positions are valid.

    Owned by the caller until `activate` or `release`. `block_ids[: num_cached // block_size]` are shared cache blocks (pinned,
    never written); the rest belong to this request alone.
    """

    handle: Handle
    block_ids: tuple[int, ...]
    num_cached: int


@dataclass(frozen=True, slots=True)
class Computed:
    """KV of [0, num_tokens) is in the request's blocks (cached positions included). Emitted per chunk, while computing."""

    handle: Handle
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """One new token of one choice; `finish` set if it ends the choice (then freed, if the engine decodes it)."""

    handle: Handle
    choice: int
    index: int
    token: Token
    finish: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Evicted:
    """A running choice lost its blocks for want of room (decode-only engines); its record stands until `release`."""

    handle: Handle
    choice: int


@dataclass(frozen=True, slots=True)
class Broken:
    """The request failed inside the engine. Its blocks are freed on `release`.

    `request_fault`: what it asks for cannot be had, and another engine would say the same; else a step or the engine failed,
    and the request may be tried elsewhere.
    """

    handle: Handle
    message: str
    request_fault: bool


@dataclass(frozen=True, slots=True)
class Started:
    """The request left the engine's queue: its first chunk or first decode step begins. `num_cached` from the prefix cache."""

    handle: Handle
    queue_s: float
    num_cached: int


EngineEvent = Started | Computed | Sampled | Evicted | Broken


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Gauges and counters, read between steps. Blocks kept only as prefix cache are not in use."""

    num_running: int = 0
    num_waiting: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    kv_blocks_cached: int = 0
    queued_prefill_tokens: int = 0
    prompt_tokens_total: int = 0
    generated_tokens_total: int = 0
    prefix_hit_tokens_total: int = 0
    prefix_query_tokens_total: int = 0
    preemptions_total: int = 0
    aborted_total: int = 0
    last_step_s: float = 0.0


class NoRoom(Exception):
    """The pool cannot hold the request now (`reason` "no_blocks"), or no slot is free ("busy")."""

    def __init__(self, reason: str, message: str = ""):
        super().__init__(message or reason)
        self.reason = reason


class EngineStopped(Exception):
    """The engine has stopped, or failed as a whole: it takes no more requests."""


class EngineFailure(Exception):
    """A Broken event, for whoever awaits its request."""

    def __init__(self, broken: Broken):
        super().__init__(broken.message)
        self.retryable = not broken.request_fault


class BlockStore(Protocol):
    """The pool as a transfer sees it (kvtransfer/store.py has the same Protocol; neither side imports the other).

    `block_ids` is a request's block table; positions are absolute. Wire order: layer, K then V, token, head, dim.
    """

    @property
    def layout(self) -> KvLayout: ...

    def gather(
        self, block_ids: Sequence[int], token_start: int, token_end: int, layer_start: int, layer_end: int
    ) -> memoryview:
        """Bytes of a run of tokens within one block; zero-copy where the run is contiguous, else a fresh buffer."""
        ...

    def scatter(
        self, block_ids: Sequence[int], token_start: int, token_end: int, layer_start: int, layer_end: int, payload: memoryview
    ) -> None:
        """Writes wire-order bytes to a run of tokens, which may cross blocks of this pool. ValueError if the size is wrong."""
        ...


class Engine(Protocol):
    """One engine over one pool, stepping on its own thread. `on_events` is called on the asyncio loop, once per step.

    Whoever awaits `prefill`, `generate` or `reserve` directly (not through another task) runs before the first event of that
    handle is delivered. If the await is cancelled, the engine releases the request itself. Besides NoRoom, these raise
    ValueError for ids or lengths that the model cannot take. Once the engine is gone, every call but `release` raises
    EngineStopped.
    """

    card: ModelCard
    identity: Identity
    store: BlockStore

    async def start(self, on_events: Callable[[Sequence[EngineEvent]], None]) -> None: ...

    async def stop(self) -> None: ...

    async def failed(self) -> str:
        """Waits, without bound, for the engine to fail as a whole, and returns why: its process is of no more use. Every
        request has its Broken event by then. To be called after `start`; `stop` is not a failure."""
        ...

    async def prefill(self, spec: RequestSpec) -> Reservation:
        """Queues a prefill-only request: Computed events as chunks finish, then one Sampled per choice (index
        len(spec.output_ids)). Its blocks stay pinned after that until `release`. The block table is final on return.
        Raises NoRoom."""
        ...

    async def generate(self, spec: RequestSpec) -> Reservation:
        """Queues a request that this engine prefills and decodes itself (both roles). Raises NoRoom."""
        ...

    async def reserve(self, spec: RequestSpec) -> Reservation:
        """All or nothing: blocks for the prompt and a promise of min(max_tokens, growth reserve) more tokens per choice.
        Raises NoRoom."""
        ...

    async def activate(self, handle: Handle, spec: RequestSpec, first: Sequence[FirstToken]) -> None:
        """KV of [0, spec.total_len) is in the reserved blocks: publish them as prefix cache and join the running batch, each
        unfinished choice continuing after its first token. `spec.output_ids` may be a few longer than at `reserve` (after
        fences; as long as the block table covers them). ValueError if the reservation does not fit."""
        ...

    async def finish(self, handle: Handle, choice: int) -> None:
        """Stops one choice early (its stop string was found); frees its blocks."""
        ...

    async def release(self, handle: Handle) -> None:
        """Ends the request in whatever state, frees or unpins all its blocks. Idempotent."""
        ...

    def stats(self) -> EngineStats: ...
