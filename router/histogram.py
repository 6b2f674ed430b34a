"""A histogram for what happens with every token and request. prometheus_client's own takes a lock for the sum and for a bucket,
and looks a label up, each time; this one belongs to the event loop and is put together when it is scraped."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString


class Series:
    """The values of one label value."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """`value` occurred `count` times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def add_to(self, family: HistogramMetricFamily, labels: list[str]) -> None:
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        family.add_metric(labels, buckets, self._sum)


class Histogram:
    """Values by at most one label; `bounds` are the buckets' upper ends, each included."""

    def __init__(
        self, name: str, text: str, bounds: tuple[float, ...], registry: CollectorRegistry, label: str | None = None
    ) -> None:
        self._name, self._text, self._bounds, self._label = name, text, bounds, label
        self._series = {} if label else {"": Series(bounds)}
        registry.register(self)

    def observe(self, value: float, count: int = 1, label: str = "") -> None:
        """`value` occurred `count` times under `label`."""
        series = self._series.get(label)
        if series is None:
            series = self._series[label] = Series(self._bounds)
        series.observe(value, count)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._text, labels=[self._label] if self._label else None)
        for label, series in self._series.items():
            series.add_to(family, [label] if self._label else [])
        yield family
