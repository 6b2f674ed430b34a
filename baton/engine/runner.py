"""What a model is to the engine, and a plan's work as the tensors of its forward pass."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Any, Protocol

import numpy as np
import torch

from baton.engine.kernels.interface import StepBatch
from baton.engine.kv_pool import KvPool
from baton.engine.scheduler import Work


class Shape(Protocol):
    """What the engine must know of a model's shape."""

    @property
    def num_layers(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_model_len(self) -> int: ...


class Model(Protocol):
    """A model as the engine runs it."""

    @property
    def spec(self) -> Shape: ...

    def forward(self, batch: StepBatch, pool: torch.Tensor) -> torch.Tensor:
        """Writes K and V of every row into `pool`; returns logits float32 `[len(batch.logit_rows), vocab_size]`."""
        ...


@torch.inference_mode()
def run(model: Model, works: Many[Work], pool: KvPool) -> torch.Tensor:
    """One step of `model` over `works`: logits of each sequence that it brings to its end, in the order of `works`."""
    return model.forward(build_batch(works, pool.layout.block_size), pool.tensor)


def build_batch(works: Many[Work], block_size: int) -> StepBatch:
    """One ragged step: the rows of `works` in order, logits wanted for each whose last position is computed by it."""
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    query_start, seq_lens, logit_rows = [0], [], []
    for work in works:
        sequence, start = work.sequence, work.sequence.num_computed
        end = start + work.num_tokens
        block_ids = sequence.block_ids
        token_ids += sequence.ids[start:end]
        positions += range(start, end)
        slots += [block_ids[at // block_size] * block_size + at % block_size for at in range(start, end)]
        query_start.append(len(token_ids))
        seq_lens.append(end)
        if end == len(sequence.ids):
            logit_rows.append(len(token_ids) - 1)
    return StepBatch(
        token_ids=_tensor(token_ids, np.int64),
        positions=_tensor(positions, np.int64),
        slots=_tensor(slots, np.int64),
        block_tables=_block_tables(works),
        query_start=_tensor(query_start, np.int32),
        seq_lens=_tensor(seq_lens, np.int32),
        logit_rows=_tensor(logit_rows, np.int64),
    )


def _tensor(values: list[int], dtype: type[np.integer[Any]]) -> torch.Tensor:
    return torch.from_numpy(np.array(values, dtype))  # a quarter of what torch.tensor takes for a few numbers


def _block_tables(works: Many[Work]) -> torch.Tensor:
    tables = [work.sequence.table for work in works]
    if len(tables) == 1:
        return torch.from_numpy(tables[0][None])
    padded = np.zeros((len(tables), max(map(len, tables))), np.int32)
    for row, table in zip(padded, tables, strict=True):
        row[: len(table)] = table
    return torch.from_numpy(padded)
