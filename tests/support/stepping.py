"""A model run by hand: one sequence at a time over a pool whose blocks are deliberately out of order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from baton.engine.kernels.interface import StepBatch
from baton.engine.weights.backend import AnyDecoder


@dataclass(frozen=True)
class Piece:
    """Rows of one step: the next `ids` of the sequence that owns `blocks` and has `start` positions already."""

    blocks: Sequence[int]
    start: int
    ids: Sequence[int]


def new_pool(model: AnyDecoder, num_blocks: int, block_size: int = 16) -> torch.Tensor:
    """Filled with what must never be read."""
    spec = model.spec
    return torch.full((num_blocks, spec.num_layers, 2, block_size, spec.num_kv_heads, spec.head_dim), torch.nan)


def step(model: AnyDecoder, pool: torch.Tensor, *pieces: Piece) -> list[torch.Tensor]:
    """Logits of every row, piece by piece."""
    block_size = pool.shape[3]
    positions = [torch.arange(piece.start, piece.start + len(piece.ids)) for piece in pieces]
    widest = max(len(piece.blocks) for piece in pieces)
    tables = torch.zeros(len(pieces), widest, dtype=torch.int32)
    for row, piece in enumerate(pieces):
        tables[row, : len(piece.blocks)] = torch.tensor(piece.blocks)
    slots = [tables[row][at // block_size].long() * block_size + at % block_size for row, at in enumerate(positions)]
    lengths = [len(piece.ids) for piece in pieces]
    batch = StepBatch(
        token_ids=torch.tensor([token for piece in pieces for token in piece.ids]),
        positions=torch.cat(positions),
        slots=torch.cat(slots),
        block_tables=tables,
        query_start=torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32),
        seq_lens=torch.tensor([piece.start + len(piece.ids) for piece in pieces], dtype=torch.int32),
        logit_rows=torch.arange(sum(lengths)),
    )
    return list(model.forward(batch, pool).split(lengths))


def logits(model: AnyDecoder, ids: Sequence[int], chunk: int | None = None, block_size: int = 16) -> torch.Tensor:
    """Logits of every position, computed in chunks of `chunk` tokens."""
    blocks = list(reversed(range(-(-len(ids) // block_size))))
    pool = new_pool(model, len(blocks), block_size)
    chunk = chunk or len(ids)
    starts = range(0, len(ids), chunk)
    return torch.cat([step(model, pool, Piece(blocks, start, ids[start : start + chunk]))[0] for start in starts])


def greedy(model: AnyDecoder, ids: Sequence[int], num_tokens: int) -> list[int]:
    """The most likely tokens after `ids`, one decode step each."""
    blocks = list(reversed(range(-(-(len(ids) + num_tokens) // 16))))
    pool = new_pool(model, len(blocks))
    chosen = [int(step(model, pool, Piece(blocks, 0, ids))[0][-1].argmax())]
    for start in range(len(ids), len(ids) + num_tokens - 1):
        chosen.append(int(step(model, pool, Piece(blocks, start, chosen[-1:]))[0][-1].argmax()))
    return chosen
