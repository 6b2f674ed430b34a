"""The KV pool: one tensor that the model reads and writes, and the same memory as bytes for a transfer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from baton.wire.types import KvLayout

_TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class KvPool:
    """`tensor` is `[num_blocks, num_layers, 2, block_size, num_kv_heads, head_dim]`; implements BlockStore over its bytes.

    The pool knows nothing of owners: who may touch a block is the block manager's word.
    """

    def __init__(self, layout: KvLayout, num_blocks: int, buffer: Any | None = None):
        """`buffer`: writable memory (a shared segment, say) of at least `num_blocks * layout.block_bytes`; None allocates."""
        num_bytes = num_blocks * layout.block_bytes
        # numpy asks Linux for huge pages at this size, which spares decode's attention a few per cent in misses of the TLB
        memory = np.zeros(num_bytes, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)
        if len(memory) < num_bytes:
            raise ValueError(f"the pool needs {num_bytes} bytes, the buffer has {len(memory)}")
        self.layout = layout
        self.num_blocks = num_blocks
        flat = memory[:num_bytes]
        shape = (num_blocks, layout.num_layers, 2, layout.block_size)
        self._bytes = flat.reshape(*shape, layout.row_bytes)
        self.tensor = (
            torch.from_numpy(flat).view(_TORCH_DTYPES[layout.dtype]).view(*shape, layout.num_kv_heads, layout.head_dim)
        )

    def gather(
        self, block_ids: Sequence[int], token_start: int, token_end: int, layer_start: int, layer_end: int
    ) -> memoryview:
        """Read-only bytes of a run of tokens within one block: a view of the pool where the run is contiguous, else a copy.

        ValueError if the run crosses a block or leaves the table.
        """
        self._check(block_ids, token_start, token_end, layer_start, layer_end)
        size = self.layout.block_size
        index, offset = divmod(token_start, size)
        if token_end > (index + 1) * size:
            raise ValueError(f"tokens [{token_start}, {token_end}) cross a block of {size}")
        run = self._bytes[block_ids[index], layer_start:layer_end, :, offset : offset + token_end - token_start]
        return np.ascontiguousarray(run).reshape(-1).data.toreadonly()

    def scatter(
        self,
        block_ids: Sequence[int],
        token_start: int,
        token_end: int,
        layer_start: int,
        layer_end: int,
        payload: memoryview,
    ) -> None:
        """Writes wire-order bytes to a run of tokens over as many blocks as it covers. ValueError on a wrong size or range."""
        self._check(block_ids, token_start, token_end, layer_start, layer_end)
        num_tokens, num_layers = token_end - token_start, layer_end - layer_start
        source = np.frombuffer(payload, np.uint8)
        if source.size != num_tokens * num_layers * 2 * self.layout.row_bytes:
            raise ValueError(f"{source.size} bytes do not make {num_tokens} tokens of {num_layers} layers")
        source = source.reshape(num_layers, 2, num_tokens, self.layout.row_bytes)
        size, start = self.layout.block_size, token_start
        while start < token_end:
            index, offset = divmod(start, size)
            end = min(token_end, (index + 1) * size)
            run = source[:, :, start - token_start : end - token_start]
            self._bytes[block_ids[index], layer_start:layer_end, :, offset : offset + end - start] = run
            start = end

    def copy_block(self, source: int, target: int) -> None:
        """Copies a whole block; the caller owns `target` alone."""
        self._bytes[target] = self._bytes[source]

    def _check(self, block_ids: Sequence[int], token_start: int, token_end: int, layer_start: int, layer_end: int) -> None:
        size = self.layout.block_size
        if not 0 <= token_start < token_end <= len(block_ids) * size:
            raise ValueError(f"tokens [{token_start}, {token_end}) leave a table of {len(block_ids)} blocks of {size}")
        if not 0 <= layer_start < layer_end <= self.layout.num_layers:
            raise ValueError(f"layers [{layer_start}, {layer_end}) leave a model of {self.layout.num_layers}")
        covered = block_ids[token_start // size : -(-token_end // size)]
        if min(covered) < 0 or max(covered) >= self.num_blocks:
            raise ValueError(f"block ids {list(covered)} leave a pool of {self.num_blocks}")
