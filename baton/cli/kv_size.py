"""How many KV blocks a worker takes when it is told "auto"."""

from __future__ import annotations

import os
from pathlib import Path

from baton.wire.types import KvLayout

SHARE = 0.25
"""Of the memory that is available at start; the weights are loaded by then, and a second worker may come."""

MEMINFO = Path("/proc/meminfo")
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def auto_blocks(layout: KvLayout, max_num_seqs: int, max_model_len: int) -> int:
    """Blocks for `max_num_seqs` sequences of full length, or what a share of the available memory holds; at least one."""
    wanted = max_num_seqs * -(-max_model_len // layout.block_size)
    return max(1, min(wanted, int(SHARE * available_bytes()) // layout.block_bytes))


def available_bytes() -> int:
    """Memory that may still be used here, by the machine's account and the container's limit."""
    limits = [value for value in (_meminfo(), _cgroup()) if value is not None]
    return min(limits, default=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)


def _meminfo() -> int | None:
    if not MEMINFO.exists():
        return None
    fields = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in fields else None


def _cgroup() -> int | None:
    text = CGROUP_LIMIT.read_text().strip() if CGROUP_LIMIT.exists() else ""
    return int(text) if text.isdigit() else None
