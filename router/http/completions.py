"""POST /v1/completions: the shape of its answers."""

from __future__ import annotations

import orjson

from router.http.shapes import Events, joined, logprob_of, reason_of, token_name
from router.request import Generation, Piece, TokenText
from router.validate import Prepared

DEFAULT_MAX_TOKENS = 16
"""What OpenAI's completions API gives if max_tokens is not set."""


class CompletionShape:
    """Text completions, with OpenAI's legacy logprobs: lists side by side, one entry per token."""

    def __init__(self, prepared: Prepared):
        self._events = Events(prepared, "cmpl", "text_completion")
        self._with_logprobs = prepared.first.params.num_logprobs is not None

    def events(self, choice: int, piece: Piece) -> bytes:
        if not (piece.text or piece.finish or self._with_logprobs):
            return b""
        logprobs = orjson.dumps(_logprobs(list(piece.tokens))) if self._with_logprobs else b"null"
        fields = (orjson.dumps(piece.text), logprobs, reason_of(piece.finish))
        return self._events.chunk(choice, b'"text":%b,"logprobs":%b,"finish_reason":%b' % fields)

    def ending(self, generation: Generation) -> bytes:
        return self._events.ending(generation)

    def whole(self, pieces: list[list[Piece]], generation: Generation) -> dict[str, object]:
        choices = [self._choice(i, of_choice) for i, of_choice in enumerate(pieces)]
        return self._events.whole("text_completion", choices, generation)

    def _choice(self, index: int, pieces: list[Piece]) -> dict[str, object]:
        return {
            "index": index,
            "text": "".join(piece.text for piece in pieces),
            "logprobs": _logprobs(joined(piece.tokens for piece in pieces)) if self._with_logprobs else None,
            "finish_reason": pieces[-1].finish,
        }


def _logprobs(tokens: list[TokenText]) -> dict[str, object]:
    return {
        "tokens": [token_name(token) for token in tokens],
        "token_logprobs": [logprob_of(token) for token in tokens],
        "top_logprobs": [_top(token) for token in tokens],
        "text_offset": [token.offset for token in tokens],
    }


def _top(token: TokenText) -> dict[str, float]:
    """The likeliest tokens and the chosen one. Of two tokens with one text the likelier is named."""
    top: dict[str, float] = {}
    for rival in token.top:
        top.setdefault(token_name(rival), logprob_of(rival))
    top.setdefault(token_name(token), logprob_of(token))
    return top
