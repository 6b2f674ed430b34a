"""Service level objectives: what a request must keep to for its user to be served well."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from baton.loadtest.errors import BenchError
from baton.loadtest.timing import Timing

NAMES = ("ttft", "itl", "pause", "tpot", "e2e")


@dataclass(frozen=True, slots=True)
class Slo:
    """Longest times in seconds by name; a name that is missing has no limit.

    Of a request's many gaps the mean of the slowest tenth is held, as Mooncake has it: of the gaps between tokens for `itl`,
    between messages for `pause`, where a stall counts whole, however many tokens the message brings that ends it.
    """

    limits: tuple[tuple[str, float], ...] = ()

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Slo:
        """`ttft:500` or `ttft:500,itl:50`, in milliseconds. Raises BenchError."""
        limits: dict[str, float] = {}
        for part in (part.strip() for text in texts for part in text.split(",")):
            name, _, value = part.partition(":")
            try:
                limits[name] = float(value) / 1e3
            except ValueError:
                limits[name] = 0.0
            if name not in NAMES or not 0 < limits[name] < float("inf"):
                raise BenchError(f"an SLO is one of {', '.join(NAMES)} and milliseconds, such as ttft:500, not {part!r}")
        return cls(tuple((name, limits[name]) for name in NAMES if name in limits))

    def limit(self, name: str) -> float | None:
        return dict(self.limits).get(name)

    def failed(self, timing: Timing, scale: float = 1.0) -> tuple[str, ...]:
        """Names of the limits, each times `scale`, that a successful request was over."""
        return tuple(name for name, limit_s in self.limits if timing.of(name) > limit_s * scale)

    def __str__(self) -> str:
        return ", ".join(f"{name.upper()} ≤ {limit_s * 1e3:g} ms" for name, limit_s in self.limits) or "none"
