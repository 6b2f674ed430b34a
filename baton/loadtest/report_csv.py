"""A result as CSV: one line a request, times in milliseconds, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io

from baton.loadtest.result import Result, Run
from baton.loadtest.timing import timing_of

REQUEST = ("run", "request", "intended_ms", "sent_ms")
TIMES = ("ttft_ms", "tpot_ms", "slow_itl_ms", "slow_pause_ms", "e2e_ms")
TOKENS = ("prompt_tokens", "cached_tokens", "output_tokens", "messages", "counted_by")
COLUMNS = (*REQUEST, *TIMES, *TOKENS, "slo_failed", "error")


def dump(result: Result) -> str:
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(COLUMNS)
    for run in result.runs:
        lines.writerows(_rows(run))
    return out.getvalue()


def _rows(run: Run) -> list[list[object]]:
    rows: list[list[object]] = []
    for outcome in run.outcomes:
        times: list[object] = [""] * len(TIMES)
        failed = ""
        if not outcome.error:
            timing = timing_of(outcome)
            times = [_ms(timing.ttft_s), _ms(timing.tpot_s), _ms(timing.of("itl")), _ms(timing.of("pause")), _ms(timing.e2e_s)]
            failed = " ".join(run.slo.failed(timing))
        tokens = [outcome.prompt_tokens, outcome.cached_tokens, outcome.output_tokens, len(outcome.messages)]
        head = [run.label, outcome.number, _ms(outcome.intended_s), _ms(outcome.sent_s)]
        rows.append([*head, *times, *tokens, outcome.counted_by, failed, outcome.error])
    return rows


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3f}"
