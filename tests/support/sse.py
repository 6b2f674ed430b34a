"""Reads server-sent events strictly: every line must be one that OpenAI's clients understand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any


def events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The JSON of each event. Fails on anything unknown, or if [DONE] is missing after a stream without an error."""
    done = failed = False
    for line in lines:
        if not line or line.startswith(":"):
            continue
        assert line.startswith("data: "), f"not an event: {line!r}"
        assert not done, f"{line!r} after [DONE]"
        if line == "data: [DONE]":
            done = True
            continue
        event = json.loads(line.removeprefix("data: "))
        failed = "error" in event
        yield event
    assert done != failed, "a stream ends with [DONE], or with an error and no [DONE]"


def text(chunks: Iterable[dict[str, Any]], choice: int = 0) -> str:
    """What a client shows of one choice: the joined deltas of completions or chat."""
    parts = (part for chunk in chunks for part in chunk["choices"] if part["index"] == choice)
    return "".join(part["text"] if "text" in part else part["delta"].get("content") or "" for part in parts)
