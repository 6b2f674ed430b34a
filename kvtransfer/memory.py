"""A pool's memory as another process sees it: a memfd that can neither shrink nor grow, and its blocks read from outside.

The sender makes a SharedPool and its engine computes in it; the receiver maps the descriptor for reading. Nothing has a name in
a file system, so nothing is left when a process dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os

from baton.wire.errors import TransferError
from baton.wire.types import FrameHeader, KvLayout
from kvtransfer.fields import malformed

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class SharedPool:
    """Zeroed memory of `num_bytes` for an engine's pool; `fileno` may be given to processes of the same user.

    The memory lives until the last mapping of it has gone: this process' own ends with the process.
    """

    def __init__(self, num_bytes: int) -> None:
        self.fileno = os.memfd_create("baton-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fileno, num_bytes)
        fcntl.fcntl(self.fileno, fcntl.F_ADD_SEALS, _SEALS)
        self.memory = mmap.mmap(self.fileno, num_bytes)
        with contextlib.suppress(OSError):  # where the kernel has large pages for shared memory
            self.memory.madvise(mmap.MADV_HUGEPAGE)

    def close(self) -> None:
        """Gives the descriptor back: no further process can map the memory. Whoever has mapped it keeps it. Idempotent."""
        if self.fileno >= 0:
            os.close(self.fileno)
            self.fileno = -1


def map_pool(fileno: int, layout: KvLayout) -> BlockMemory:
    """Maps a sender's pool for reading; the caller keeps the descriptor.

    Raises TransferError("shared_memory") for what is no memory, or could still shrink under the reader.
    """
    try:
        if fcntl.fcntl(fileno, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise TransferError("shared_memory", "the sender's memory is not sealed against shrinking and growing")
        memory = mmap.mmap(fileno, 0, prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:
        raise TransferError("shared_memory", f"the sender's memory cannot be mapped: {error}") from error
    return BlockMemory(memoryview(memory), layout)


class BlockMemory:
    """Blocks of `layout` in `memory`, by number. Whoever writes there may do so at any time."""

    def __init__(self, memory: memoryview, layout: KvLayout) -> None:
        self._memory = memory
        self._layout = layout
        self._num_blocks = memory.nbytes // layout.block_bytes

    def read(self, header: FrameHeader, block: int) -> memoryview:
        """The run that `header` names, out of `block`: a view where it is contiguous, else a copy. TransferError("malformed")
        for a run that this memory does not have."""
        size, row = self._layout.block_size, self._layout.row_bytes
        first, num_tokens = header.token_start % size, header.token_end - header.token_start
        self._check(header, block, first, num_tokens)
        base = 2 * block * self._layout.num_layers  # K and V of a layer are its halves
        halves = range(base + 2 * header.layer_start, base + 2 * header.layer_end)
        if num_tokens == size:
            return self._memory[halves.start * size * row : halves.stop * size * row]
        starts = ((half * size + first) * row for half in halves)
        return memoryview(b"".join(self._memory[start : start + num_tokens * row] for start in starts))

    def _check(self, header: FrameHeader, block: int, first: int, num_tokens: int) -> None:
        if not 0 <= block < self._num_blocks:
            raise malformed(f"block {block} of {self._num_blocks}")
        if not 0 < num_tokens <= self._layout.block_size - first:
            raise malformed(f"{num_tokens} tokens from {first} of a block of {self._layout.block_size}")
        if not 0 <= header.layer_start < header.layer_end <= self._layout.num_layers:
            raise malformed(f"layers [{header.layer_start}, {header.layer_end}) of {self._layout.num_layers}")
