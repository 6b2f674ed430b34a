"""Converts dataclasses whose protobuf message has the same field names and only plain values."""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.message import Message

M = TypeVar("M", bound=Message)
T = TypeVar("T")


def _names(kind: type[Any]) -> tuple[str, ...]:
    names: tuple[str, ...] = kind.__match_args__  # a dataclass keeps its fields' names here
    return names


def pack_flat(value: Any, message: type[M]) -> M:
    """`value`'s fields, by name, as a `message`; a field that is None stays unset."""
    return message(**{name: getattr(value, name) for name in _names(type(value))})


def unpack_flat(message: Message, kind: type[T]) -> T:
    """`message`'s fields, by name, as a `kind`."""
    return kind(**{name: getattr(message, name) for name in _names(kind)})
