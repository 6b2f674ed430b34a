"""KV transfer, prefill to decode."""

from __future__ import annotations

from dataclasses import dataclass

from baton.wire.types.model import Capabilities, Identity, Incarnation, LeaseId
from baton.wire.types.request import FirstToken


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
class KvEndpoint:
    """Where a receiver listens for one transport. `address` is the transport's own; empty: the worker's internal port."""

    transport: str
    address: str = ""
