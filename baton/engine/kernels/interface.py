"""The kernel interface: what a model's forward pass asks of a backend. `reference.py` is plain torch and always right.

Shapes: T tokens of a ragged step over S sequences; H query heads, G KV heads (H % G == 0), D head_dim.
The pool is `[num_blocks, num_layers, 2, block_size, G, D]`; a slot is `block_id * block_size + offset`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch


@dataclass(frozen=True)
class Dense:
    """A weight matrix `[out, in]` (or `[rows, dim]` for an embedding) in a float dtype."""

    data: torch.Tensor


@dataclass(frozen=True)
class Grouped:
    """A weight matrix `[out, in]` of 4- or 8-bit codes in groups of 32 along `in`, as the file has them.

    value = code * scale + shift. `codes` uint8 `[out, in]` for 4 bits (0..15), int8 for 8 bits; `scale` float16
    `[out, in / 32]`; `shift` float16 of the same shape, or None for a symmetric format (Q8_0).
    """

    codes: np.ndarray
    scale: np.ndarray
    shift: np.ndarray | None
    bits: int


Weight = Dense | Grouped


@dataclass
class StepBatch:
    """One ragged step. Sequence s owns rows `query_start[s]:query_start[s + 1]`, the last of its `seq_lens[s]` positions."""

    token_ids: torch.Tensor  # int64 [T]
    positions: torch.Tensor  # int64 [T]
    slots: torch.Tensor  # int64 [T], where each token's K and V go
    block_tables: torch.Tensor  # int32 [S, max_blocks], padded with 0
    query_start: torch.Tensor  # int32 [S + 1]
    seq_lens: torch.Tensor  # int32 [S], positions after this step
    logit_rows: torch.Tensor  # int64 [R], rows whose logits are wanted
    notes: dict[Any, Any] = field(default_factory=dict)  # what a backend worked out for this step, kept from layer to layer


class Kernels(Protocol):
    """One backend. Row results must not depend on the other rows beyond the backend's stated recipe."""

    name: str
    recipe: str

    def pack(self, weight: Weight) -> Any:
        """A weight in the layout that `linear` wants. Several may be stacked along `out` by the caller first."""
        ...

    def linear(self, x: torch.Tensor, weight: Any, bias: torch.Tensor | None = None) -> torch.Tensor:
        """`x` float32 [rows, in] times a packed weight: float32 [rows, out]."""
        ...

    def embed(self, ids: torch.Tensor, weight: Any) -> torch.Tensor:
        """Rows of an embedding packed by `pack` (it may be the tied head): float32 [T, dim]."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x * rsqrt(mean(x^2) + eps) * weight, per row."""
        ...

    def rotary_write(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        slots: torch.Tensor,
        pool: torch.Tensor,
        layer: int,
    ) -> torch.Tensor:
        """Rotates q [T, H, D] and k [T, G, D] (half-split pairs; cos, sin [T, D / 2]), writes k and v to `pool`; returns q."""
        ...

    def attention(
        self, q: torch.Tensor, pool: torch.Tensor, layer: int, batch: StepBatch, scale: float, window: int | None
    ) -> torch.Tensor:
        """Causal attention of q [T, H, D] over the block tables: [T, H, D]. `window`: only the last `window` positions."""
        ...

    def silu_gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(first half) * second half of each row: [T, 2 * F] -> [T, F]."""
        ...
