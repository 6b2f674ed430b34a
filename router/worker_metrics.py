"""Metrics of each worker from its last load report, made when they are scraped: a gone worker's series are gone too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from baton.wire.types import LoadReport
from router.workers import Worker

LABELS: Final = ("worker", "role")

# Metric, help, field of LoadReport.
GAUGES: Final = (
    ("kv_blocks_used", "KV blocks held by requests.", "kv_blocks_used"),
    ("kv_blocks_total", "KV blocks of the pool.", "kv_blocks_total"),
    ("kv_blocks_cached", "KV blocks kept as prefix cache only.", "kv_blocks_cached"),
    ("num_running", "Sequences in the running batch.", "num_running"),
    ("num_waiting", "Sequences waiting in the engine.", "num_waiting"),
    ("queued_prefill_tokens", "Prompt tokens not computed yet.", "queued_prefill_tokens"),
    ("num_leases", "Leases with a record at the worker.", "num_leases"),
    ("last_step_seconds", "Length of the last engine step.", "last_step_s"),
)
COUNTERS: Final = (
    ("prompt_tokens", "Prompt tokens computed or found in the cache.", "prompt_tokens_total"),
    ("generated_tokens", "Output tokens sampled.", "generated_tokens_total"),
    ("overrun_tokens", "Output tokens sampled past the end that the router chose.", "overrun_tokens_total"),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", "prefix_hit_tokens_total"),
    ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", "prefix_query_tokens_total"),
    ("preemptions", "Choices handed back for want of blocks.", "preemptions_total"),
    ("transfer_bytes", "KV bytes sent or received.", "transfer_bytes_total"),
    ("transfers", "Transfers completed.", "transfers_total"),
    ("transfers_failed", "Transfers failed.", "transfers_failed_total"),
    ("frames_refused", "KV frames and commits refused.", "frames_refused_total"),
    ("aborted", "Requests ended early.", "aborted_total"),
)


class WorkerCollector(Collector):
    """Reads `workers` at each scrape. Series are named by address and role, both the operator's words."""

    def __init__(self, workers: Callable[[], Iterable[Worker]]) -> None:
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        up = [(worker, worker.link.info.role.value) for worker in self._workers() if worker.link.up and worker.link.info]
        reports = [((worker.address, role), worker.link.load) for worker, role in up]
        yield from (_family(GaugeMetricFamily, name, text, field, reports) for name, text, field in GAUGES)
        yield from (_family(CounterMetricFamily, name, text, field, reports) for name, text, field in COUNTERS)
        yield self._in_flight("num_prefills", "Prefills of this router in flight.", lambda worker: len(worker.prefilling), up)
        yield self._in_flight("num_decodes", "Decodes of this router in flight.", lambda worker: len(worker.decoding), up)
        yield self._rotation()

    def _in_flight(self, name: str, text: str, count: Callable[[Worker], int], up: list[tuple[Worker, str]]) -> Metric:
        family = GaugeMetricFamily(f"baton_worker_{name}", text, labels=LABELS)
        for worker, role in up:
            family.add_metric((worker.address, role), count(worker))
        return family

    def _rotation(self) -> Metric:
        """Every known worker, up or not: 1 while it may get new work."""
        family = GaugeMetricFamily("baton_worker_ready", "Whether the worker may get new work.", labels=LABELS)
        for worker in self._workers():
            role = worker.link.info.role.value if worker.link.info else "unknown"
            family.add_metric((worker.address, role), float(worker.in_rotation))
        return family


def _family(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    text: str,
    field: str,
    reports: list[tuple[tuple[str, str], LoadReport]],
) -> Metric:
    family = kind(f"baton_worker_{name}", text, labels=LABELS)
    for labels, load in reports:
        family.add_metric(labels, getattr(load, field))
    return family
