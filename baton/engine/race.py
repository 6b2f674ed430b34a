"""Gumbel-max without most of the noise: who wins is found exactly, and noise is computed only for those that can win.

A token wins if value + noise is the largest. Noise is a growing function of the token's hash bits, so with `score` reached by
somebody, a token `deficit` below the best value can only win with noise of at least score + deficit, that is, with hash bits
above a threshold. Hashing the vocabulary and comparing integers costs a fraction of its logarithms.

    head   the largest values, a few hundred at most: they are scored, and set `score`
    tail   the rest, all at least `depth` below the best: scored only where the bits could make up for that
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from baton.engine import noise

DEPTHS = (8.0, 4.0, 2.0, 1.0, 0.5)
HEAD_LEN = 512
_SLACK = 1e-6  # far above the rounding of a score, far below what would let many more in


def winner(row: NDArray[np.floating], token_ids: NDArray[np.int64] | None, temperature: float, draw_key: int) -> int:
    """Position in `row` of the largest (row - max) / temperature + noise, the first among equals.

    `row` [n]: logits, the maximum finite. `token_ids` [n] names its tokens; None: position i is token i.
    """
    best = float(row.max())
    if len(row) <= HEAD_LEN:
        return int(_scores(row, np.arange(len(row)), best, token_ids, temperature, draw_key).argmax())
    head, depth = _head(row, best, temperature)
    scores = _scores(row, head, best, token_ids, temperature, draw_key)
    score = float(scores.max())
    bits = noise.leading_bits(draw_key, len(row) if token_ids is None else token_ids)
    tail = np.flatnonzero(bits >= noise.least_bits(score + depth - _SLACK))
    contenders = np.unique(np.concatenate([head[scores >= score], tail]))
    return int(contenders[_scores(row, contenders, best, token_ids, temperature, draw_key).argmax()])


def _head(row: NDArray[np.floating], best: float, temperature: float) -> tuple[NDArray[np.int64], float]:
    """Positions of at most HEAD_LEN values, and how far below the best all others are at least."""
    for depth in DEPTHS:
        head = np.flatnonzero(row >= _at_most(best - depth * temperature, row.dtype))
        if len(head) <= HEAD_LEN:
            return head, depth
    return head[:HEAD_LEN], 0.0


def _scores(
    row: NDArray[np.floating],
    positions: NDArray[np.int64],
    best: float,
    token_ids: NDArray[np.int64] | None,
    temperature: float,
    draw_key: int,
) -> NDArray[np.float64]:
    ids = positions if token_ids is None else token_ids[positions]
    scores: NDArray[np.float64] = scaled(row[positions], best, temperature) + noise.gumbel(draw_key, ids)
    return scores


def scaled(values: NDArray[np.floating], best: float, temperature: float) -> NDArray[np.float64]:
    """Logits as draws see them, float64: over `temperature`, with the `best` at 0."""
    result = values.astype(np.float64)
    result -= best
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf, as it should
        result /= temperature
    return result


def _at_most(value: float, dtype: np.dtype[np.floating]) -> np.floating:
    """A number of `dtype` that is not above `value`."""
    if not math.isfinite(value):
        return dtype.type(value)
    with np.errstate(over="ignore"):
        below: np.floating = np.nextafter(dtype.type(value), dtype.type(-math.inf))
        return below
