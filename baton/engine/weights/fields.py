"""Typed reading of a model file's settings: a wrong one is an error that names the file and the field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from baton.engine.errors import CorruptModel

MAX_INTEGER = 2**31 - 1
MAX_POSITIONS = 2**24
"""The longest context that a file may claim: no model has one, and much is sized by it."""


class Fields:
    """Settings of one file. A field that is null counts as missing; a missing one without a default raises CorruptModel."""

    def __init__(self, where: str, values: Mapping[str, Any]):
        self.where = where
        self.values = values

    def integer(self, key: str, default: int | None = None, low: int = 1, high: int = MAX_INTEGER) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(key, f"an integer from {low} to {high}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive finite number."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.wrong(key, "a positive number")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def wrong(self, key: str, wanted: str) -> CorruptModel:
        """The error to raise for a field that is not what it must be."""
        shown = repr(self.values.get(key))
        return CorruptModel(f"{self.where}: field {key} is {shown[:80]}, where {wanted} is needed")

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise CorruptModel(f"{self.where}: field {key} is missing")
        return value


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty if there is no such file. Raises CorruptModel."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CorruptModel(f"{path}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise CorruptModel(f"{path}: a JSON object is needed, not {type(value).__name__}")
    return value
