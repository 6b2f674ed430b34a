"""Copies and keys of mutable state: what makes a search over the real machines cheap enough."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import is_dataclass
from enum import Enum
from types import FunctionType
from typing import Any

from kvtransfer.protocol.choices import Choice, Choices
from kvtransfer.protocol.coordinator import Coordinator
from kvtransfer.protocol.cover import Cover
from kvtransfer.protocol.receiver import ReceiveLease
from kvtransfer.protocol.sender import SendAttempt


class Part:
    """A mutable piece of the world: copied with all that it holds, compared by value."""


MUTABLE = (Part, Coordinator, Choices, Choice, SendAttempt, ReceiveLease, Cover)


def clone(value: Any) -> Any:
    """A copy of containers and of MUTABLE instances; everything else is immutable and shared."""
    kind = type(value)
    copier = _COPIERS.get(kind, _unknown)
    if copier is _unknown:
        copier = _COPIERS[kind] = _copier(kind)
    return value if copier is None else copier(value)


def _copier(kind: type) -> Callable[[Any], Any] | None:
    """A type that is not known to be immutable must be one of MUTABLE, or states would share what they change."""
    if issubclass(kind, MUTABLE):
        return _copy_object
    frozen = is_dataclass(kind) and kind.__dataclass_params__.frozen
    if not (frozen or issubclass(kind, Enum | FunctionType)):
        raise TypeError(f"{kind.__name__} is neither immutable nor one of MUTABLE")
    return None


def _copy_object(value: Any) -> Any:
    copied = object.__new__(type(value))
    attributes = copied.__dict__
    for name, item in value.__dict__.items():
        copier = _COPIERS.get(type(item), clone)
        attributes[name] = item if copier is None else copier(item)
    return copied


def _copy_list(value: list[Any]) -> list[Any]:
    return [clone(item) for item in value]


def _copy_dict(value: dict[Any, Any]) -> dict[Any, Any]:
    return {key: clone(item) for key, item in value.items()} if value else {}


def _unknown(value: Any) -> Any:
    raise TypeError(type(value))


_COPIERS: dict[type, Callable[[Any], Any] | None] = {list: _copy_list, dict: _copy_dict, set: set}
_COPIERS |= dict.fromkeys((type(None), bool, int, str, bytes, tuple, frozenset))


class Keys:
    """Small ints for values: equal values have equal ints. A frozen dataclass is hashed once per object."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._seen: dict[int, tuple[Any, int]] = {}  # by id(), with the object so that the id stays taken
        self._freezers: dict[type, Callable[[Any], Hashable] | None] = {
            list: self._sequence,
            tuple: self._sequence,
            dict: self._dict,
            set: frozenset,
        }
        self._freezers |= dict.fromkeys((type(None), bool, int, str, bytes, frozenset))

    def of(self, value: Any) -> int:
        return self._number(self._frozen(value))

    def _number(self, frozen: Hashable) -> int:
        return self._numbers.setdefault(frozen, len(self._numbers))

    def _frozen(self, value: Any) -> Hashable:
        kind = type(value)
        freezer = self._freezers.get(kind, _unknown)
        if freezer is _unknown:
            freezer = self._freezers[kind] = self._mutable if issubclass(kind, MUTABLE) else self._immutable
        return value if freezer is None else freezer(value)

    def _sequence(self, value: Any) -> Hashable:
        return tuple([self._frozen(item) for item in value]) if value else ()

    def _dict(self, value: dict[Any, Any]) -> Hashable:
        return frozenset([(key, self._frozen(item)) for key, item in value.items()]) if value else ()

    def _mutable(self, value: Any) -> Hashable:
        frozen, freezers = self._frozen, self._freezers
        return tuple([item if freezers.get(type(item), frozen) is None else frozen(item) for item in value.__dict__.values()])

    def _immutable(self, value: Any) -> Hashable:
        known = self._seen.get(id(value))
        if known is None:
            known = self._seen[id(value)] = (value, self._number((type(value), value)))
        return known[1]
