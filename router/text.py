"""One choice's text: accepted tokens in, pieces of final text out. Decides where the choice ends."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import replace

from baton.wire.types import FinishReason, SamplingParams, Token
from router.request import Piece, TokenText
from router.tokenizer import Tokenizer


class ChoiceText:
    """Pure: the pieces depend on the pushed tokens alone.

    Text is held back while it may still change: bytes of an incomplete character, and a tail that may begin a stop string.
    So the joined pieces are the whole decoded text, cut at the stop string that is complete first (of two that end together
    the longer), and U+FFFD stands only for bytes that can no longer become a character. A stop beats the length limit.
    Before `min_tokens` tokens exist nothing stops the choice; text of that time is not searched.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special: bool = True,
    ):
        self._tokenizer = tokenizer
        self._params = params
        self._ends = frozenset(params.stop_ids) | (frozenset() if params.ignore_eos else frozenset(params.eos_ids))
        self._stop = StopSearch(stop, include_stop) if stop else None
        self._include_stop = include_stop
        self._silent = tokenizer.special_ids if skip_special else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_tokens = 0
        self._num_chars = 0

    def push(self, token: Token) -> Piece:
        """Takes the next token. After a piece with `finish` the choice has ended: no more tokens."""
        self._num_tokens += 1
        shown = self._shown(token)
        ended = token.id in self._ends and self._num_tokens > self._params.min_tokens
        last = ended or self._num_tokens >= self._params.max_tokens
        text = self._decode(shown, ended, last)
        finish = FinishReason.STOP if ended else FinishReason.LENGTH if last else None
        if self._stop is None or self._num_tokens < self._params.min_tokens:
            return Piece(text, (shown,), finish)
        found = self._stop.push(text)
        if found is not None:
            return Piece(found, (shown,), FinishReason.STOP)
        return Piece(self._stop.take(last), (shown,), finish)

    def _decode(self, token: TokenText, ended: bool, last: bool) -> str:
        hidden = token.id in self._silent or (ended and not self._include_stop)
        text = self._decoder.decode(b"" if hidden else token.bytes, last)
        self._num_chars += len(text)
        return text

    def _shown(self, token: Token) -> TokenText:
        shown = self._tokenizer.token(token.id)
        if token.logprob is None:
            return shown
        top = self._tokenizer.alternatives(token.top)
        return replace(shown, logprob=token.logprob, top=top, offset=self._num_chars)


class StopSearch:
    """Finds the stop string that is complete first, in text that comes in parts; holds back what may begin one."""

    def __init__(self, stop: Sequence[str], include: bool):
        self._stop = tuple(stop)
        self._include = include
        self._held = ""

    def push(self, text: str) -> str | None:
        """Adds `text`. If a stop string is complete: the text up to it, else None."""
        self._held += text
        found = [(start + len(stop), start) for stop in self._stop if (start := self._held.find(stop)) >= 0]
        if not found:
            return None
        end, start = min(found)
        return self._held[: end if self._include else start]

    def take(self, everything: bool) -> str:
        """The text that can no longer belong to a stop string; or all that is held."""
        cut = len(self._held) if everything else self._final_len()
        text, self._held = self._held[:cut], self._held[cut:]
        return text

    def _final_len(self) -> int:
        return min(self._partial_start(stop) for stop in self._stop)

    def _partial_start(self, stop: str) -> int:
        """Where the longest tail that begins `stop` starts; the text's length if none does."""
        held = self._held
        start = held.find(stop[0], max(0, len(held) - len(stop) + 1))
        while start >= 0:
            if stop.startswith(held[start:]):
                return start
            start = held.find(stop[0], start + 1)
        return len(held)
