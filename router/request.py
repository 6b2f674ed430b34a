"""What passes between the doors and the flow: one validated request in, accepted tokens and pieces of text out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from baton.wire.inference import TimelineView, Usage
from baton.wire.types import FinishReason, ModelCard, SamplingParams, Token

__all__ = [
    "Alternative",
    "GenerateRequest",
    "Generation",
    "Piece",
    "Pieces",
    "Service",
    "TextMaker",
    "TimelineView",
    "TokenText",
    "Usage",
]


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One prompt, validated: `n` choices of it, sampled with `params` (complete; `params.seed` is set).

    `seeded`: the client chose the seed. `stop` strings are the router's to find; workers never see them. `deadline_s`: seconds
    from now to the end.
    """

    request_id: str
    model: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    n: int = 1
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special: bool = True
    seeded: bool = False
    tenant: str = ""
    deadline_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of a position's likeliest tokens; `text` as in TokenText."""

    id: int
    text: str
    bytes: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenText:
    """One output token as a client sees it.

    `text` is printable: bytes that are no whole character are written as escapes such as `\\xf0`. With logprobs, `offset`
    counts the characters of the choice's text before this token.
    """

    id: int
    text: str
    bytes: bytes
    logprob: float | None = None
    top: tuple[Alternative, ...] = ()
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """What one choice gained: text that is final, the tokens that came with it, and the end if this is the last piece.

    `tokens` name every accepted token exactly once, in order, also while their text is held back. Logprobs of tokens behind a
    stop string's end do not exist: the token that completes it is the last.
    """

    text: str
    tokens: tuple[TokenText, ...] = ()
    finish: FinishReason | None = None


class TextMaker(Protocol):
    """Turns one choice's accepted tokens to text and decides its end. Pure: no I/O, no clock (router/text.py)."""

    def push(self, token: Token) -> Piece:
        """Takes the next token. After a piece with `finish` it must not be called again."""
        ...


Pieces = list[tuple[int, Piece]]
"""What one step brought: at most one piece per choice, as (choice, piece)."""


class Generation(Protocol):
    """One running request. Iterating yields pieces until every choice has its finish; raises BatonError subclasses.

    `usage` and `timeline` are valid once the iteration has ended.
    """

    def __aiter__(self) -> AsyncIterator[Pieces]: ...

    @property
    def usage(self) -> Usage: ...

    @property
    def timeline(self) -> TimelineView: ...


class Service(Protocol):
    """The router's core as the doors use it."""

    def generate(
        self, request: GenerateRequest, make_text: Callable[[int], TextMaker]
    ) -> AbstractAsyncContextManager[Generation]:
        """Runs `request`; `make_text(choice)` gives each choice its own text. Leaving the context early cancels it."""
        ...

    def models(self) -> Mapping[str, ModelCard]:
        """The served models by name; empty before the first worker has said its card."""
        ...

    def ready(self) -> str | None:
        """None: requests can be served; else the reason why not."""
        ...

    def metrics(self) -> bytes:
        """Prometheus text exposition of the process."""
        ...
