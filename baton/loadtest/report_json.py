"""A result as JSON, for programs and for `compare`: figures, then every request with its messages. Times in milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from baton.loadtest.errors import BenchError
from baton.loadtest.measure import Distribution, Summary
from baton.loadtest.record import Message, Outcome
from baton.loadtest.result import Limits, Result, Run
from baton.loadtest.slo import Slo

FORMAT = "baton-bench/1"


def dump(result: Result) -> bytes:
    return orjson.dumps(
        {
            "format": FORMAT,
            "title": result.title,
            "setup": dict(result.setup),
            "slo_ms": {name: limit_s * 1e3 for name, limit_s in result.slo.limits},
            "harness_limits": None
            if result.limits is None
            else {"requests_per_s": result.limits.requests_per_s, "tokens_per_s": result.limits.tokens_per_s},
            "runs": [_run(run) for run in result.runs],
        },
        option=orjson.OPT_INDENT_2 if sum(len(run.outcomes) for run in result.runs) < 50 else 0,
    )


def load(path: str) -> Result:
    """Raises BenchError if the file is none of ours."""
    try:
        data = orjson.loads(Path(path).read_bytes())
        if data.get("format") != FORMAT:
            raise BenchError(f"{path} is no result of baton bench (format {data.get('format')!r}, not {FORMAT!r})")
        slo = Slo(tuple((name, limit_ms / 1e3) for name, limit_ms in data["slo_ms"].items()))
        limits = Limits(**data["harness_limits"]) if data["harness_limits"] else None
        runs = tuple(_run_of(run, slo) for run in data["runs"])
        return Result(data["title"], data["setup"], slo, limits, runs)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BenchError(f"cannot read the result {path}: {error}") from error


def _run(run: Run) -> dict[str, Any]:
    return {
        "label": run.label,
        "rate": run.rate,
        "load": dict(run.facts),
        "summary": summary_of(run.summary),
        "requests": [_outcome(outcome) for outcome in run.outcomes],
    }


def summary_of(summary: Summary) -> dict[str, Any]:
    """The figures by name; latencies in ms."""
    return {
        "requests": summary.num,
        "succeeded": summary.num_ok,
        "success_rate": summary.success,
        "errors": summary.errors,
        "duration_s": summary.span_s,
        "requests_per_s": summary.per_s(summary.num_ok),
        "input_tokens_per_s": summary.per_s(summary.input_tokens),
        "output_tokens_per_s": summary.per_s(summary.output_tokens),
        "goodput_per_s": summary.per_s(summary.num_good),
        "slo_attainment": summary.attained,
        "slo_missed": summary.missed,
        "attainment_by_scale": {f"{scale:g}": share for scale, share in summary.attainment},
        "input_tokens": summary.input_tokens,
        "cached_tokens": summary.cached_tokens,
        "output_tokens": summary.output_tokens,
        "tokens_counted_by": summary.counted_by,
        "sent_late_ms": _points(summary.late) if summary.num else None,
        "latency_ms": {name: _points(distribution) for name, distribution in summary.latencies.items()},
    }


def _points(distribution: Distribution) -> dict[str, float]:
    at = {f"p{percent}": distribution.percentile(percent) for percent in (50, 90, 99)}
    return {name: round(value * 1e3, 4) for name, value in (at | {"max": distribution.max, "mean": distribution.mean}).items()}


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "number": outcome.number,
        "intended_ms": _ms(outcome.intended_s),
        "sent_ms": _ms(outcome.sent_s),
        "ended_ms": _ms(outcome.ended_s),
        "input_len": outcome.input_len,
        "prompt_tokens": outcome.prompt_tokens,
        "cached_tokens": outcome.cached_tokens,
        "output_tokens": outcome.output_tokens,
        "counted_by": outcome.counted_by,
        "error": outcome.error,
        "detail": outcome.detail,
        "messages": [[_ms(message.at_s), message.num_tokens] for message in outcome.messages],
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _run_of(data: dict[str, Any], slo: Slo) -> Run:
    return Run(data["label"], data["rate"], data["load"], slo, tuple(_outcome_of(outcome) for outcome in data["requests"]))


def _outcome_of(data: dict[str, Any]) -> Outcome:
    fields = dict(data)
    times = {f"{name}_s": fields.pop(f"{name}_ms") / 1e3 for name in ("intended", "sent", "ended")}
    messages = tuple(Message(at_ms / 1e3, num_tokens) for at_ms, num_tokens in fields.pop("messages"))
    return Outcome(**fields, **times, messages=messages)
