"""Parts that the answers of both endpoints share: ids, usage, timeline, and events built from a cached head and tail."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from functools import lru_cache

import orjson

from router.request import Alternative, Generation, TokenText
from router.validate import Prepared

LEAST_LOGPROB = -9999.0
"""What stands for minus infinity, which JSON cannot say."""


class Events:
    """The events of one stream. A chunk is a head, a choice and a tail; head and tail never change.

    `kind` is the object's name, `prefix` the id's. With `include_usage` every chunk but the last says that usage is null.
    """

    def __init__(self, prepared: Prepared, prefix: str, kind: str):
        self._prepared = prepared
        self.id = f"{prefix}-{prepared.first.request_id}"
        self.created = int(time.time())
        self._fixed = {"id": self.id, "object": kind, "created": self.created, "model": prepared.first.model}
        self._head = b"data: " + orjson.dumps(self._fixed)[:-1] + b',"choices":[{"index":'
        self._tail = b'}],"usage":null}\n\n' if prepared.include_usage else b"}]}\n\n"

    def chunk(self, choice: int, rest: bytes) -> bytes:
        """The event of one choice; `rest` are its fields after the index."""
        return b"%b%d,%b%b" % (self._head, choice, rest, self._tail)

    def ending(self, generation: Generation) -> bytes:
        """The last chunk, without choices: usage and timeline as asked for; empty if neither was."""
        extra: dict[str, object] = {}
        if self._prepared.include_usage:
            extra["usage"] = usage_of(generation)
        if self._prepared.timeline:
            extra["timeline"] = timeline_of(generation)
        return b"data: " + orjson.dumps(self._fixed | {"choices": []} | extra) + b"\n\n" if extra else b""

    def whole(self, kind: str, choices: list[dict[str, object]], generation: Generation) -> dict[str, object]:
        """The answer in one."""
        body = self._fixed | {"object": kind, "choices": choices, "usage": usage_of(generation)}
        return body | {"timeline": timeline_of(generation)} if self._prepared.timeline else body


def usage_of(generation: Generation) -> dict[str, object]:
    usage = generation.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def timeline_of(generation: Generation) -> dict[str, object]:
    """The timeline with its spans as objects, in order."""
    timeline = asdict(generation.timeline)
    return timeline | {"spans": [{"name": name, "seconds": seconds} for name, seconds in generation.timeline.spans]}


def token_name(token: TokenText | Alternative) -> str:
    """A token as a key: its text, or `bytes:\\xf0` where it is no whole character."""
    return token.text if token.text.encode("utf-8", "surrogatepass") == token.bytes else f"bytes:{token.text}"


def logprob_of(token: TokenText | Alternative) -> float:
    return LEAST_LOGPROB if token.logprob is None else max(token.logprob, LEAST_LOGPROB)


def joined(tokens: Iterable[tuple[TokenText, ...]]) -> list[TokenText]:
    return [token for some in tokens for token in some]


@lru_cache(maxsize=4)
def reason_of(finish: str | None) -> bytes:
    """A finish reason in JSON."""
    return orjson.dumps(finish)
