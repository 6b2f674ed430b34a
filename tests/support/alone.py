"""One engine in the test process: what a request says when no KV is handed over.

The router's own code checks the request and reads the tokens; only the processes between are missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from baton.cluster.config import Limits
from baton.engine.api import Broken, Sampled
from baton.engine.config import EngineConfig
from baton.engine.core import EngineCore
from baton.engine.weights import load_model
from baton.wire.types import ModelCard, RequestSpec
from router.request import Alternative, GenerateRequest, Piece, TokenText
from router.validate import Prepared, RawRequest, Validator
from tests.support.answers import Answer, Choice, Logprob


class Alone:
    """An engine that prefills and decodes, behind the validator and the text of the doors."""

    def __init__(self, checkpoint: Path, max_model_len: int | None = None, block_size: int = 16) -> None:
        loaded = load_model(checkpoint, max_model_len=max_model_len)
        self._card = loaded.card
        self._core = EngineCore(loaded.model, loaded.identity, EngineConfig(num_blocks=512, block_size=block_size))
        self._validator = Validator(self, Limits())  # type: ignore[arg-type]  # it needs models() only

    def models(self) -> Mapping[str, ModelCard]:
        return {self._card.name: self._card}

    async def ask(self, fields: Mapping[str, object]) -> Answer:
        """Raises InvalidRequest as a door does."""
        prepared = await self._validator.prepare(RawRequest(fields, "messages" in fields, 16))
        (request,) = prepared.requests
        pieces = self._pieces(prepared, request)
        choices = tuple(_choice(pieces[i]) for i in range(request.n))
        completion_tokens = sum(len(piece.tokens) for of_choice in pieces.values() for piece in of_choice)
        return Answer(choices, len(request.prompt_ids), completion_tokens)

    def _pieces(self, prepared: Prepared, request: GenerateRequest) -> dict[int, list[Piece]]:
        make_text = prepared.make_text(request)
        texts = {choice: make_text(choice) for choice in range(request.n)}
        pieces: dict[int, list[Piece]] = {choice: [] for choice in texts}
        handle = self._core.generate(RequestSpec(request.prompt_ids, request.params, tuple(texts))).handle
        while texts:
            for event in self._core.step():
                assert not isinstance(event, Broken), event
                if isinstance(event, Sampled) and event.choice in texts:
                    pieces[event.choice].append(texts[event.choice].push(event.token))
                    if pieces[event.choice][-1].finish:
                        del texts[event.choice]
        self._core.release(handle)
        self._core.check_integrity()
        return pieces


alone = cache(Alone)
"""One engine for each checkpoint and test session."""


def _choice(pieces: list[Piece]) -> Choice:
    tokens = [token for piece in pieces for token in piece.tokens if token.logprob is not None]
    return Choice("".join(piece.text for piece in pieces), pieces[-1].finish, tuple(map(_logprob, tokens)))


def _logprob(token: TokenText) -> Logprob:
    assert token.logprob is not None
    return Logprob.of(_name(token), token.logprob, {_name(rival): rival.logprob for rival in token.top})


def _name(token: TokenText | Alternative) -> str:
    return token.bytes.decode(errors="backslashreplace")
