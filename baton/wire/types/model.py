"""Who a process is and what it serves: roles, identity, capabilities, the model card."""

from __future__ import annotations

from dataclasses import dataclass
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
