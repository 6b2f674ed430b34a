"""A chat's messages: checked, brought to the form that templates expect, and fenced so that no text names a control token."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from baton.wire.errors import InvalidRequest
from router.schema import invalid, shown
from router.tokenizer import Tokenizer

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Roles that a client may use, and what a template calls them."""

TEXTS = ("name", "tool_call_id")

Message = dict[str, Any]


def read_messages(value: object) -> list[Message]:
    """The messages with text content ("" where an assistant has none). Raises InvalidRequest naming the field."""
    if not isinstance(value, list) or not value:
        raise invalid("messages", "must be a list of at least one message", value)
    return [_message(item, f"messages[{i}]") for i, item in enumerate(value)]


def fence(messages: list[Message], tokenizer: Tokenizer) -> tuple[list[Message], str | None]:
    """The messages as they may enter a template, and the mark that fences control tokens' names in them (None: no need)."""
    mark = tokenizer.mark_for([text for message in messages for text in _texts(message)])
    if mark is None:
        return messages, None
    return [_mapped(message, lambda text: tokenizer.fence(text, mark)) for message in messages], mark


def _message(item: object, path: str) -> Message:
    if not isinstance(item, dict):
        raise invalid(path, "must be an object", item)
    role = item.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise invalid(f"{path}.role", "must be system, developer, user, assistant or tool", role)
    message: Message = {"role": ROLES[role], "content": _content(item.get("content"), role, f"{path}.content")}
    for name, value in item.items():
        if name in TEXTS and value is not None:
            message[name] = _text(value, f"{path}.{name}")
        elif name == "tool_calls" and value:
            message[name] = _tool_calls(value, role, f"{path}.{name}")
        elif name not in ("role", "content") and value not in (None, []):
            raise InvalidRequest(f"`{path}.{shown(name)}` is not supported; leave it out.", param=f"{path}.{shown(name)}")
    return message


def _content(value: object, role: str, path: str) -> str:
    if value is None and role == "assistant":
        return ""
    if isinstance(value, list) and value:
        return "\n".join(_part(part, f"{path}[{i}]") for i, part in enumerate(value))
    if not isinstance(value, str):
        raise invalid(path, "must be a string or a list of text parts", value)
    return value


def _part(part: object, path: str) -> str:
    if not isinstance(part, dict):
        raise invalid(path, "must be an object", part)
    if part.get("type") != "text":
        raise invalid(f"{path}.type", "must be text: this model reads nothing else", part.get("type"))
    return _text(part.get("text"), f"{path}.text")


def _tool_calls(value: object, role: str, path: str) -> list[Message]:
    if role != "assistant" or not isinstance(value, list):
        raise invalid(path, "must be a list in an assistant's message", value)
    return [_tool_call(call, f"{path}[{i}]") for i, call in enumerate(value)]


def _tool_call(call: object, path: str) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise invalid(path, "must be an object with a function", call)
    name = _text(function.get("name"), f"{path}.function.name")
    arguments = _text(function.get("arguments"), f"{path}.function.arguments")
    return {
        "id": _text(call.get("id", ""), f"{path}.id"),
        "type": "function",
        "function": {"name": name, "arguments": _parsed(arguments)},
    }


def _parsed(arguments: str) -> object:
    """A call's arguments as the object that templates print; as the text itself if a model wrote no object."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise invalid(path, "must be a string", value)
    return value


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """`value` with every text in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _mapped(item, change) for key, item in value.items()}
    return [_mapped(item, change) for item in value] if isinstance(value, list) else value
