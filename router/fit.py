"""Whether a request could ever run on a worker, were it alone there. Pure; counts blocks as workers reserve them."""

from __future__ import annotations

from baton.wire.types import WorkerInfo

GROWTH_RESERVE = 256
"""Output tokens of each choice that decode reserves at once, at most: its default."""


def fits(info: WorkerInfo, prompt_len: int, max_tokens: int, num_choices: int) -> bool:
    """Whether the worker's pool holds one choice to its end, and all choices as decode reserves them.

    Choices share the prompt's full blocks. The last token's KV is never written. Prefill counts the output too: it computes
    that again when a request recovers.
    """
    size = info.capabilities.layout.block_size
    num_blocks = info.capacity_tokens // size
    if _blocks(prompt_len + max_tokens - 1, size) > num_blocks:
        return False
    reserved = _blocks(prompt_len + min(max_tokens, GROWTH_RESERVE) - 1, size)
    forks = (num_choices - 1) * (reserved - prompt_len // size)
    return not info.role.decodes or reserved + forks <= num_blocks


def _blocks(num_tokens: int, size: int) -> int:
    return -(-num_tokens // size)
