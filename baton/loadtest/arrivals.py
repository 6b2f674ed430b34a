"""When requests are due in an open loop: endless times in seconds from the start. The same seed gives the same times."""

from __future__ import annotations

import random
from collections.abc import Iterator

from baton.loadtest.errors import BenchError

ARRIVALS = ("poisson", "gamma", "constant")


def arrivals(kind: str, rate: float, burstiness: float, seed: int) -> Iterator[float]:
    """Times with `rate` requests per second on average. Raises BenchError.

    `burstiness` is for gamma alone: the squared coefficient of variation of the gaps. 1 is Poisson, 4 has bursts and lulls.
    """
    if rate <= 0:
        raise BenchError(f"the rate must be above 0 requests per second, not {rate:g}")
    if burstiness <= 0:
        raise BenchError(f"the burstiness must be above 0, not {burstiness:g}")
    rng = random.Random(f"arrivals/{seed}")
    if kind == "poisson":
        return _after(rng.expovariate(rate) for _ in _forever())
    if kind == "gamma":
        return _after(rng.gammavariate(1 / burstiness, burstiness / rate) for _ in _forever())
    if kind == "constant":
        return (number / rate for number in _forever())
    raise BenchError(f"unknown arrivals {kind!r}; there are {', '.join(ARRIVALS)}")


def _after(gaps: Iterator[float]) -> Iterator[float]:
    """The first request is due at once."""
    at_s = 0.0
    for gap in gaps:
        yield at_s
        at_s += gap


def _forever() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1
