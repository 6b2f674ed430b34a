"""Counter-based randomness: the noise of a token is a function of where it stands, not of what was drawn before.

So a draw is the same alone or in any batch, before or after a handoff or a recovery, and no generator state exists to ship.
"""

from __future__ import annotations

import math
import threading
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_SPARE_BITS = 12  # of 64; a uniform number takes 52
_UNMIXED_BITS = 33  # what the last step of the mixing changes


def _mix(x: int) -> int:
    """The finaliser of splitmix64: a bijection of 64 bits in which every input bit moves every output bit."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _mix_but_for_the_last_step(x: NDArray[np.uint64], shifted: NDArray[np.uint64]) -> None:
    """`_mix` of `x` in place, up to its last line: the upper 31 bits are final. `shifted` is overwritten."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        np.right_shift(x, np.uint64(shift), out=shifted)
        np.bitwise_xor(x, shifted, out=x)
        np.multiply(x, np.uint64(factor), out=x)


def key(seed: int, choice: int, index: int) -> int:
    """64 bits that name one draw: the output token `index` of `choice` under `seed`."""
    mixed = 0
    for word in (seed, choice, index):
        mixed = _mix((mixed + _GOLDEN + (word & _MASK)) & _MASK)
    return mixed


def gumbel(draw_key: int, token_ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gumbel noise (float64) for each of `token_ids` (any integers) in the draw `draw_key`."""
    mixed = _counters(token_ids) + np.uint64(draw_key)
    _mix_but_for_the_last_step(mixed, np.empty_like(mixed))
    mixed ^= mixed >> np.uint64(31)
    # 52 bits, centred in their cells: exact in float64, never 0 or 1, so both logarithms are finite
    uniform = ((mixed >> np.uint64(_SPARE_BITS)).astype(np.float64) + 0.5) * 2.0**-52
    noise: NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise


def leading_bits(draw_key: int, tokens: int | NDArray[np.int64]) -> NDArray[np.uint64]:
    """A number for each of `tokens` (ids, or the first so many) that grows with its noise, to compare with `least_bits`.

    The array is the thread's own scratch: it is good until the next call.
    """
    counters = _first_counters(tokens) if isinstance(tokens, int) else _counters(tokens)
    mixed, shifted = _scratch.of(len(counters))
    np.add(counters, np.uint64(draw_key), out=mixed)
    _mix_but_for_the_last_step(mixed, shifted)
    return mixed


def least_bits(noise: float) -> np.uint64:
    """No token with noise of at least `noise` has `leading_bits` below this."""
    # noise = -log(-log u), and -log u >= 1 - u: it takes u >= 1 - exp(-noise); a few cells of rounding are given away
    cells = 2**52 - int(math.exp(-max(noise, 0.0)) * 2.0**52) - 4
    return np.uint64((max(cells, 0) << _SPARE_BITS) >> _UNMIXED_BITS << _UNMIXED_BITS)


class _Scratch(threading.local):
    """Two arrays of the vocabulary's length that are not allocated, and their pages not faulted in, at every draw."""

    def __init__(self) -> None:
        self._arrays = np.empty((2, 0), np.uint64)

    def of(self, length: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        if self._arrays.shape[1] < length:
            self._arrays = np.empty((2, length), np.uint64)
        return self._arrays[0, :length], self._arrays[1, :length]


_scratch = _Scratch()


def _counters(token_ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    counters = token_ids.astype(np.uint64)
    counters += np.uint64(1)
    counters *= np.uint64(_GOLDEN)
    return counters


@lru_cache(maxsize=4)
def _first_counters(num_tokens: int) -> NDArray[np.uint64]:
    counters = _counters(np.arange(num_tokens))
    counters.flags.writeable = False
    return counters
