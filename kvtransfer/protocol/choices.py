"""The tokens of a request's choices as the router takes them: in order, the first to arrive wins, early ones wait."""

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
        if index >= len(self.ids) and not self.early:
            return False
        return any(self._known(at, token).id != token.id for at, token in enumerate(tokens, index))

    def take(self, index: int, tokens: Sequence[Token]) -> list[tuple[int, Token]]:
        """Keeps what is new; returns (index, token) of all that is accepted by it."""
        if index == len(self.ids) and not self.early:  # as nearly always
            self.ids += [token.id for token in tokens]
            return list(enumerate(tokens, index))
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


class Choices:
    """The choices of one coordinator. `done` marks one that ended, or that was split off."""

    def __init__(self, numbers: Sequence[int], output_ids: Sequence[int], max_tokens: int):
        self.many = len(numbers) > 1
        self._max_tokens = max_tokens
        self._by_number = {number: Choice(number, output_ids) for number in numbers}

    @property
    def unfinished(self) -> list[Choice]:
        return [choice for choice in self._by_number.values() if not choice.done]

    @property
    def only(self) -> Choice:
        """The choice, if there are not `many`."""
        [choice] = self._by_number.values()
        return choice

    @property
    def one_token_remains(self) -> bool:
        return all(len(choice.ids) + 1 == self._max_tokens for choice in self.unfinished)

    @property
    def complete(self) -> bool:
        """Every choice has all the tokens that it may have."""
        return all(len(choice.ids) >= self._max_tokens for choice in self.unfinished)

    @property
    def apart(self) -> bool:
        """Choices of one prompt that differ already: they cannot share a prefill any more."""
        return self.many and any(choice.ids or choice.done for choice in self._by_number.values())

    def get(self, number: int) -> Choice | None:
        """The choice, unless it is done."""
        choice = self._by_number.get(number)
        return None if choice is None or choice.done else choice

    def forget_unaccepted(self) -> None:
        for choice in self._by_number.values():
            choice.forget_unaccepted()
