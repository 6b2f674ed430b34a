"""Plain torch in float32: the backend that runs anywhere and that every other one is held against."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from baton.engine.kernels.interface import Dense, StepBatch, Weight
from baton.engine.models.tensors import to_dense


class ReferenceKernels:
    """Weights are packed to dense float32. A row's result depends on other rows only by the rounding of torch's matmul."""

    name = "torch"
    recipe = "float32"

    def pack(self, weight: Weight) -> torch.Tensor:
        """Float32, contiguous, in memory of its own (a file may lie under the weight's)."""
        if isinstance(weight, Dense):
            return weight.data.to(torch.float32, copy=True).contiguous()
        return to_dense(weight)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return F.linear(x, weight, bias)

    def embed(self, ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, weight)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, eps)

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
        num_blocks, num_layers, _, block_size, num_kv_heads, head_dim = pool.shape
        rotated = _rotate(torch.cat((q, k), dim=1), cos[:, None], sin[:, None])
        # Pool rows of one token: block, layer, K or V, offset. A slot is block * block_size + offset.
        blocks = slots.div(block_size, rounding_mode="floor")
        k_rows = slots + blocks * (block_size * (2 * num_layers - 1)) + layer * 2 * block_size
        rows = pool.view(num_blocks * num_layers * 2 * block_size, num_kv_heads, head_dim)
        rows.index_copy_(0, k_rows, rotated[:, q.shape[1] :].to(pool.dtype))
        rows.index_copy_(0, k_rows + block_size, v.to(pool.dtype))
        return rotated[:, : q.shape[1]]

    def attention(
        self, q: torch.Tensor, pool: torch.Tensor, layer: int, batch: StepBatch, scale: float, window: int | None
    ) -> torch.Tensor:
        num_blocks, num_layers, _, block_size, num_kv_heads, head_dim = pool.shape
        halves = pool.view(num_blocks * num_layers * 2, block_size, num_kv_heads, head_dim)
        mixed = torch.empty(q.shape)
        for span in _spans(batch, pool, window):
            kv = halves.index_select(0, span.halves[layer]).float().view(2, -1, num_kv_heads, head_dim)
            k, v = kv[:, span.start : span.end].unbind()
            if span.num_rows == 1:
                _attend_row(q[span.first_row], k, v, scale, mixed[span.first_row])
            else:
                rows = slice(span.first_row, span.first_row + span.num_rows)
                mixed[rows] = _attend_chunk(q[rows], k, v, scale, span.mask)
        return mixed

    def silu_gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


@dataclass(frozen=True, slots=True)
class _Span:
    """One sequence of a step: its rows, and the positions that they see, within the gathered blocks."""

    first_row: int
    num_rows: int
    halves: torch.Tensor  # int64 [num_layers, 2 * blocks]: the pool's halves with K, then those with V
    start: int
    end: int
    mask: torch.Tensor | None  # [num_rows, end - start] to add to the scores of a chunk; None: plainly causal, or one row


def _spans(batch: StepBatch, pool: torch.Tensor, window: int | None) -> list[_Span]:
    key = ("spans", window)
    if key not in batch.notes:
        edges = batch.query_start.tolist()
        rows = zip(edges, edges[1:], batch.seq_lens.tolist(), batch.block_tables, strict=False)
        batch.notes[key] = [_span(*sequence, pool, window) for sequence in rows]
    spans: list[_Span] = batch.notes[key]
    return spans


def _span(first_row: int, row_end: int, seq_len: int, table: torch.Tensor, pool: torch.Tensor, window: int | None) -> _Span:
    _, num_layers, _, block_size, _, _ = pool.shape
    num_rows = row_end - first_row
    first_position = 0 if window is None else max(0, seq_len - num_rows + 1 - window)
    skipped = first_position // block_size
    blocks = table[skipped : -(-seq_len // block_size)].long()
    k_halves = blocks * (num_layers * 2) + torch.arange(0, num_layers * 2, 2)[:, None]
    start, end = first_position - skipped * block_size, seq_len - skipped * block_size
    plain = num_rows == 1 or (window is None and num_rows == seq_len)
    mask = None if plain else _mask(num_rows, seq_len - first_position, window)
    return _Span(first_row, num_rows, torch.cat((k_halves, k_halves + 1), dim=1), start, end, mask)


def _mask(num_rows: int, num_positions: int, window: int | None) -> torch.Tensor:
    """0 where a row may look and -inf elsewhere, for the last `num_rows` of `num_positions`."""
    behind = torch.arange(num_positions - num_rows, num_positions)[:, None] - torch.arange(num_positions)
    hidden = behind < 0 if window is None else (behind < 0) | (behind >= window)
    return torch.zeros(num_rows, num_positions).masked_fill_(hidden, -torch.inf)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def _attend_row(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, out: torch.Tensor) -> None:
    """q, out `[H, D]`; k, v `[N, G, D]`. Matmuls per KV head: torch's own attention is slow for one grouped query."""
    grouped = (k.shape[1], -1, k.shape[2])
    weights = torch.bmm(q.reshape(grouped), k.permute(1, 2, 0)).mul_(scale).softmax(dim=-1)
    torch.bmm(weights, v.transpose(0, 1), out=out.view(grouped))


def _attend_chunk(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, mask: torch.Tensor | None) -> torch.Tensor:
    """q `[T, H, D]`; k, v `[N, G, D]`; without a mask T == N."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True)
    return mixed[0].transpose(0, 1)
