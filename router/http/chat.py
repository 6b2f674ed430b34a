"""POST /v1/chat/completions: the shape of its answers."""

from __future__ import annotations

import orjson

from router.http.shapes import Events, joined, logprob_of, reason_of
from router.request import Alternative, Generation, Piece, TokenText
from router.validate import Prepared

ROLE = b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null'


class ChatShape:
    """Chat completions: a chunk with the role, chunks with content, a chunk with the finish reason, for each choice."""

    def __init__(self, prepared: Prepared):
        self._events = Events(prepared, "chatcmpl", "chat.completion.chunk")
        self._with_logprobs = prepared.first.params.num_logprobs is not None
        self._begun: set[int] = set()

    def events(self, choice: int, piece: Piece) -> bytes:
        role = b"" if choice in self._begun else self._events.chunk(choice, ROLE)
        self._begun.add(choice)
        return role + self._content(choice, piece) + self._finish(choice, piece)

    def ending(self, generation: Generation) -> bytes:
        return self._events.ending(generation)

    def whole(self, pieces: list[list[Piece]], generation: Generation) -> dict[str, object]:
        choices = [self._choice(i, of_choice) for i, of_choice in enumerate(pieces)]
        return self._events.whole("chat.completion", choices, generation)

    def _content(self, choice: int, piece: Piece) -> bytes:
        if not (piece.text or self._with_logprobs):
            return b""
        logprobs = orjson.dumps(_logprobs(list(piece.tokens))) if self._with_logprobs else b"null"
        fields = (orjson.dumps(piece.text), logprobs)
        return self._events.chunk(choice, b'"delta":{"content":%b},"logprobs":%b,"finish_reason":null' % fields)

    def _finish(self, choice: int, piece: Piece) -> bytes:
        if piece.finish is None:
            return b""
        return self._events.chunk(choice, b'"delta":{},"logprobs":null,"finish_reason":' + reason_of(piece.finish))

    def _choice(self, index: int, pieces: list[Piece]) -> dict[str, object]:
        content = "".join(piece.text for piece in pieces)
        return {
            "index": index,
            "message": {"role": "assistant", "content": content, "refusal": None},
            "logprobs": _logprobs(joined(piece.tokens for piece in pieces)) if self._with_logprobs else None,
            "finish_reason": pieces[-1].finish,
        }


def _logprobs(tokens: list[TokenText]) -> dict[str, object]:
    content = [_entry(token) | {"top_logprobs": [_entry(rival) for rival in token.top]} for token in tokens]
    return {"content": content, "refusal": None}


def _entry(token: TokenText | Alternative) -> dict[str, object]:
    return {"token": token.text, "logprob": logprob_of(token), "bytes": list(token.bytes)}
