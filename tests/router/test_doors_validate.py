"""Validation: the same fault has the same text and the same field at both doors."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from baton.client import AsyncClient
from baton.cluster.config import Limits, RouterConfig
from baton.wire.errors import ContextOverflow, InvalidRequest, Unavailable, UnknownModel
from router.grpc_door import serve_grpc
from router.http.app import create_app
from router.request import GenerateRequest
from router.validate import Prepared, RawRequest, Validator
from tests.support.doors import FakeService, scripted_card

MESSAGES = [{"role": "user", "content": "hi"}]


async def prepare(chat: bool = False, service: FakeService | None = None, **fields: Any) -> Prepared:
    fields = ({"messages": MESSAGES} if chat else {"prompt": "A"}) | fields
    return await Validator(service or FakeService(), Limits()).prepare(RawRequest(fields, chat))


async def request_of(chat: bool = False, **fields: Any) -> GenerateRequest:
    return (await prepare(chat, **fields)).first


FAULTS: list[tuple[str, Any]] = [
    *(("n", value) for value in (0, 129, 1 << 63, -1, True, 1.0, "1")),
    *(("max_tokens", value) for value in (0, -1, True, 2.5, "9")),
    *(("min_tokens", value) for value in (-1, 17, True)),
    *(("temperature", value) for value in (-1, 2.1, 1e308, float("nan"), float("inf"), "1", True, 10**400)),
    *(("top_p", value) for value in (0, -0.1, 1.1)),
    *(("top_k", value) for value in (-2, 1 << 31, 1.5)),
    *(("min_p", value) for value in (-0.1, 1.1)),
    *(("presence_penalty", value) for value in (-2.1, 2.1)),
    *(("frequency_penalty", value) for value in (-2.1, 2.1)),
    *(("repetition_penalty", value) for value in (0, -1, 101)),
    *(("logit_bias", value) for value in ([], {"a": 1}, {"263": 1}, {"-1": 1}, {"1": 101}, {"1": None}, {"१": 1}, {"1_0": 1})),
    ("logit_bias", {str(i): 0 for i in range(1025)}),
    *(("seed", value) for value in (1 << 63, 1 << 64, -(1 << 63) - 1, True, "7")),
    *(("stop", value) for value in ("", [""], ["a"] * 5, "x" * 257, [1], 5, {})),
    *(("stop_token_ids", value) for value in ([263], [-1], [True], "a", [1] * 129)),
    *(("logprobs", value) for value in (-1, 21, True)),
    *(("ignore_eos", value) for value in (1, "true")),
    *(("model", value) for value in (5, ["scripted"])),
    *(("stream", value) for value in (1, "yes")),
    *(("deadline_s", value) for value in (-1, "soon")),
    *(("user", value) for value in (5, {})),
]


@pytest.mark.parametrize(("name", "value"), FAULTS)
async def test_a_value_out_of_its_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as error:
        await prepare(**{"max_tokens": 16, name: value})
    assert error.value.param == name
    assert name in error.value.message
    assert len(error.value.message) < 300


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("temperature", "1", '`temperature` must be a number from 0 to 2, but got "1".'),
        ("deadline_s", -1, "`deadline_s` must be a number of at least 0, but got -1."),
    ],
)
async def test_the_rule_and_what_was_sent_are_told(name: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        await prepare(**{name: value})
    assert error.value.message == message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [{"type": "function"}]),
        ("tool_choice", "auto"),
        ("response_format", {"type": "json_object"}),
        ("store", True),
        ("store", 0),
        ("service_tier", "flex"),
        ("modalities", ["audio"]),
        ("echo", True),
        ("suffix", "x"),
        ("chat_template", "{{ x }}"),
        ("chat_template_kwargs", {}),
        ("kv_transfer_params", {}),
        ("bootstrap_room", None),
        ("made_up", 1),
        ("best_of", 2),
    ],
)
async def test_a_field_that_would_be_ignored_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as error:
        await prepare(**{name: value})
    assert error.value.param == name


async def test_fields_that_ask_for_nothing_are_taken() -> None:
    nothing = {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "tools": None, "logit_bias": None}
    more = {"response_format": {"type": "text"}, "parallel_tool_calls": True, "tool_choice": "none", "seed": None}
    assert (await prepare(chat=True, **nothing, **more)).first.n == 1
    assert (await prepare(best_of=2, n=2, echo=False, suffix=None)).first.n == 2


PROMPTS: list[Any] = [
    "",
    [""],
    [],
    [[]],
    None,
    5,
    {},
    ["a", ""],
    ["a", 1],
    [1, "a"],
    [[1], "a", []],
    [263],
    [-1],
    [1.0],
    [True],
]


@pytest.mark.parametrize("prompt", PROMPTS)
async def test_c457_an_empty_or_mixed_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequest) as error:
        await prepare(prompt=prompt)
    assert error.value.param == "prompt"


@pytest.mark.parametrize("messages", [[], None, "hi", [None]])
async def test_c457_no_messages_are_refused(messages: Any) -> None:
    with pytest.raises(InvalidRequest, match="messages"):
        await prepare(chat=True, messages=messages)


async def test_prompts_come_as_text_or_ids_or_lists_of_either() -> None:
    forms = {"hi": 1, ("hi", "ho"): 2}
    for prompt, num in forms.items():
        prepared = await prepare(prompt=prompt if isinstance(prompt, str) else list(prompt))
        assert len(prepared.requests) == num
        assert prepared.first.prompt_ids == (256, *b"hi")
    assert (await request_of(prompt=[104, 105])).prompt_ids == (104, 105)
    several = await prepare(prompt=[[104], [105, 106]])
    assert [request.prompt_ids for request in several.requests] == [(104,), (105, 106)]
    assert len({request.request_id for request in several.requests}) == 2


async def test_the_number_of_prompts_and_choices_is_bounded() -> None:
    with pytest.raises(InvalidRequest, match="at most 64 prompts"):
        await prepare(prompt=["a"] * 65)
    with pytest.raises(InvalidRequest, match="128") as error:
        await prepare(prompt=["a"] * 64, n=3)
    assert error.value.param == "n"
    assert len((await prepare(prompt=["a"] * 64, n=2)).requests) == 64


async def test_c194_a_prompt_over_the_context_names_both_numbers() -> None:
    service = FakeService(scripted_card(max_model_len=64))
    with pytest.raises(ContextOverflow, match=r"64 tokens.* 101 tokens") as error:
        await prepare(service=service, prompt="x" * 100)
    assert error.value.param == "prompt"
    with pytest.raises(ContextOverflow, match=r"64 tokens.*max_tokens 1000 are 1002"):
        await prepare(service=service, prompt="0", max_tokens=1000)
    with pytest.raises(ContextOverflow, match="64"):
        await prepare(service=service, prompt="x" * 63, max_tokens=1)
    assert (await prepare(service=service, prompt="x" * 62, max_tokens=1)).first.params.max_tokens == 1
    assert (await prepare(service=service, prompt="0")).first.params.max_tokens == 62
    with pytest.raises(ContextOverflow) as error:
        await prepare(chat=True, service=service, messages=[{"role": "user", "content": "x" * 64}])
    assert error.value.param == "messages"
    with pytest.raises(ContextOverflow, match="5000"):
        await prepare(service=service, prompt=[-1] * 5000)


async def test_the_doors_default_is_clamped_and_the_clients_number_is_not() -> None:
    validator = Validator(FakeService(scripted_card(max_model_len=10)), Limits())
    prepared = await validator.prepare(RawRequest({"prompt": "abc"}, chat=False, default_max_tokens=16))
    assert prepared.first.params.max_tokens == 6


async def test_params_are_complete() -> None:
    request = await request_of(seed=-1, top_k=-1, logit_bias={"5": 1}, stop="x", stop_token_ids=[7], logprobs=3)
    params = request.params
    assert (params.seed, params.top_k, params.logit_bias) == ((1 << 64) - 1, 0, ((5, 1.0),))
    assert (request.stop, params.stop_ids, params.num_logprobs, params.eos_ids) == (("x",), (7,), 3, (257, 258))
    assert request.seeded
    first, second = await request_of(), await request_of()
    assert first.params.seed != second.params.seed
    assert not first.seeded
    assert first.request_id != second.request_id


async def test_chat_says_logprobs_in_its_own_way() -> None:
    assert (await request_of(chat=True, logprobs=True, top_logprobs=2)).params.num_logprobs == 2
    assert (await request_of(chat=True, logprobs=True)).params.num_logprobs == 0
    assert (await request_of(chat=True, logprobs=False)).params.num_logprobs is None
    with pytest.raises(InvalidRequest, match="needs `logprobs`"):
        await prepare(chat=True, top_logprobs=2)
    with pytest.raises(InvalidRequest):
        await prepare(chat=True, logprobs=2)


async def test_max_completion_tokens_is_the_new_name() -> None:
    assert (await request_of(chat=True, max_completion_tokens=5)).params.max_tokens == 5
    assert (await request_of(chat=True, max_completion_tokens=5, max_tokens=5)).params.max_tokens == 5
    with pytest.raises(InvalidRequest):
        await prepare(chat=True, max_completion_tokens=5, max_tokens=6)


async def test_stream_options_need_a_stream() -> None:
    assert (await prepare(stream=True, stream_options={"include_usage": True})).include_usage
    for fields in (
        {"stream_options": {"include_usage": True}},
        {"stream": True, "stream_options": {"continuous_usage_stats": True}},
        {"stream": True, "stream_options": []},
    ):
        with pytest.raises(InvalidRequest) as error:
            await prepare(**fields)
        assert "stream_options" in str(error.value.param)


async def test_the_model_is_the_named_one_or_the_only_one() -> None:
    service = FakeService()
    assert (await prepare(service=service)).first.model == "scripted"
    with pytest.raises(UnknownModel):
        await prepare(service=service, model="gpt")
    service.cards["other"] = scripted_card(name="other")
    with pytest.raises(InvalidRequest, match="scripted, other"):
        await prepare(service=service)
    service.cards.clear()
    with pytest.raises(Unavailable):
        await prepare(service=service)


async def test_a_model_whose_card_changes_gets_its_new_tokenizer() -> None:
    service = FakeService()
    validator = Validator(service, Limits())
    raw = RawRequest({"prompt": "A"}, chat=False)
    assert (await validator.prepare(raw)).first.prompt_ids == (256, 65)
    service.cards["scripted"] = scripted_card(add_bos=False)
    assert (await validator.prepare(raw)).first.prompt_ids == (65,)


async def test_long_text_is_encoded_too() -> None:
    service = FakeService(scripted_card(max_model_len=100_000))
    request = (await prepare(service=service, prompt="x" * 9000)).first
    assert len(request.prompt_ids) == 9001
    chat = (await prepare(chat=True, service=service, messages=[{"role": "user", "content": "x" * 9000}])).first
    assert len(chat.prompt_ids) == 9006


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 129}, "n"),
        ({"temperature": 3.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"logit_bias": {263: 1.0}}, "logit_bias"),
        ({"stop_token_ids": [263]}, "stop_token_ids"),
        ({"logprobs": 21}, "logprobs"),
        ({"min_tokens": 30, "max_tokens": 20}, "min_tokens"),
        ({"max_tokens": 5000}, "max_tokens"),
        ({"model": "gpt"}, "model"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [263]}, "prompt"),
    ],
)
async def test_both_doors_say_the_same(fields: dict[str, Any], param: str) -> None:
    service, config = FakeService(), RouterConfig(grpc_port=0)
    options = {"prompt": "A"} | fields
    transport = httpx.ASGITransport(app=create_app(service, config))
    async with serve_grpc(service, config) as port, AsyncClient(f"127.0.0.1:{port}", 60) as client:
        with pytest.raises(InvalidRequest) as error:
            await client.complete(**options)
    biases = {str(key): value for key, value in options.get("logit_bias", {}).items()}
    body = options | ({"logit_bias": biases} if biases else {})
    async with httpx.AsyncClient(transport=transport, base_url="http://door") as http:
        answer = (await http.post("/v1/completions", json=body)).json()["error"]
    assert (answer["message"], answer["param"], answer["code"]) == (error.value.message, param, error.value.code)
    assert error.value.param == param
