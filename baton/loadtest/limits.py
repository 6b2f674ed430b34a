"""What the harness itself can drive: it runs against a stub in another process that answers at once."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from baton.loadtest.client_http import HttpDriver, HttpTarget
from baton.loadtest.errors import BenchError
from baton.loadtest.live import Silent
from baton.loadtest.measure import Summary, summarise
from baton.loadtest.result import Limits
from baton.loadtest.runner import Runner
from baton.loadtest.slo import Slo
from baton.loadtest.stub import MODEL
from baton.loadtest.workload import Drawn, Lengths, Plan

START_S = 20.0
RUN_S = 1.0
NUM_REQUESTS = 4000
NUM_TOKENS = 128
CONCURRENCY = 32


async def measure_limits() -> Limits:
    """Takes some 3 s. Raises BenchError if the stub does not start."""
    async with stub("--tokens", "1") as url:
        requests = await _drive(url)
    async with stub("--tokens", f"1x{NUM_TOKENS}") as url:
        tokens = await _drive(url)
    return Limits(requests.per_s(requests.num_ok), tokens.per_s(tokens.output_tokens))


@asynccontextmanager
async def stub(*arguments: str) -> AsyncIterator[str]:
    """The address of a stub in a process of its own, which is gone afterwards (arguments: see stub)."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "baton.loadtest.stub", *arguments, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        if process.stdout is None:
            raise BenchError("the stub has no output")
        async with asyncio.timeout(START_S):
            url = (await process.stdout.readline()).decode().strip()
        if not url:
            raise BenchError("the stub server did not start; --no-limits runs without it")
        yield url
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _drive(url: str) -> Summary:
    driver = HttpDriver(HttpTarget(url, MODEL))
    requests = Drawn(Lengths(64, 64), Lengths(1, 1)).requests(NUM_REQUESTS, 0)
    plan = Plan("limits", requests, None, CONCURRENCY, None, RUN_S)
    try:
        return summarise(await Runner(driver, START_S).run(plan, Silent()), Slo())
    finally:
        await driver.close()
