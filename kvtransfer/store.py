"""The pool as a transfer sees it: blocks by index, runs of tokens, bytes. Implemented by the engine's pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from baton.wire.types import KvLayout


class BlockStore(Protocol):
    """`block_ids` is a request's block table, positions are absolute. Wire order: layer, K then V, token, head, dim.

    Who may call: `gather` while the caller holds a pin on the blocks; `scatter` while the blocks belong to one attempt alone.
    """

    @property
    def layout(self) -> KvLayout: ...

    def gather(
        self, block_ids: Sequence[int], token_start: int, token_end: int, layer_start: int, layer_end: int
    ) -> memoryview:
        """Bytes of a run of tokens within one block; zero-copy where the run is contiguous, else a fresh buffer."""
        ...

    def scatter(
        self, block_ids: Sequence[int], token_start: int, token_end: int, layer_start: int, layer_end: int, payload: memoryview
    ) -> None:
        """Writes wire-order bytes to a run of tokens, which may cross blocks of this pool. ValueError if the size is wrong."""
        ...
