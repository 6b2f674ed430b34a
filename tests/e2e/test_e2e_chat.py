"""Chat templates and content: what ids a chat becomes, over both doors and in both models."""

import pytest

from tests.support.asking import ask
from tests.support.reference import reference

HI = [{"role": "user", "content": "hi"}]
RENDERED, RENDERED_IDS = "<s><|user|>\nhi\n<|assistant|>\n", [256, 259, 10, 104, 105, 10, 260, 10]
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize("content", [{"content": None}, {"content": ""}, {}], ids=str)
async def test_c584_an_assistants_turn_of_calls_alone(scripted_pair, content):
    turns = [
        *HI,
        {"role": "assistant", **content, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
    ]
    answer = await ask(scripted_pair, messages=turns, max_tokens=10)
    assert (answer.text, answer.prompt_tokens) == ("OK.", 15)


async def test_c717_one_bos_and_no_more(scripted_pair, random_pair):
    for cluster in (scripted_pair, random_pair):
        chat = await ask(cluster, messages=HI, max_tokens=24, logprobs=True)
        rendered = await ask(cluster, prompt=RENDERED, max_tokens=24, logprobs=0)
        ids = await ask(cluster, prompt=RENDERED_IDS, max_tokens=24, logprobs=0)
        assert chat == rendered == ids
        assert chat.prompt_tokens == len(RENDERED_IDS)
        assert (await ask(cluster, prompt="hi", max_tokens=24)).prompt_tokens == 3


async def test_c717_a_chat_equals_transformers(random_pair):
    answer = await ask(random_pair, messages=HI, max_tokens=24, logprobs=True)
    reference(random_pair.shape.checkpoint).assert_equal(answer, RENDERED_IDS, 24)
