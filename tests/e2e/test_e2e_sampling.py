"""The first token at the handoff, and sampling state across it: end tokens, penalties, minimum lengths, seeds."""

import asyncio

import pytest

from tests.support.asking import ask, chunks, over_grpc, plain, refused, streamed
from tests.support.processes import Shape
from tests.support.reference import reference

FOX = "The quick brown fox"


@pytest.fixture
def random_with_two_decoders(clusters, random):
    return clusters(Shape(random, decode=2, forked=True))


@pytest.mark.parametrize("end", ["$", "%"])
async def test_c796_the_first_token_is_an_end_token(scripted_pair, end):
    fields = {"prompt": f"hello world {end}", "max_tokens": 5}
    answer = await ask(scripted_pair, **fields)
    assert (answer.text, answer.finish, answer.completion_tokens) == ("", "stop", 1)
    said = str(await chunks(scripted_pair, **fields, temperature=0))
    assert "hello" not in said
    assert "<|eot|>" not in said


@pytest.mark.parametrize(("prompt", "text"), [("x" * 14, r")YQ{Q{C%F>:d \=8"), (FOX, "k/b!Y5RPL)x>&8*f")])
async def test_c607_penalties_count_generated_tokens_and_all_of_them(random_pair, prompt, text):
    answer = await ask(random_pair, prompt=prompt, max_tokens=16, presence_penalty=2.0, logprobs=1)
    assert answer.text == text


async def test_c792_a_minimum_keeps_the_end_away(scripted_pair):
    long = await ask(scripted_pair, prompt="A", min_tokens=12, max_tokens=20)
    assert long.text.startswith("bcdefghij")
    assert 12 <= long.completion_tokens <= 20
    short = await ask(scripted_pair, prompt="K", min_tokens=3, max_tokens=8)
    assert len(short.text) >= 3
    assert short.text.startswith(".")


async def test_c792_a_minimum_above_the_maximum_is_refused(scripted_pair):
    error = await refused(scripted_pair, prompt="A", min_tokens=30, max_tokens=20)
    assert error["param"] == "min_tokens"


async def test_c794_a_seed_says_the_text(random_with_two_decoders):
    cluster = random_with_two_decoders
    seeded = {"prompt": FOX, "max_tokens": 48, "temperature": 1.0, "seed": 1234}
    expected = await ask(cluster, **seeded)
    for way in (plain, streamed, over_grpc):
        texts = {(await way(cluster, seeded)).text for _ in range(3)}
        assert texts == {expected.text}
    assert len(set(expected.text)) > 10
    unseeded = {name: value for name, value in seeded.items() if name != "seed"}
    others = [(await ask(cluster, **seeded | {"seed": 1235})).text]
    others += [(await way(cluster, unseeded)).text for way in (plain, streamed, over_grpc)]
    assert len({expected.text, *others}) == 5


async def test_c794_neighbours_change_nothing(random_with_two_decoders):
    cluster = random_with_two_decoders
    seeded = {"prompt": FOX, "max_tokens": 48, "temperature": 1.0, "seed": 1234}
    expected = await ask(cluster, **seeded)
    for round_ in range(10):
        neighbours = [seeded | {"prompt": f"{i} {FOX}", "seed": 100 * round_ + i} for i in range(15)]
        answer, *_ = await asyncio.gather(*(plain(cluster, fields) for fields in [seeded, *neighbours]))
        assert answer.text == expected.text


async def test_c794_every_decoder_says_the_same(random_with_two_decoders):
    cluster = random_with_two_decoders
    seeded = {"prompt": FOX, "max_tokens": 48, "temperature": 1.0, "seed": 1234}
    before = generated_by(cluster)
    answers = await asyncio.gather(*(plain(cluster, seeded) for _ in range(16)))
    assert {answer.text for answer in answers} == {(await ask(cluster, **seeded)).text}
    cluster.assert_idle()
    assert all(after > before[name] + 48 for name, after in generated_by(cluster).items())


def generated_by(cluster):
    """Tokens of each decode worker."""
    totals = cluster.metrics()
    names = [f'baton_worker_generated_tokens_total{{role="decode",worker="{w.address}"}}' for w in cluster.decode]
    return {name: totals[name] for name in names}


async def test_c794_greedy_repeats_itself(random_with_two_decoders):
    cluster = random_with_two_decoders
    text, _ = reference(cluster.shape.checkpoint).generate(FOX, 48)
    greedy = {"prompt": FOX, "max_tokens": 48, "temperature": 0}
    answer = await ask(cluster, **greedy, logprobs=0)
    reference(cluster.shape.checkpoint).assert_equal(answer, FOX, 48)
    answers = await asyncio.gather(*(plain(cluster, greedy | ({"seed": i} if i % 2 else {})) for i in range(20)))
    assert {answer.text for answer in answers} == {text}
