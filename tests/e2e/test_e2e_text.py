"""Usage and finish reasons, stop strings and UTF-8, as a client reads them from a stream or whole."""

import pytest

from tests.support import sse
from tests.support.asking import ask, chunks

HI = [{"role": "user", "content": "hi"}]


async def test_c726_usage_of_a_chat(scripted_pair):
    answer = await ask(scripted_pair, messages=HI, max_tokens=10)
    assert (answer.text, answer.finish) == ("OK.", "stop")
    assert (answer.prompt_tokens, answer.completion_tokens) == (8, 4)


async def test_c726_usage_comes_in_a_chunk_of_its_own(scripted_pair):
    fields = {"messages": HI, "max_tokens": 10, "temperature": 0}
    *parts, usage = await chunks(scripted_pair, **fields, stream_options={"include_usage": True})
    assert sse.text(parts) == "OK."
    assert [part["choices"][0]["finish_reason"] for part in parts if part["choices"][0]["finish_reason"]] == ["stop"]
    assert parts[-1]["choices"][0]["finish_reason"] == "stop"
    assert all(part["usage"] is None for part in parts)
    assert usage["choices"] == []
    counted = {name: usage["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    assert counted == {"prompt_tokens": 8, "completion_tokens": 4, "total_tokens": 12}


async def test_c726_no_usage_unless_asked_for(scripted_pair):
    told = await chunks(scripted_pair, messages=HI, max_tokens=10, temperature=0)
    assert sse.text(told) == "OK."
    assert all(chunk["choices"] and chunk.get("usage") is None for chunk in told)


async def test_c983_a_stop_beats_the_limit(scripted_pair):
    answer = await ask(scripted_pair, prompt="A", stop=["d"], max_tokens=3)
    assert (answer.text, answer.finish) == ("bc", "stop")
    answer = await ask(scripted_pair, prompt="A", max_tokens=10)
    assert (answer.text, answer.finish) == ("bcdefghij", "stop")


@pytest.mark.parametrize(
    ("stop", "text", "num_tokens"), [(["ef"], "bcd", 5), (["bc"], "", 2), (["b"], "", 1), (["zz", "hij"], "bcdefg", 9)]
)
async def test_c344_a_stop_string_across_tokens(scripted_pair, stop, text, num_tokens):
    answer = await ask(scripted_pair, prompt="A", max_tokens=20, stop=stop)
    assert (answer.text, answer.finish, answer.completion_tokens) == (text, "stop", num_tokens)


async def test_c344_generation_ends_with_the_stop_string(scripted_pair):
    """Decode may sample a little beyond it before it hears of the end, not 1,000 tokens."""
    before = generated(scripted_pair)
    answer = await ask(scripted_pair, prompt="0", max_tokens=1000, stop=["345"])
    assert (answer.text, answer.finish) == ("12", "stop")
    scripted_pair.assert_idle()
    assert generated(scripted_pair) - before < 1000


def generated(cluster):
    """Tokens that all workers sampled."""
    names = ("baton_worker_generated_tokens_total", "baton_worker_overrun_tokens_total")
    return sum(value for name, value in cluster.metrics().items() if name.startswith(names))


async def test_c272_characters_of_several_tokens(scripted_pair):
    answer = await ask(scripted_pair, prompt="#", max_tokens=20)
    assert (answer.text, answer.finish) == ("🌶辣!", "stop")
    told = await chunks(scripted_pair, prompt="#", max_tokens=20, temperature=0)
    assert "\N{REPLACEMENT CHARACTER}" not in str(told)


@pytest.mark.parametrize(("max_tokens", "text"), [(2, ""), (6, "🌶")])
async def test_c272_a_limit_that_cuts_a_character(scripted_pair, max_tokens, text):
    answer = await ask(scripted_pair, prompt="#", max_tokens=max_tokens)
    assert answer.text in (text, text + "\N{REPLACEMENT CHARACTER}")
    assert (answer.finish, answer.completion_tokens) == ("length", max_tokens)
