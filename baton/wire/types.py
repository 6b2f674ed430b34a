"""What crosses a process, as frozen types. No imports but the standard library: every package may use these.

Tokens and blocks are counted, never timed: durations are seconds (float), sent as durations and never as times of day.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

LeaseId = bytes
"""16 random bytes drawn by the router: one request's right to a reservation at one decode worker."""

Incarnation = bytes
"""16 random bytes drawn at start: one life of a router or worker process."""

PROTOCOL_VERSION = 1
MIN_PROTOCOL_VERSION = 1


class Role(StrEnum):
    """What a worker process offers. BOTH serves prefill and decode over one engine."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"

    @property
    def prefills(self) -> bool:
        return self is not Role.DECODE

    @property
    def decodes(self) -> bool:
        return self is not Role.PREFILL


class FinishReason(StrEnum):
    """Why a choice ended. A worker proposes STOP (end token, stop id) or LENGTH; the router decides."""

    STOP = "stop"
    LENGTH = "length"


# --- model ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Identity:
    """What must be equal on both sides of a handoff. A mismatch names the field and both values."""

    architecture: str
    weights_digest: str
    quantisation: str
    recipe: str
    rope: str
    tokenizer_digest: str
    template_digest: str
    max_model_len: int


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Shape of one block: `[num_layers, 2, block_size, num_kv_heads, head_dim]` of `dtype`, contiguous."""

    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: str  # "float32" | "bfloat16" | "float16"

    @property
    def item_bytes(self) -> int:
        return 4 if self.dtype == "float32" else 2

    @property
    def row_bytes(self) -> int:
        """Bytes of one token of K (or of V) in one layer."""
        return self.num_kv_heads * self.head_dim * self.item_bytes

    @property
    def token_bytes(self) -> int:
        """Bytes of one token over all layers, K and V."""
        return self.num_layers * 2 * self.row_bytes

    @property
    def block_bytes(self) -> int:
        return self.block_size * self.token_bytes


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a pair of workers negotiates. `transports` in order of preference."""

    layout: KvLayout
    transports: tuple[str, ...] = ("grpc",)
    protocol: int = PROTOCOL_VERSION
    min_protocol: int = MIN_PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class ModelCard:
    """All that a router needs of a model, sent when a link opens: a router has no model files.

    `tokenizer_json` is the text of a Hugging Face `tokenizer.json`. `eos_ids` end a generation unless `ignore_eos`.
    `special_ids` are control tokens: never printed, never produced from user text. `add_bos` says whether plain text gets
    the BOS token in front (a chat template writes its own).
    """

    name: str
    tokenizer_json: str
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    eos_ids: tuple[int, ...]
    special_ids: tuple[int, ...]
    add_bos: bool
    vocab_size: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Who a worker is, said when a link opens. `capacity_tokens`: KV tokens its whole pool holds."""

    incarnation: Incarnation
    role: Role
    identity: Identity
    capabilities: Capabilities
    card: ModelCard
    capacity_tokens: int
    max_num_seqs: int


# --- a request ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Complete sampling state apart from ids: every field decided by the router's validator, none optional later.

    `max_tokens` counts output tokens of one choice, output_ids included. `top_k` 0 and `top_p` 1 are off. Presence and
    frequency penalties count output ids only, repetition_penalty prompt and output ids. `num_logprobs` None: none wanted;
    0: the chosen token only. Noise is keyed by (seed, choice, output index, token id). `stop_ids` end a choice like `eos_ids`,
    also under `ignore_eos`; both are masked while fewer than `min_tokens` output tokens exist.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    min_tokens: int = 0
    ignore_eos: bool = False
    eos_ids: tuple[int, ...] = ()
    stop_ids: tuple[int, ...] = ()
    num_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """One request as a worker sees it: the whole generation state.

    `output_ids` are accepted tokens (recovery); the next output index is `len(output_ids)`, and only a single choice may
    have any. `choices` are choice numbers, (0, ..., n - 1) or one survivor. `deadline_s`: seconds left for the request.
    """

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    choices: tuple[int, ...] = (0,)
    output_ids: tuple[int, ...] = ()
    tenant: str = ""
    deadline_s: float = 600.0

    @property
    def total_len(self) -> int:
        """Positions whose KV must exist before the next token is sampled."""
        return len(self.prompt_ids) + len(self.output_ids)


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token. `logprob` and `top` (id, logprob; best first) only if asked for, of the raw distribution."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class FirstToken:
    """A choice's first token, sampled on prefill; `finish` set when it already ends the choice."""

    choice: int
    token: Token
    finish: FinishReason | None = None


# --- router -> worker --------------------------------------------------------------------------------------------


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


# --- worker -> router --------------------------------------------------------------------------------------------


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


# --- the link ----------------------------------------------------------------------------------------------------


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


# --- KV transfer (prefill -> decode) -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KvHello:
    """Opens a sender's channel; the receiver refuses one that is not for this incarnation or differs in identity."""

    sender: Incarnation
    receiver: Incarnation
    identity: Identity
    capabilities: Capabilities


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """A run of tokens [token_start, token_end) over layers [layer_start, layer_end), out of one source block.

    Payload order is the pool's: layer, K then V, token, head, dim. `sequence` counts the attempt's frames from 0.
    `digest` is xxh3-64 over the header's other fields (see kvtransfer/frames.py) and the payload.
    """

    lease: LeaseId
    epoch: int
    sequence: int
    token_start: int
    token_end: int
    layer_start: int
    layer_end: int
    digest: int = 0


@dataclass(frozen=True, slots=True)
class Commit:
    """Ends an attempt's transfer: exact cover [cover_start, cover_end) over all layers, and the first tokens.

    `index` is the first tokens' output index. `digest` is xxh3-64 over the frames' digests (8 bytes each, little-endian)
    in sequence order.
    """

    lease: LeaseId
    epoch: int
    index: int
    first: tuple[FirstToken, ...]
    cover_start: int
    cover_end: int
    num_layers: int
    num_frames: int
    digest: int


@dataclass(frozen=True, slots=True)
class KvAnswer:
    """Receiver -> sender: the commit's answer (`ok`), or a refusal of the attempt with its reason at any time."""

    lease: LeaseId
    epoch: int
    ok: bool
    reason: str = ""


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
