"""Chat templates: what they may use, what stops them, and how messages reach them."""

from __future__ import annotations

from typing import Any

import pytest

from baton.wire.errors import Internal, InvalidRequest
from router.messages import read_messages
from router.template import ChatTemplate
from tests.support.doors import scripted_card


def render(source: str, messages: Any = (), **caps: Any) -> str:
    return ChatTemplate(scripted_card(chat_template=source), **caps).render(messages)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
        ("  {% if true %}\na\n  {% endif %}\nb", "a\nb"),
        ("{{ messages | tojson }}", '[{"a": "é<"}]'),
        ("{{ messages | tojson(indent=1) }}", '[\n {\n  "a": "é<"\n }\n]'),
        ("{% generation %}x{{ 1 }}{% endgeneration %}", "x1"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% for m in messages %}{{ loop.index }}{{ loop.last }}{{ loop.length }}{% endfor %}", "1True1"),
        ("{% macro f(x) %}{% for i in x %}{{ i }}{% endfor %}{% endmacro %}{{ f([1, 2]) }}", "12"),
        ("{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}", "TrueTrueTrue"),
    ],
)
def test_templates_render_as_transformers_does(source: str, text: str) -> None:
    assert render(source, [{"a": "é<"}]) == text


def test_a_template_may_ask_for_the_date() -> None:
    assert len(render("{{ strftime_now('%Y') }}")) == 4


def test_a_template_may_refuse_the_messages() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate") as error:
        render("{{ raise_exception('roles must alternate') }}")
    assert error.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ lipsum.__globals__['os'] }}",
        "{{ messages.append(1) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 1 // 0 }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
    ],
)
def test_what_the_sandbox_forbids_is_refused(source: str) -> None:
    with pytest.raises(InvalidRequest):
        render(source, [])


def test_an_endless_loop_ends_at_the_cap() -> None:
    with pytest.raises(InvalidRequest, match="longer than"):
        render("{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}", max_s=0.05)


def test_output_ends_at_the_cap() -> None:
    with pytest.raises(InvalidRequest, match="1000 bytes"):
        render("{% for a in range(1000) %}éé{% endfor %}", max_bytes=1000)


def test_a_model_without_a_template_says_where_to_go() -> None:
    with pytest.raises(InvalidRequest, match="/v1/completions"):
        ChatTemplate(scripted_card(chat_template=None)).render([])


def test_a_broken_template_is_the_models_fault() -> None:
    with pytest.raises(Internal, match="cannot be compiled"):
        render("{% for %}")


CALLS = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


@pytest.mark.parametrize("content", [{"content": None}, {}, {"content": ""}])
def test_c584_an_assistant_without_content_says_nothing(content: dict[str, Any]) -> None:
    (message,) = read_messages([{"role": "assistant", "tool_calls": CALLS, **content}])
    assert message["content"] == ""


def test_text_parts_are_joined_and_roles_are_the_templates() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    (message,) = read_messages([{"role": "developer", "content": parts}])
    assert message == {"role": "system", "content": "a\nb"}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("hi", "messages[0]"),
        ({"content": "hi"}, "messages[0].role"),
        ({"role": "robot", "content": "hi"}, "messages[0].role"),
        ({"role": ["user"], "content": "hi"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "user", "content": ["hi"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": "hi", "name": 5}, "messages[0].name"),
        ({"role": "user", "content": "hi", "tool_calls": CALLS}, "messages[0].tool_calls"),
        ({"role": "user", "content": "hi", "color": "red"}, "messages[0].color"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "messages[0].tool_calls[0]"),
    ],
)
def test_a_wrong_message_is_refused_by_name(message: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        read_messages([message])
    assert error.value.param == param
