"""Prompts that are too long, too short or missing."""

import pytest

from tests.support.asking import ask, http, refused
from tests.support.processes import Shape

CONTEXT = 64
NOTHING = [
    {"prompt": ""},
    {"prompt": [""]},
    {"prompt": []},
    {"prompt": [[]]},
    {"prompt": None},
    {},
    {"messages": []},
    {"messages": None},
    {"messages": [{"role": "user", "content": None}]},
]


@pytest.fixture
def short_context(clusters, scripted):
    worker = (("kv_blocks", 64), ("block_size", 16), ("max_model_len", CONTEXT))
    return clusters(Shape(scripted, forked=True, worker=worker))


async def test_c194_a_prompt_over_the_context(short_context):
    error = await refused(short_context, prompt="x" * 100, max_tokens=10)
    assert "101" in error["message"]
    assert str(CONTEXT) in error["message"]
    assert error["code"] == "context_length_exceeded"


async def test_c194_prompt_and_max_tokens_over_the_context(short_context):
    error = await refused(short_context, prompt="0", max_tokens=1000, temperature=0)
    assert "1000" in error["message"]
    assert str(CONTEXT) in error["message"]
    answer = await ask(short_context, prompt="0", max_tokens=CONTEXT - 2)
    assert (answer.text, answer.finish) == (("1234567890" * 7)[: CONTEXT - 2], "length")


async def test_c194_room_for_one_token_and_for_none(short_context):
    assert "64" in (await refused(short_context, prompt="x" * 63, max_tokens=1))["message"]
    answer = await ask(short_context, prompt="x" * 62, max_tokens=1)
    assert (answer.text, answer.finish, answer.completion_tokens) == (".", "length", 1)


@pytest.mark.parametrize("nothing", NOTHING, ids=str)
async def test_c457_nothing_to_continue(scripted_pair, nothing):
    error = await refused(scripted_pair, **nothing, max_tokens=20, temperature=0)
    assert error["param"].startswith("messages" if "messages" in nothing else "prompt")
    scripted_pair.assert_serving()


async def test_c457_an_empty_message_is_a_message(scripted_pair):
    answer = await ask(scripted_pair, messages=[{"role": "user", "content": ""}], max_tokens=20)
    assert (answer.text, answer.prompt_tokens) == ("OK.", 6)


async def test_c457_messages_without_any(scripted_pair):
    async with http(scripted_pair) as client:
        answer = await client.post("/v1/chat/completions", json={"max_tokens": 20})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages"
