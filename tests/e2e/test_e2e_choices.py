"""Several choices of one request, and logprobs."""

import pytest

from tests.support import sse
from tests.support.asking import ask, chunks, http

FOX = "The quick brown fox"
TOKENS = ["k", "/", "b", "!", "Y"]
LOGPROBS = [-0.8354, -1.4065, -1.7884, -1.2785, -0.3385]
RUNNERS_UP = [("7", -2.0154), ("3", -1.5849), ("D", -1.9427), ("&", -2.3239), ("5", -2.8849)]


async def test_c207_three_choices_of_one_prompt(scripted_pair):
    answer = await ask(scripted_pair, prompt="A", n=3, max_tokens=20)
    assert [(choice.text, choice.finish) for choice in answer.choices] == [("bcdefghij", "stop")] * 3
    single = await ask(scripted_pair, prompt="A", max_tokens=20)
    assert answer.prompt_tokens == single.prompt_tokens == 2
    assert answer.completion_tokens == 3 * single.completion_tokens


async def test_c207_each_streamed_choice_has_its_own_end(scripted_pair):
    told = await chunks(scripted_pair, prompt="A", n=3, max_tokens=20, temperature=0)
    ends = [part["index"] for chunk in told for part in chunk["choices"] if part["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]
    assert [sse.text(told, choice) for choice in range(3)] == ["bcdefghij"] * 3


async def test_c207_choices_under_a_seed_differ_and_repeat(random_pair):
    first, second = [await ask(random_pair, prompt=FOX, n=3, temperature=1.0, seed=7, max_tokens=24) for _ in range(2)]
    assert len(set(first.texts)) == 3
    assert first.texts == second.texts


async def test_c207_best_of_is_refused_by_name(scripted_pair):
    async with http(scripted_pair) as client:
        answer = await client.post("/v1/completions", json={"prompt": "A", "best_of": 3})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "best_of"


async def test_c242_logprobs_of_every_token(random_pair):
    answer = await ask(random_pair, prompt=FOX, max_tokens=5, logprobs=2)
    entries = answer.only.logprobs
    assert [entry.token for entry in entries] == TOKENS
    assert [entry.logprob for entry in entries] == pytest.approx(LOGPROBS, abs=0.01)
    for entry, (rival, logprob) in zip(entries, RUNNERS_UP, strict=True):
        assert entry.top == pytest.approx({entry.token: entry.logprob, rival: logprob}, abs=0.01)


async def test_c242_logprobs_of_a_chat(random_pair):
    messages = [{"role": "user", "content": "hi"}]
    answer = await ask(random_pair, messages=messages, max_tokens=5, logprobs=True, top_logprobs=2)
    assert len(answer.only.logprobs) == answer.completion_tokens == 5
    assert "".join(entry.token for entry in answer.only.logprobs) == answer.text
    assert all(len(entry.top) == 2 for entry in answer.only.logprobs)
