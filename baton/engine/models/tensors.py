"""Where a decoder's tensors come from, and how several become one matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from baton.engine.kernels.interface import Dense, Grouped, Weight

__all__ = ["Dense", "Grouped", "TensorSource", "Weight", "stack", "to_dense"]

GROUP_SIZE = 32


class TensorSource(Protocol):
    """Named tensors of an opened checkpoint, by their Hugging Face names."""

    def matrix(self, name: str, rows: int, columns: int) -> Weight:
        """A weight matrix as the file has it. Raises ModelError naming the tensor if it is missing or of another shape."""
        ...

    def vector(self, name: str, size: int) -> torch.Tensor:
        """A norm's weight or a bias, float32. Raises ModelError as `matrix` does."""
        ...


def to_dense(weight: Grouped) -> torch.Tensor:
    """The values that the codes stand for, float32 `[out, in]`: code * scale + shift, product and sum each rounded once."""
    rows, columns = weight.codes.shape
    values = weight.codes.reshape(rows, columns // GROUP_SIZE, GROUP_SIZE).astype(np.float32)
    values *= weight.scale.astype(np.float32)[:, :, None]
    if weight.shift is not None:
        values += weight.shift.astype(np.float32)[:, :, None]
    return torch.from_numpy(values.reshape(rows, columns))


def stack(weights: Sequence[Weight]) -> Weight:
    """Matrices that read the same input, one above the other. Formats that differ meet in float32."""
    if len(weights) == 1:
        return weights[0]
    groups = [weight for weight in weights if isinstance(weight, Grouped)]
    if len(groups) == len(weights) and len({(group.bits, group.shift is None) for group in groups}) == 1:
        return _stack_groups(groups)
    dense = [weight.data if isinstance(weight, Dense) else to_dense(weight) for weight in weights]
    dtypes = {data.dtype for data in dense}
    shared = dtypes.pop() if len(dtypes) == 1 else torch.float32
    return Dense(torch.cat([data.to(shared) for data in dense]))


def _stack_groups(groups: Sequence[Grouped]) -> Grouped:
    shifts = [group.shift for group in groups if group.shift is not None]
    return Grouped(
        codes=np.concatenate([group.codes for group in groups]),
        scale=np.concatenate([group.scale for group in groups]),
        shift=np.concatenate(shifts) if shifts else None,
        bits=groups[0].bits,
    )
