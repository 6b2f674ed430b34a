"""Runs what `baton bench` and `baton bench compare` were asked for."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console

from baton.cli.bench_grpc import GrpcDriver, first_model
from baton.loadtest import report_compare, report_csv, report_html, report_json, report_text
from baton.loadtest.bench import Bench, Options
from baton.loadtest.compare import compare
from baton.loadtest.errors import BenchError
from baton.loadtest.live import Live, watch
from baton.loadtest.probe import open_http
from baton.loadtest.record import Driver
from baton.loadtest.result import Result
from baton.loadtest.slo import Slo

Given = Mapping[str, Any]
"""The command's options by name (baton.cli.bench)."""

HTTP_URL, GRPC_URL = "http://127.0.0.1:8000", "127.0.0.1:8001"


def main(given: Given) -> int:
    """The exit status: 0 also where requests failed, since the report says so."""
    return _guarded(_bench(given))


def main_compare(path_a: str, path_b: str) -> int:
    return _guarded(_compare(path_a, path_b))


def _guarded(work: Coroutine[Any, Any, None]) -> int:
    try:
        uvloop.run(work)
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped: no report", file=sys.stderr)
        return 130
    return 0


async def _bench(given: Given) -> None:
    options = _options(given)
    console = Console(stderr=True)

    def view(label: str, num: int) -> AbstractContextManager[Live]:
        return watch(console, label, num)

    driver, target = await _open(given)
    try:
        result = await Bench(options, driver, target, view).run()
    finally:
        await driver.close()
    report_text.show(result, Console())
    if given["out"]:
        _write(result, given["out"])


async def _compare(path_a: str, path_b: str) -> None:
    a, b = report_json.load(path_a), report_json.load(path_b)
    report_compare.show(a, b, await asyncio.to_thread(compare, a, b), Console())


def _options(given: Given) -> Options:
    rates = tuple(_rate(text) for text in given["sweep"].split(",") if text.strip())
    if given["rate"] is not None:
        rates = (*rates, given["rate"])
    return Options(
        inputs=given["input_len"],
        outputs=given["output_len"],
        prefix_len=given["prefix_len"],
        as_ids=given["ids"],
        trace=given["trace"],
        trace_skip=given["skip"],
        shrink=given["shrink"],
        stretch=given["stretch"],
        max_len=given["max_len"],
        concurrency=given["concurrency"],
        rates=rates,
        arrival=given["arrival"],
        burstiness=given["burstiness"],
        num_requests=given["requests"],
        duration_s=given["duration"],
        num_warmup=given["warmup"],
        seed=given["seed"],
        slo=Slo.parse(given["slo"] or ()),
        timeout_s=given["timeout"],
        title=given["title"],
        with_limits=given["limits"],
    )


def _rate(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BenchError(f"a sweep is rates such as 1,2,4, not {text!r}") from None


async def _open(given: Given) -> tuple[Driver, Mapping[str, str]]:
    """The driver for the door asked for, and facts about its server."""
    url = given["url"] or (GRPC_URL if given["grpc"] else HTTP_URL)
    if not given["grpc"]:
        return await open_http(url, given["model"], given["chat"], given["api_key"], given["ignore_eos"])
    if given["chat"] or given["api_key"]:
        raise BenchError("--grpc takes neither --chat nor --api-key")
    model = given["model"] or await first_model(url)
    return GrpcDriver(url, model, given["ignore_eos"]), {"server": url, "door": "gRPC, Generate", "model": model}


def _write(result: Result, name: str) -> None:
    stem = Path(name)
    reports = {
        ".json": report_json.dump(result),
        ".csv": report_csv.dump(result).encode(),
        ".html": report_html.dump(result).encode(),
    }
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        for suffix, data in reports.items():
            stem.with_name(stem.name + suffix).write_bytes(data)
    except OSError as error:
        raise BenchError(f"cannot write {name}: {error}") from error
    print(f"\nWritten: {', '.join(f'{name}{suffix}' for suffix in reports)}")
