"""A whole answer in one form, whichever way it came, so that ways can be compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

LOGPROB_TOLERANCE = 1e-3
"""Float32 sums in another order differ by less."""


@dataclass(frozen=True)
class Logprob:
    """One token's. `top` are the likeliest by token, and the chosen one."""

    token: str
    logprob: float
    top: Mapping[str, float]

    @classmethod
    def of(cls, token: str, logprob: float, rivals: Mapping[str, float]) -> Logprob:
        return cls(token, logprob, {**rivals, token: logprob})


@dataclass(frozen=True)
class Choice:
    text: str
    finish: str | None
    logprobs: tuple[Logprob, ...] = ()


@dataclass(frozen=True)
class Answer:
    """All choices by number, and the usage."""

    choices: tuple[Choice, ...]
    prompt_tokens: int
    completion_tokens: int

    @property
    def only(self) -> Choice:
        (choice,) = self.choices
        return choice

    @property
    def text(self) -> str:
        return self.only.text

    @property
    def finish(self) -> str | None:
        return self.only.finish

    @property
    def texts(self) -> list[str]:
        return [choice.text for choice in self.choices]


def assert_same(ours: Answer, theirs: Answer, where: str) -> None:
    """Equal in everything, logprobs within their tolerance."""
    assert _without_logprobs(ours) == _without_logprobs(theirs), where
    for mine, other in zip(ours.choices, theirs.choices, strict=True):
        assert_close(mine.logprobs, other.logprobs, where)


def assert_close(ours: Sequence[Logprob], theirs: Sequence[Logprob], where: str) -> None:
    """The same tokens and rivals with the same logprobs, within the tolerance."""
    assert [entry.token for entry in ours] == [entry.token for entry in theirs], where
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.top.keys() == other.top.keys(), f"{where}: rivals of {mine.token!r}"
        pairs = [(mine.logprob, other.logprob), *((mine.top[token], other.top[token]) for token in mine.top)]
        assert all(math.isclose(a, b, abs_tol=LOGPROB_TOLERANCE) for a, b in pairs), f"{where}: {mine} and {other}"


def of_completion(body: Mapping[str, Any]) -> Answer:
    """From the JSON of /v1/completions or /v1/chat/completions."""
    choices = sorted(body["choices"], key=lambda choice: choice["index"])
    assert [choice["index"] for choice in choices] == list(range(len(choices)))
    return _with_usage([Choice(_text(c), c["finish_reason"], logprobs_of(c["logprobs"])) for c in choices], body["usage"])


def of_chunks(chunks: Sequence[Mapping[str, Any]]) -> Answer:
    """From a stream's events, which end with one usage chunk. Each choice has one finish, in its last chunk."""
    *parts, last = chunks
    assert last["choices"] == []
    assert all(len(chunk["choices"]) == 1 and chunk["usage"] is None for chunk in parts)
    by_choice: dict[int, list[Mapping[str, Any]]] = {}
    for chunk in parts:
        by_choice.setdefault(chunk["choices"][0]["index"], []).append(chunk["choices"][0])
    return _with_usage([_joined(by_choice[i]) for i in range(len(by_choice))], last["usage"])


def logprobs_of(given: Mapping[str, Any] | None) -> tuple[Logprob, ...]:
    """Either form of OpenAI's: lists side by side (completions) or a list of entries (chat)."""
    if given is None:
        return ()
    if "tokens" in given:
        rows = zip(given["tokens"], given["token_logprobs"], given["top_logprobs"], strict=True)
        return tuple(Logprob.of(*row) for row in rows)
    assert all(bytes(entry["bytes"]).decode() == entry["token"] for entry in given["content"])
    tops = ({rival["token"]: rival["logprob"] for rival in entry["top_logprobs"]} for entry in given["content"])
    return tuple(Logprob.of(entry["token"], entry["logprob"], top) for entry, top in zip(given["content"], tops, strict=True))


def _joined(parts: Sequence[Mapping[str, Any]]) -> Choice:
    assert [part["finish_reason"] is not None for part in parts] == [False] * (len(parts) - 1) + [True]
    logprobs = tuple(entry for part in parts for entry in logprobs_of(part["logprobs"]))
    return Choice("".join(map(_text, parts)), parts[-1]["finish_reason"], logprobs)


def _text(choice: Mapping[str, Any]) -> str:
    if "text" in choice:
        return str(choice["text"])
    return str(choice.get("message", choice.get("delta", {})).get("content") or "")


def _with_usage(choices: Sequence[Choice], usage: Mapping[str, Any]) -> Answer:
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    return Answer(tuple(choices), usage["prompt_tokens"], usage["completion_tokens"])


def _without_logprobs(answer: Answer) -> Answer:
    return replace(answer, choices=tuple(replace(choice, logprobs=()) for choice in answer.choices))
