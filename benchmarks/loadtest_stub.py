"""How right the load test is, and how fast: against a stub whose delays are known, beside httpx and, if installed, guidellm.

python benchmarks/loadtest_stub.py          ends with 1 if a figure is over 2 % from the truth, or over 5 % from guidellm's

GUIDELLM names guidellm's command if it is not on the path (it brings torch, so it best lives in an environment of its own).
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvloop
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from baton.loadtest.client_http import HttpDriver, HttpTarget
from baton.loadtest.filler import WORDS
from baton.loadtest.limits import stub
from baton.loadtest.live import Silent
from baton.loadtest.measure import Summary, summarise
from baton.loadtest.record import Answer, Driver, Request
from baton.loadtest.runner import Runner
from baton.loadtest.slo import Slo
from baton.loadtest.stub import MODEL
from baton.loadtest.workload import Drawn, Lengths, Plan

TOLERANCE, RIVAL_TOLERANCE = 0.02, 0.05
TIMEOUT_S = 60.0
GUIDELLM_S = 180.0


@dataclass(frozen=True)
class Case:
    """A stub's script, the load on it, and what is true of it: milliseconds, and tokens per second of one closed loop."""

    name: str
    first_ms: float
    gap_ms: float
    tokens: tuple[int, ...]
    concurrency: int
    num_requests: int

    def truth(self) -> dict[str, float]:
        span_ms = self.gap_ms * (len(self.tokens) - 1)
        e2e_ms = self.first_ms + span_ms
        return {
            "ttft": self.first_ms,
            "itl": span_ms / sum(self.tokens[1:]),
            "tpot": span_ms / sum(self.tokens[1:]),
            "e2e": e2e_ms,
            "tokens/s": self.concurrency * sum(self.tokens) / e2e_ms * 1e3,
        }

    def arguments(self) -> tuple[str, ...]:
        tokens = ",".join(str(num) for num in self.tokens)
        return "--first-ms", f"{self.first_ms}", "--gap-ms", f"{self.gap_ms}", "--tokens", tokens


COALESCED = Case("4 tokens a message", 500, 200, (1, 4, 4, 4), 1, 10)
COALESCED_FIRST = Case("4 tokens in the first message too", 500, 200, (4, 4, 4, 4), 1, 5)
STEADY = Case("a token a message, 8 at a time", 300, 25, (1,) * 60, 8, 48)


async def main() -> int:
    wrong = False
    for case in (COALESCED, COALESCED_FIRST, STEADY):
        async with stub(*case.arguments()) as url:
            found = figures(await drive(HttpDriver(HttpTarget(url, MODEL, chat=True)), case.num_requests, case.concurrency))
            wrong |= told(case.name, "truth", case.truth(), found, TOLERANCE)
            if case is STEADY and (command := os.environ.get("GUIDELLM") or shutil.which("guidellm")):
                theirs = await guidellm(command, url, case)
                wrong |= told(case.name, "guidellm", theirs, {name: found[name] for name in theirs}, RIVAL_TOLERANCE)
    await speeds()
    return int(wrong)


async def drive(driver: Driver, num_requests: int, concurrency: int) -> Summary:
    requests = Drawn(Lengths(64, 64), Lengths(60, 60)).requests(num_requests, seed=1)
    try:
        outcomes = await Runner(driver, TIMEOUT_S).run(Plan("stub", requests, None, concurrency, None), Silent())
    finally:
        await driver.close()
    return summarise(outcomes, Slo())


def figures(summary: Summary) -> dict[str, float]:
    """Medians, since the stub's delays are all alike and a busy machine's are not."""
    medians = {name: summary.latencies[name].percentile(50) * 1e3 for name in ("ttft", "itl", "tpot", "e2e")}
    return medians | {"tokens/s": summary.per_s(summary.output_tokens)}


def told(case: str, against: str, expected: dict[str, float], found: dict[str, float], tolerance: float) -> bool:
    """Prints a line a figure; whether one is off."""
    print(f"{case}, against {against}:")
    off = {name: found[name] / value - 1 for name, value in expected.items()}
    for name, value in expected.items():
        print(f"  {name:9} {value:9.2f} {found[name]:9.2f} {off[name]:+7.2%}{'  WRONG' if abs(off[name]) > tolerance else ''}")
    return any(abs(difference) > tolerance for difference in off.values())


GUIDELLM_KEYS = {
    "ttft": ("time_to_first_token_ms", 1.0),
    "itl": ("inter_token_latency_ms", 1.0),
    "e2e": ("request_latency", 1e3),
}
"""Its names and what makes milliseconds of them. Its TPOT is another figure: it spreads the TTFT over the tokens too."""


async def guidellm(command: str, url: str, case: Case) -> dict[str, float]:
    """Medians of the same load through guidellm."""
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder))
        process = await asyncio.create_subprocess_exec(
            *(command, "run", "--disable-console", "--backend", f"kind=openai_http,target={url},model={MODEL},http2=false"),
            *("--profile", f"kind=concurrent,streams={case.concurrency}"),
            *("--constraint", f"kind=max_requests,count={case.num_requests}"),
            *("--tokenizer", f"kind=huggingface_auto,model={folder}"),
            *("--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=60"),
            *("--output", f"kind=json,path={folder}/report.json"),
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
        )
        async with asyncio.timeout(GUIDELLM_S):
            await process.wait()
        return medians(Path(folder, "report.json"))


def medians(report: Path) -> dict[str, float]:
    metrics = json.loads(report.read_bytes())["benchmarks"][0]["metrics"]
    return {name: metrics[key]["successful"]["median"] * unit for name, (key, unit) in GUIDELLM_KEYS.items()}


def write_tokenizer(folder: Path) -> None:
    """guidellm makes its prompts with one: a word is a token."""
    vocabulary = {word: i for i, word in enumerate(("<unk>", *dict.fromkeys(WORDS)))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


class HttpxDriver:
    """What the load test would be on httpx."""

    def __init__(self, url: str):
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._client = httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits)

    async def generate(self, request: Request, answer: Answer) -> None:
        body = {"model": MODEL, "prompt": request.prompt, "max_tokens": request.output_len, "stream": True}
        async with self._client.stream("POST", "/v1/completions", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        answer.add(time.monotonic(), len(choice["text"]))

    async def close(self) -> None:
        await self._client.aclose()


async def speeds() -> None:
    """Tokens per second with a message for each, against a stub that answers at once."""
    async with stub("--tokens", "1x128") as url:
        drivers: dict[str, Driver] = {
            "the load test": HttpDriver(HttpTarget(url, MODEL)),
            "the same on httpx": HttpxDriver(url),
        }
        for name, driver in drivers.items():
            began_s = time.process_time()
            summary = await drive(driver, 300, 32)
            cpu_us = (time.process_time() - began_s) / max(summary.output_tokens, 1) * 1e6
            print(f"{name}: {summary.per_s(summary.output_tokens):,.0f} tokens/s, {cpu_us:.1f} us of CPU a token")


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
