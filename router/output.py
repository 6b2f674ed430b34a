"""What the flows of one request produce together: tokens are accepted here, counted, and turned into text."""

from __future__ import annotations

from collections.abc import Callable

from baton.wire.types import FinishReason, Token
from router.buffer import PieceBuffer
from router.metrics import RouterMetrics
from router.request import GenerateRequest, Piece, TextMaker, Usage
from router.timeline import Timeline


class Output:
    """Every choice's text and end. A flow calls `accept` or `propose` for each token, and `flush` once it has no more."""

    def __init__(
        self,
        request: GenerateRequest,
        make_text: Callable[[int], TextMaker],
        timeline: Timeline,
        metrics: RouterMetrics,
        buffer: PieceBuffer,
    ) -> None:
        self.timeline = timeline
        self._prompt_len = len(request.prompt_ids)
        self._metrics = metrics
        self._buffer = buffer
        self._open = {choice: make_text(choice) for choice in range(request.n)}
        self._num_tokens = dict.fromkeys(self._open, 0)
        self._last_s: dict[int, float] = {}
        self._burst: dict[int, int] = {}

    @property
    def usage(self) -> Usage:
        """Counted from accepted tokens."""
        return Usage(self._prompt_len, sum(self._num_tokens.values()), self.timeline.num_cached)

    @property
    def complete(self) -> bool:
        """Every choice has ended."""
        return not self._open

    def accept(self, choice: int, index: int, token: Token) -> bool:
        """Takes output token `index` of `choice`; whether the choice ended with it. Tokens behind an end are dropped."""
        text = self._open.get(choice)
        if text is None:
            return False
        self._count(choice, index)
        piece = text.push(token)
        self._emit(choice, piece)
        return piece.finish is not None

    def propose(self, choice: int, reason: FinishReason) -> bool:
        """A worker ended `choice` after its last token; whether that is news to its text."""
        if choice not in self._open:
            return False
        self._emit(choice, Piece("", (), reason))
        return True

    def num_tokens(self, choice: int) -> int:
        """Output tokens that `choice` has."""
        return self._num_tokens[choice]

    def flush(self) -> None:
        """Everything that arrived together was accepted: the gaps between tokens are shared out evenly."""
        if not self._burst:
            return
        now = self.timeline.total_s
        for choice, num_tokens in self._burst.items():
            before = self._last_s.get(choice)
            self._last_s[choice] = now
            self._metrics.accepted(num_tokens, None if before is None else now - before)
        self._burst.clear()

    def _count(self, choice: int, index: int) -> None:
        if self.timeline.first_token_s is None:
            self._metrics.first_token(self.timeline.total_s, self._prompt_len)
        self.timeline.token(index)
        self._num_tokens[choice] += 1
        self._burst[choice] = self._burst.get(choice, 0) + 1

    def _emit(self, choice: int, piece: Piece) -> None:
        if piece.finish is not None:
            del self._open[choice]
            self._metrics.finished(piece.finish)
        self._buffer.put(choice, piece)
