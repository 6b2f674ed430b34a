"""Prefix cache and block layout: hits on either side, and prompts around a block's end (block size 16)."""

import pytest

from tests.support.asking import ask, ask_alone, http, over_grpc, plain, streamed
from tests.support.reference import reference

X = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ-="
FIRST, SECOND = "'wZ1y'o&vOUhowAx", "3Z\"]'0f15YoA-#u-"
COLD_DECODE, COLD_PREFILL = "$)~'Ot^qo@qJ<y,'", "cf)Zx)Yf+['yA~+y"

AROUND_A_BLOCK = {
    14: ')))))w=25"g}~1>}',
    15: "))))fM]io>bWQO6'",
    16: ")))fM!bx]{bWLMoJ",
    30: "Y ce$*8}Q~QJ'&&A",
    31: "Y ce$*8}Q1C:AiE+",
    32: ')Yb3 ")>{>{Y}:Z1',
}


def restart(cluster, workers):
    for worker in workers:
        worker.kill()
        worker.restart()
    cluster.settled()


async def completion(cluster, prompt):
    async with http(cluster) as client:
        body = {"prompt": prompt, "max_tokens": 16, "temperature": 0, "timeline": True}
        return (await client.post("/v1/completions", json=body)).raise_for_status().json()


async def test_c713_prefix_hits_on_one_side_only(random_pair):
    """Each way has a prefix of its own, so that each finds the caches as the steps say."""
    ways = {way: X[i:] + X[:i] for i, way in enumerate((plain, streamed, over_grpc, ask_alone))}

    async def each(suffix, literal):
        for way, prefix in ways.items():
            prompt = prefix + suffix
            answer = await way(random_pair, {"prompt": prompt, "max_tokens": 16, "temperature": 0, "logprobs": 0})
            reference(random_pair.shape.checkpoint).assert_equal(answer, prompt, 16)
            assert prefix != X or answer.text == literal

    await each("1", FIRST)
    await each("2", SECOND)
    await each("1", FIRST)
    restart(random_pair, random_pair.decode)
    await each("3", COLD_DECODE)
    restart(random_pair, random_pair.prefill)
    await each("4", COLD_PREFILL)


async def test_c713_a_full_hit_computes_and_moves_less(random_pair):
    prompt = X[::-1]
    first, repeated = [await completion(random_pair, prompt) for _ in range(2)]
    assert first["choices"][0]["text"] == repeated["choices"][0]["text"]
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in (first, repeated)]
    assert cached == [0, len(prompt) // 16 * 16]
    assert 0 < repeated["timeline"]["transfer_bytes"] < first["timeline"]["transfer_bytes"]


@pytest.mark.parametrize("length", AROUND_A_BLOCK)
async def test_c770_the_last_block_is_filled_exactly(random_pair, length):
    prompt = "x" * length
    fields = {"max_tokens": 16, "logprobs": 0}
    first, second = [await ask(random_pair, prompt=prompt, **fields) for _ in range(2)]
    assert first.text == second.text == AROUND_A_BLOCK[length]
    appended = await ask(random_pair, prompt=prompt + first.text, **fields)
    reference(random_pair.shape.checkpoint).assert_equal(appended, prompt + first.text, 16)
