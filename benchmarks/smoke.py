"""One run over the whole path on the bundled model: `python -m benchmarks.smoke [--dtype int8]`. Ends with one JSON object.

The handoff gap is the time from prefill's sample to the client's second token, less one ITL: the sample's moment comes from the
timeline, since no client can see it.
"""

from __future__ import annotations

import argparse
import asyncio
import json

import httpx

from benchmarks.serving import Answer, Cluster, median, quantile, serve, stream

TEXT = "The history of the railway begins with wagonways, wooden rails on which horses drew wagons. "
LENGTHS = (64, 512)
STREAMS = (1, 4, 16)


async def main(flags: list[str]) -> dict[str, object]:
    async with serve(*flags) as cluster, httpx.AsyncClient(limits=httpx.Limits(max_connections=64)) as client:
        await stream(client, cluster.url, "Warm up.", 8)
        result: dict[str, object] = {"startup_s": round(cluster.startup_s, 2)}
        for length in LENGTHS:
            result[f"prompt_{length}"] = await one_stream(client, cluster, length)
        result |= {f"streams_{count}": await many(client, cluster, count) for count in STREAMS}
        result["router"] = await router_cpu(client, cluster)
        return result


def prompt(length: int, seed: int) -> str:
    """About `length` tokens that no earlier prompt shares a block with."""
    return (f"Chapter {seed} of {length}. " + TEXT * (length // 16 + 1))[: length * 4]


async def one_stream(client: httpx.AsyncClient, cluster: Cluster, length: int, repeats: int = 5) -> dict[str, float]:
    answers = [await stream(client, cluster.url, prompt(length, seed), 48, timeline=True) for seed in range(repeats)]
    gaps = [gap for answer in answers for gap in answer.gaps_s[1:]]
    itl = median(gaps)
    return {
        "ttft_ms": _ms(median([answer.ttft_s for answer in answers])),
        "itl_p50_ms": _ms(itl),
        "itl_p99_ms": _ms(quantile(gaps, 0.99)),
        "handoff_gap_ms": _ms(median([sample_to_second(answer) for answer in answers]) - itl),
    }


def sample_to_second(answer: Answer) -> float:
    """Seconds from prefill's sample to the client's second token: the spans before the sample are the server's own."""
    spans = {span["name"]: span["seconds"] for span in answer.timeline["spans"]}
    sampled = sum(spans[name] for name in ("queue", "reserve", "prefill_queue", "prefill_compute"))
    return answer.tokens[1] - answer.sent - sampled


async def many(client: httpx.AsyncClient, cluster: Cluster, count: int, tokens: int = 64) -> dict[str, float]:
    answers = await asyncio.gather(*(stream(client, cluster.url, prompt(64, 100 * count + i), tokens) for i in range(count)))
    elapsed = max(answer.tokens[-1] for answer in answers) - min(answer.sent for answer in answers)
    decoding = max(answer.tokens[-1] for answer in answers) - max(answer.tokens[0] for answer in answers)
    together = sum(time >= max(a.tokens[0] for a in answers) for answer in answers for time in answer.tokens) - 1
    return {"tokens_per_s": round(count * tokens / elapsed, 1), "decode_tokens_per_s": round(together / decoding, 1)}


async def router_cpu(client: httpx.AsyncClient, cluster: Cluster, requests: int = 40) -> dict[str, float]:
    """CPU a request from one-token requests; CPU a token from what long ones cost beyond that."""
    before = cluster.cpu_s("router.main")
    for i in range(requests):
        await stream(client, cluster.url, f"Question {i}", 1)
    between = cluster.cpu_s("router.main")
    await asyncio.gather(*(stream(client, cluster.url, f"Story {i}", 200) for i in range(8)))
    after = cluster.cpu_s("router.main")
    a_request = (between - before) / requests
    return {
        "cpu_per_request_us": round(a_request * 1e6),
        "cpu_per_token_us": round((after - between - 8 * a_request) / (8 * 199) * 1e6, 1),
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float32")
    found = asyncio.run(main(["--dtype", parser.parse_args().dtype]))
    for name, value in found.items():
        print(f"{name:12} {value}")
    print(json.dumps(found))
