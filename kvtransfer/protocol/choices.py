"""The tokens of one choice as the router takes them: in order, the first to arrive wins, early ones wait."""

from __future__ import annotations

from collections.abc import Sequence

from baton.wire.types import FinishReason, Token


class Choice:
    """Accepted ids of one choice. An early token (decode's second may overtake prefill's first) waits for its turn."""

    def __init__(self, number: int, ids: Sequence[int] = ()):
        self.number = number
        self.ids = list(ids)
        self.early: dict[int, Token] = {}
        self.proposal: tuple[int, FinishReason] | None = None
        self.done = False

    def differs(self, index: int, tokens: Sequence[Token]) -> bool:
        """Whether any of output tokens `index`, ... contradicts one that is accepted or waiting."""
        return any(self._known(at, token).id != token.id for at, token in enumerate(tokens, index))

    def take(self, index: int, tokens: Sequence[Token]) -> list[tuple[int, Token]]:
        """Keeps what is new; returns (index, token) of all that is accepted by it."""
        for at, token in enumerate(tokens, index):
            if at >= len(self.ids):
                self.early.setdefault(at, token)
        accepted = []
        while (token_now := self.early.pop(len(self.ids), None)) is not None:
            accepted.append((len(self.ids), token_now))
            self.ids.append(token_now.id)
        return accepted

    def propose(self, num_tokens: int, reason: FinishReason) -> None:
        self.proposal = (num_tokens, reason)

    def due_proposal(self) -> FinishReason | None:
        """The proposed end, once, when every token before it was accepted."""
        if self.proposal is None or len(self.ids) < self.proposal[0]:
            return None
        reason = self.proposal[1]
        self.proposal = None
        return reason

    def forget_unaccepted(self) -> None:
        """The attempt is over: only accepted tokens stand."""
        self.early.clear()
        self.proposal = None

    def _known(self, index: int, default: Token) -> Token:
        if index < len(self.ids):
            return Token(self.ids[index])
        return self.early.get(index, default)
