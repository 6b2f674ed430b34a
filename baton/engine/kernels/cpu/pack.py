"""Weights in the panels of csrc/abi.h: 16 outputs side by side, so that one vector register serves 16 sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from baton.engine.kernels.cpu.abi import Linear, pointer
from baton.engine.kernels.interface import Dense, Weight

LANES = 16
GROUP = 32


@dataclass(frozen=True)
class Packed:
    """A packed weight: the struct for C and the tensors that it points into."""

    struct: Linear
    codes: torch.Tensor
    scales: torch.Tensor | None
    bias: torch.Tensor | None

    @property
    def num_bytes(self) -> int:
        return self.codes.nbytes + (self.scales.nbytes if self.scales is not None else 0)


def pack(weight: Weight, bias: torch.Tensor | None = None) -> Packed:
    """Packs `weight` [out, in] without changing a value. `bias` float32 [out] is added after the product."""
    bias = None if bias is None else bias.float().contiguous()
    if isinstance(weight, Dense):
        values = _panels(weight.data.float().numpy()).transpose(0, 2, 1)
        return _finish(np.ascontiguousarray(values), None, weight.data.shape, 32, False, bias)
    codes = _pack4(weight.codes) if weight.bits == 4 else _pack8(weight.codes)
    parts = [weight.scale] if weight.shift is None else [weight.scale, weight.shift]
    scales = np.stack([_panels(part).transpose(0, 2, 1) for part in parts], axis=2)
    return _finish(codes, np.ascontiguousarray(scales), weight.codes.shape, weight.bits, weight.shift is not None, bias)


def _panels(matrix: np.ndarray) -> np.ndarray:
    """[out, width] -> [out / 16, 16, width], rows of zeros at the end."""
    rows = -len(matrix) % LANES
    padded = np.concatenate([matrix, np.zeros((rows, matrix.shape[1]), matrix.dtype)]) if rows else matrix
    return padded.reshape(-1, LANES, matrix.shape[1])


def _pack4(codes: np.ndarray) -> np.ndarray:
    """Quads 2p and 2p + 1 of a group share the bytes of piece p: low and high nibble."""
    panels = _panels(codes).reshape(-1, LANES, codes.shape[1] // GROUP, 4, 2, 4)
    quads = panels.transpose(0, 2, 3, 4, 1, 5)
    return np.ascontiguousarray(quads[:, :, :, 0] | (quads[:, :, :, 1] << 4), dtype=np.uint8)


def _pack8(codes: np.ndarray) -> np.ndarray:
    """Codes -128..127 are stored + 128: the products take unsigned times signed."""
    shifted = _panels((codes.astype(np.int16) + 128).astype(np.uint8))
    return np.ascontiguousarray(shifted.reshape(-1, LANES, codes.shape[1] // GROUP, 8, 4).transpose(0, 2, 3, 1, 4))


def _finish(
    codes: np.ndarray, scales: np.ndarray | None, shape: tuple[int, ...], bits: int, has_shift: bool, bias: torch.Tensor | None
) -> Packed:
    held = torch.from_numpy(codes.reshape(-1))
    held_scales = None if scales is None else torch.from_numpy(scales.reshape(-1))
    struct = Linear(pointer(held), pointer(held_scales), pointer(bias), shape[0], shape[1], bits, int(has_shift))
    return Packed(struct, held, held_scales, bias)
