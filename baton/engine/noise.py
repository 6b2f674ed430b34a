"""Counter-based randomness: the noise of a token is a function of where it stands, not of what was drawn before.

So a draw is the same alone or in any batch, before or after a handoff or a recovery, and no generator state exists to ship.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(x: int) -> int:
    """The finaliser of splitmix64: a bijection of 64 bits in which every input bit moves every output bit."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _mix_array(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def key(seed: int, choice: int, index: int) -> int:
    """64 bits that name one draw: the output token `index` of `choice` under `seed`."""
    mixed = 0
    for word in (seed, choice, index):
        mixed = _mix((mixed + _GOLDEN + (word & _MASK)) & _MASK)
    return mixed


def gumbel(draw_key: int, token_ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gumbel noise (float64) for each of `token_ids` (any integers) in the draw `draw_key`."""
    counters = (token_ids.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN) + np.uint64(draw_key)
    # 52 bits, centred in their cells: exact in float64, never 0 or 1, so both logarithms are finite
    uniform = ((_mix_array(counters) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    noise: NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise
