"""Which decoder serves a checkpoint: C++ where it can, plain torch where it cannot."""

from __future__ import annotations

import logging
from typing import Protocol

import torch

from baton.engine.errors import KernelsUnavailable, UnsupportedModel
from baton.engine.kernels.cpu.decoder import RECIPES, NativeDecoder
from baton.engine.kernels.interface import Kernels, StepBatch
from baton.engine.kernels.reference import ReferenceKernels
from baton.engine.models import Decoder, ModelSpec
from baton.engine.models.tensors import TensorSource

log = logging.getLogger(__name__)

KV_DTYPES = {"float32": "float32", "int8": "bfloat16"}
"""The pool's dtype by the model's: what the recipe rounds K and V to."""


class AnyDecoder(Protocol):
    """What every backend's decoder offers (see models.Decoder)."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def recipe(self) -> str: ...

    def forward(self, batch: StepBatch, pool: torch.Tensor) -> torch.Tensor: ...


def decoder_for(spec: ModelSpec, tensors: TensorSource, dtype: str, kernels: Kernels | None, quantised: bool) -> AnyDecoder:
    """A decoder of `dtype` ("float32", or "int8" for a quantised checkpoint). `kernels` forces the torch decoder over them.

    Raises UnsupportedModel for a dtype that cannot be had. Without a compiler, float32 falls back to plain torch and says so.
    """
    if kernels is not None:
        return Decoder(spec, tensors, kernels)
    if dtype not in RECIPES:
        raise UnsupportedModel(f"dtype {dtype!r} is not served; served are {', '.join(RECIPES)}")
    if dtype == "int8" and not quantised:
        raise UnsupportedModel(
            "dtype int8 needs the 4- or 8-bit groups of a quantised file, and this one has none: use float32"
        )
    try:
        return NativeDecoder(spec, tensors, dtype)
    except KernelsUnavailable as error:
        if dtype != "float32":
            raise UnsupportedModel(f"dtype {dtype} needs the CPU kernels: {error}") from error
        log.warning("serving with plain torch, several times slower: %s", error)
        return Decoder(spec, tensors, ReferenceKernels())
