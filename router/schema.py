"""Which fields a request may have, and typed reading of one. Names are OpenAI's; extras are named as vLLM names them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf, isfinite
from typing import TypeGuard, TypeVar

from baton.wire.errors import InvalidRequest

Default = TypeVar("Default")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SHARED = _words(
    "model n seed stop max_tokens temperature top_p top_k min_p presence_penalty frequency_penalty repetition_penalty "
    "logit_bias logprobs min_tokens ignore_eos stop_token_ids include_stop_str_in_output skip_special_tokens "
    "stream stream_options timeline deadline_s"
)
COMPLETION = SHARED | {"prompt", "best_of"}
CHAT = SHARED | {"messages", "max_completion_tokens", "top_logprobs"}

NOTES = {"user": str, "safety_identifier": str, "prompt_cache_key": str, "metadata": dict, "parallel_tool_calls": bool}
"""Fields that change nothing here, and their type: taken and ignored, as OpenAI's clients send them freely."""

HARMLESS: Mapping[str, tuple[object, ...]] = {
    "store": (False,),
    "service_tier": ("auto", "default"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "tool_choice": ("none",),
    "function_call": ("none",),
    "echo": (False,),
}
"""Fields that are not supported, and the values of them that ask for nothing (null always does)."""

UNSUPPORTED = _words(
    "suffix tools functions audio prediction reasoning_effort verbosity web_search_options chat_template "
    "chat_template_kwargs add_generation_prompt continue_final_message documents guided_json guided_regex guided_choice "
    "guided_grammar structured_outputs prompt_logprobs truncate_prompt_tokens bad_words allowed_token_ids "
    "return_tokens_as_token_ids cache_salt priority use_beam_search length_penalty lora_adapter"
)
"""Known fields of OpenAI and vLLM that are not supported with any value but null."""


def check_names(fields: Mapping[str, object], known: Iterable[str]) -> None:
    """Raises InvalidRequest for the first field that would be ignored but must not be."""
    for name, value in fields.items():
        if name in known:
            continue
        if name in NOTES:
            if value is not None and type(value) is not NOTES[name]:
                raise invalid(name, f"must be {_KINDS[NOTES[name]]}", value)
        elif name not in HARMLESS and name not in UNSUPPORTED:
            raise InvalidRequest(f"Unrecognized request argument supplied: {shown(name)}", param=shown(name))
        elif value is not None and not _is_harmless(name, value):
            raise InvalidRequest(f"`{name}` with this value is not supported by this server; leave it out.", param=name)


def _is_harmless(name: str, value: object) -> bool:
    return any(type(value) is type(harmless) and value == harmless for harmless in HARMLESS.get(name, ()))


class Fields:
    """A request's fields, read with their types checked; null reads as absent. All reading raises InvalidRequest."""

    def __init__(self, fields: Mapping[str, object]):
        self._fields = fields

    def get(self, name: str) -> object:
        return self._fields.get(name)

    def has(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def integer(self, name: str, low: int, high: int | None, default: Default) -> int | Default:
        """A whole number in [low, high]; a bool or 5.0 is none."""
        value = self._fields.get(name)
        if value is None:
            return default
        if type(value) is not int or value < low or (high is not None and value > high):
            raise invalid(name, f"must be an integer {_range(low, high)}", value)
        return value

    def number(self, name: str, low: float, high: float, default: float, above: bool = False) -> float:
        """A finite number in [low, high], or (low, high] if it must be `above` low."""
        value = self._fields.get(name)
        if value is None:
            return default
        if not is_number(value) or not (low < value if above else low <= value) or value > high:
            bounds = f"above {low:g} and at most {high:g}" if above else _range(low, high)
            raise invalid(name, f"must be a number {bounds}", value)
        return float(value)

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self._fields.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise invalid(name, "must be true or false", value)
        return value

    def text(self, name: str, default: str = "") -> str:
        value = self._fields.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise invalid(name, "must be a string", value)
        return value

    def inner(self, name: str) -> Fields:
        """The fields of an object; none if it is absent."""
        value = self._fields.get(name)
        if value is None:
            return Fields({})
        if not isinstance(value, dict):
            raise invalid(name, "must be an object", value)
        return Fields(value)

    def names(self) -> Iterable[str]:
        return self._fields.keys()


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether `value` is a finite number; a bool is none."""
    return type(value) is int or (type(value) is float and isfinite(value))


def invalid(param: str, rule: str, value: object) -> InvalidRequest:
    """The error for a field that breaks `rule`: names the field, the rule and what was sent."""
    text = shown(value)
    got = f'"{text}"' if text == value else text  # a string that looks like a number must not read like one
    return InvalidRequest(f"`{param}` {rule}, but got {got}.", param=param)


def shown(value: object) -> str:
    """A value as an error message shows it: short, whatever was sent."""
    if isinstance(value, str):
        return value if len(value) <= 40 and value.isprintable() and value else f"a string of {len(value)} characters"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value) if not isinstance(value, int) or abs(value) < 1 << 64 else "an integer of more than 64 bits"


def _range(low: float, high: float | None) -> str:
    return f"of at least {low:g}" if high is None or high == inf else f"from {_plain(low)} to {_plain(high)}"


def _plain(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


_KINDS: Mapping[type, str] = {str: "a string", dict: "an object", bool: "true or false"}


def request_schema(chat: bool) -> dict[str, object]:
    """The request body for the OpenAPI document: which fields there are."""
    names, required = (CHAT, "messages") if chat else (COMPLETION, "prompt")
    body = {"type": "object", "required": [required], "properties": {name: {} for name in sorted(names | NOTES.keys())}}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": body}}}}
