"""What is sent, what comes back and who carries it. Times are seconds; within an Outcome they count from the run's start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

Prompt = str | tuple[int, ...]
"""Text, or token ids for servers that take them."""


@dataclass(frozen=True, slots=True)
class Request:
    """`input_len` is what the prompt was built for in tokens; a text's true length is the server's to say."""

    number: int
    prompt: Prompt
    input_len: int
    output_len: int


class Delta(NamedTuple):
    """A message with output, as it arrived. `num_tokens` is None where the server does not say."""

    at_s: float
    num_chars: int
    num_tokens: int | None


class Message(NamedTuple):
    """A message with output and the tokens counted in it."""

    at_s: float
    num_tokens: int


@dataclass(slots=True)
class Answer:
    """Filled by a driver while an answer streams in; `finish` is set once the server has said that it is whole."""

    deltas: list[Delta]
    finish: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    _counted: int = 0

    def add(self, at_s: float, num_chars: int, num_tokens: int | None = None, total_tokens: int | None = None) -> None:
        """Takes a message. `num_tokens`: those in it; `total_tokens`: those so far. A message without output is ignored."""
        if num_tokens is None and total_tokens is not None:
            num_tokens = total_tokens - self._counted
        if num_tokens:
            self._counted += num_tokens
        if num_chars or num_tokens:
            self.deltas.append(Delta(at_s, num_chars, num_tokens))


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request from beginning to end. `error` is empty if it succeeded; a failed one keeps the messages it got.

    `intended_s` is when the load called for it, `sent_s` when the harness got to it. `counted_by`: see counting.count.
    """

    number: int
    input_len: int
    intended_s: float
    sent_s: float
    ended_s: float
    messages: tuple[Message, ...] = ()
    output_tokens: int = 0
    counted_by: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    error: str = ""
    detail: str = ""


class Driver(Protocol):
    """Carries requests to a server."""

    async def generate(self, request: Request, answer: Answer) -> None:
        """Sends `request` and fills `answer` as it streams in, with times of time.monotonic. Raises RequestFailed.

        Cancelling it leaves no connection behind that another request could be answered on.
        """
        ...

    async def close(self) -> None:
        """Ends all connections."""
        ...
