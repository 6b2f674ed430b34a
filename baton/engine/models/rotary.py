"""Rotary frequencies, the same numbers for every backend."""

from __future__ import annotations

import torch

from baton.engine.models.spec import ModelSpec


def frequencies(spec: ModelSpec) -> torch.Tensor:
    """Radians a position for each of the head_dim / 2 pairs, in float32 as transformers has them."""
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.int64).float() / spec.head_dim
    return 1.0 / spec.rope.theta**exponents / spec.rope.factor
