"""The router's metrics: requests, their times and parts, tokens at system level. No label comes from a client.

Tokens are counted once, when the router accepts them, whatever both workers sampled for them.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest

from baton.wire.errors import (
    BatonError,
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    Unavailable,
)
from baton.wire.types import FinishReason, Spans
from router.histogram import Histogram
from router.request import Usage
from router.timeline import Timeline

LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
GAP_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5)
PART_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
TOKENS = (1, 4, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072)

OUTCOMES: tuple[tuple[type[BatonError], str], ...] = (
    (Cancelled, "cancelled"),
    (DeadlineExceeded, "deadline"),
    (InvalidRequest, "invalid"),
    (Overloaded, "rejected"),
    (Unavailable, "unavailable"),
    (BatonError, "failed"),
)


def outcome_of(error: BatonError | None) -> str:
    """How a request ended, as a label: `ok`, or a word for its error."""
    if error is None:
        return "ok"
    return next(outcome for kind, outcome in OUTCOMES if isinstance(error, kind))


class RouterMetrics:
    """One router's. `registry` is its own: nothing of the process is shared with other users of prometheus_client."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(namespace="baton_router", registry=self.registry)
        self._make_requests()
        self._make_times()
        self._make_tokens()
        self._make_transfers()

    def expose(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self.registry)

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge that is asked for its value when it is scraped."""
        Gauge(name, text, registry=self.registry).set_function(value)

    # --- what happens --------------------------------------------------------------------------------------------

    def first_token(self, seconds: float, prompt_len: int) -> None:
        """A request's first token was accepted: its prompt is computed."""
        self._ttft.observe(seconds)
        self._prompt_tokens.inc(prompt_len)

    def accepted(self, num_tokens: int, seconds: float | None) -> None:
        """`num_tokens` of one choice were accepted together, `seconds` after the one before them; None: there was none."""
        self._generation_tokens.inc(num_tokens)
        if seconds is not None:
            self._itl.observe(seconds / num_tokens, num_tokens)

    def finished(self, reason: FinishReason) -> None:
        """A choice ended."""
        self._success.labels(reason.value).inc()

    def recovered(self, kind: str) -> None:
        """A request goes on after a failure or a preemption."""
        self._recoveries.labels(kind).inc()

    def transferred(self, spans: Spans) -> None:
        """A handoff's KV arrived."""
        if spans.transfer_bytes:
            self._transfers.labels(spans.transport).inc()
            self._transfer_bytes.inc(spans.transfer_bytes)
            self._transfer_s.observe(spans.transfer_s)

    def transfer_failed(self) -> None:
        """A prefill could not hand over."""
        self._transfers_failed.inc()

    def ended(self, error: BatonError | None, timeline: Timeline, usage: Usage) -> None:
        """A request has its ending."""
        self._requests.labels(outcome_of(error)).inc()
        if error is not None:
            return
        self._e2e.observe(timeline.total_s)
        self._request_prompt.observe(usage.prompt_tokens)
        self._request_output.observe(usage.completion_tokens)
        parts = dict(timeline.parts())
        for part, seconds in parts.items():
            self._parts.observe(seconds, label=part)
        self._queue_s.observe(parts["queue"])
        self._prefill_s.observe(parts["prefill_queue"] + parts["prefill_compute"] + parts["prefill_link"])
        self._decode_s.observe(parts["decode"])

    def rejected(self, error: BatonError) -> None:
        """A request was sent away before it began."""
        self._rejections.labels(outcome_of(error)).inc()
        self._requests.labels(outcome_of(error)).inc()

    # --- their definitions ---------------------------------------------------------------------------------------

    def _make_requests(self) -> None:
        self._requests = self._counter("requests", "Requests that ended, by outcome.", "outcome")
        self._success = self._counter("request_success", "Choices that ended, by finish reason.", "finished_reason")
        self._rejections = self._counter("rejection", "Requests sent away before they began, by reason.", "reason")
        self._recoveries = self._counter("migration", "Requests that went on after a failure.", "migration_type")

    def _make_times(self) -> None:
        self._ttft = self._histogram("time_to_first_token_seconds", "Arrival to the first accepted token.", LATENCY_S)
        self._itl = self._histogram("inter_token_latency_seconds", "Gap between accepted tokens of a choice.", GAP_S)
        self._e2e = self._histogram("e2e_request_latency_seconds", "Arrival to the end.", LATENCY_S)
        self._queue_s = self._histogram("request_queue_time_seconds", "Waiting in the router's queue.", PART_S)
        self._prefill_s = self._histogram("request_prefill_time_seconds", "Prefill's start to the first token.", PART_S)
        self._decode_s = self._histogram("request_decode_time_seconds", "Second token to the end.", LATENCY_S)
        self._parts = self._histogram("request_part_seconds", "Parts that add up to a request's time.", PART_S, "part")

    def _make_tokens(self) -> None:
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests that have a first token.")
        self._generation_tokens = self._counter("generation_tokens", "Output tokens that the router accepted.")
        self._request_prompt = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", TOKENS)
        self._request_output = self._histogram("request_generation_tokens", "Output tokens of a request.", TOKENS)

    def _make_transfers(self) -> None:
        self._transfers = self._counter("transfers", "Handoffs whose KV arrived, by transport.", "transport")
        self._transfer_bytes = self._counter("transfer_bytes", "KV bytes handed over.")
        self._transfer_s = self._histogram("transfer_seconds", "First KV byte to the commit's answer.", PART_S)
        self._transfers_failed = self._counter("transfers_failed", "Handoffs that failed.")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"baton_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, bounds: tuple[float, ...], label: str | None = None) -> Histogram:
        return Histogram(f"baton_{name}", text, bounds, self.registry, label)
