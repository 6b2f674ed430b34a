"""Pieces on their way to one reader: merged while they wait, bounded, and cut when the reader is too slow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from baton.wire.errors import BatonError, Cancelled
from router.request import Piece, Pieces

TOKEN_BYTES = 64
"""What a waiting token counts beside its text."""


class PieceBuffer:
    """One writer, one reader. About `limit_bytes` may wait; beyond that `on_cut` is called and the reader gets Cancelled."""

    def __init__(self, limit_bytes: int, on_cut: Callable[[], None]) -> None:
        self._limit_bytes = limit_bytes
        self._on_cut = on_cut
        self._waiting: dict[int, list[Piece]] = {}
        self._num_bytes = 0
        self._error: BatonError | None = None
        self._closed = False
        self._reader: asyncio.Future[None] | None = None

    def put(self, choice: int, piece: Piece) -> None:
        """Adds a piece; dropped after `close`."""
        if self._closed:
            return
        self._waiting.setdefault(choice, []).append(piece)
        self._num_bytes += len(piece.text) + TOKEN_BYTES * len(piece.tokens)
        self._wake()
        if self._num_bytes > self._limit_bytes:
            self._cut()

    def close(self, error: BatonError | None = None) -> None:
        """No more pieces come; the reader gets what is left, then `error`. The first close counts."""
        if not self._closed:
            self._closed, self._error = True, error
            self._wake()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Pieces:
        """All that waits, at most one piece per choice. Raises the error that ended it, if any, behind the last."""
        while not (self._waiting or self._closed):
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        if not self._waiting:
            raise self._error or StopAsyncIteration
        waiting, self._waiting, self._num_bytes = self._waiting, {}, 0
        return [(choice, _merge(pieces)) for choice, pieces in waiting.items()]

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _cut(self) -> None:
        self._waiting.clear()
        self.close(Cancelled(f"the reader fell more than {self._limit_bytes} bytes behind", code="slow_reader"))
        self._on_cut()


def _merge(pieces: list[Piece]) -> Piece:
    if len(pieces) == 1:
        return pieces[0]
    tokens = tuple(token for piece in pieces for token in piece.tokens)
    return Piece("".join(piece.text for piece in pieces), tokens, pieces[-1].finish)
