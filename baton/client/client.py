"""The client: generate as a stream, complete in one, list models. Errors are those of baton.wire.errors."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Self, TypedDict, Unpack

from baton.wire.errors import Internal
from baton.wire.inference import Delta, ModelInfo, TimelineView, TokenLogprob, Update, Usage
from baton.wire.inference_client import InferenceCalls
from baton.wire.types import FinishReason

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
"""Text, token ids, or a chat's messages ({"role": ..., "content": ...})."""


class Options(TypedDict, total=False):
    """How to sample and what to return; what is left out takes the server's default (proto/inference.proto has them)."""

    model: str
    n: int
    stop: Sequence[str]
    timeline: bool
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float]
    seed: int
    min_tokens: int
    ignore_eos: bool
    stop_token_ids: Sequence[int]
    logprobs: int


@dataclass(frozen=True, slots=True)
class Choice:
    """One whole answer. `logprobs` has one entry per token, if asked for."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish: FinishReason | None


@dataclass(frozen=True, slots=True)
class Completion:
    """All choices of a request, by number."""

    request_id: str
    choices: tuple[Choice, ...]
    usage: Usage
    timeline: TimelineView | None

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.choices[0].text


class AsyncClient:
    """A connection to a router's gRPC door, such as AsyncClient("127.0.0.1:8001"). Use it as an async context, or close it.

    Every call raises a subclass of baton.wire.errors.BatonError: InvalidRequest for what is wrong with the request,
    Overloaded and Unavailable (with `retry_after_s`) for what may work later, DeadlineExceeded after `deadline_s` seconds.
    """

    def __init__(self, address: str, deadline_s: float = 600.0):
        self._calls = InferenceCalls(address)
        self._deadline_s = deadline_s

    async def generate(self, prompt: Prompt, **options: Unpack[Options]) -> AsyncGenerator[Update]:
        """Streams an answer. The last update carries usage; ending the iteration early (aclose) cancels the request."""
        name = "prompt" if isinstance(prompt, str) or _is_ids(prompt) else "messages"
        async with aclosing(self._calls.generate({name: prompt, **options}, self._deadline_s)) as updates:
            async for update in updates:
                yield update

    async def complete(self, prompt: Prompt, **options: Unpack[Options]) -> Completion:
        """The whole answer at once."""
        deltas: dict[int, list[Delta]] = {i: [] for i in range(options.get("n", 1))}
        async with aclosing(self.generate(prompt, **options)) as updates:
            async for update in updates:
                for delta in update.deltas:
                    deltas[delta.index].append(delta)
                if update.usage is not None:
                    choices = tuple(_joined(of_choice) for of_choice in deltas.values())
                    return Completion(update.request_id, choices, update.usage, update.timeline)
        raise Internal("The server ended the stream without its last message.")

    async def models(self) -> list[ModelInfo]:
        """The models served."""
        return await self._calls.models(self._deadline_s)

    async def close(self) -> None:
        """Ends running requests and the connection."""
        await self._calls.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _is_ids(prompt: Prompt) -> bool:
    return all(isinstance(item, int) for item in prompt)


def _joined(deltas: list[Delta]) -> Choice:
    return Choice(
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(i for delta in deltas for i in delta.token_ids),
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
        finish=deltas[-1].finish if deltas else None,
    )
