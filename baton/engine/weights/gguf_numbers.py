"""GGUF's number formats as weights: floats as torch tensors, groups of 32 codes as Grouped, all rows at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind

from baton.engine.kernels.interface import Dense, Grouped, Weight

GROUP_SIZE = 32

Shape = tuple[int, ...]


def read_weight(kind: Kind, shape: Shape, data: np.ndarray) -> Weight:
    """`data`: the tensor's bytes, whose size has been checked. The result owns its memory."""
    return _READERS[kind](shape, data)


def take_rows(weight: Weight, order: np.ndarray) -> Weight:
    """The same rows in another order."""
    if isinstance(weight, Dense):
        return Dense(weight.data[torch.from_numpy(order)])
    shift = None if weight.shift is None else weight.shift[order]
    return Grouped(weight.codes[order], weight.scale[order], shift, weight.bits)


def _floats(dtype: torch.dtype) -> Callable[[Shape, np.ndarray], Weight]:
    def read(shape: Shape, data: np.ndarray) -> Weight:
        return Dense(torch.from_numpy(data.copy()).view(dtype).view(shape))

    return read


def _q8_0(shape: Shape, data: np.ndarray) -> Weight:
    """A group: float16 scale, 32 signed bytes."""
    groups = data.reshape(-1, 2 + GROUP_SIZE)
    return Grouped(_codes(groups[:, 2:].view(np.int8), shape), _halves(groups, 0, shape), None, bits=8)


def _q4_1(shape: Shape, data: np.ndarray) -> Weight:
    """A group: float16 scale and shift, 16 bytes of which the low halves are the first 16 codes."""
    groups = data.reshape(-1, 4 + GROUP_SIZE // 2)
    packed = groups[:, 4:]
    codes = np.concatenate((packed & 0x0F, packed >> 4), axis=1)
    return Grouped(_codes(codes, shape), _halves(groups, 0, shape), _halves(groups, 2, shape), bits=4)


def _codes(codes: np.ndarray, shape: Shape) -> np.ndarray:
    return np.ascontiguousarray(codes).reshape(shape)


def _halves(groups: np.ndarray, start: int, shape: Shape) -> np.ndarray:
    """The float16 at byte `start` of each group, as `[..., groups a row]`."""
    values = np.ascontiguousarray(groups[:, start : start + 2]).view(np.float16)
    return values.reshape(*shape[:-1], shape[-1] // GROUP_SIZE)


_READERS: dict[Kind, Callable[[Shape, np.ndarray], Weight]] = {
    Kind.F32: _floats(torch.float32),
    Kind.F16: _floats(torch.float16),
    Kind.BF16: _floats(torch.bfloat16),
    Kind.Q4_1: _q4_1,
    Kind.Q8_0: _q8_0,
}

SERVED = tuple(_READERS)
