"""Which worker probably holds which prompt prefix: the router's own guess, from where it sent prompts before."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence

SPAN_LEN = 64
"""Tokens a key covers. Workers may use other block sizes: the index only guesses."""

Keys = tuple[int, ...]
"""One key per whole span of a prompt; each chains all spans before it."""


def prefix_keys(prompt_ids: Sequence[int], *, model: str, tenant: str) -> Keys:
    """Keys of every whole span of `prompt_ids`. Another model or tenant never shares one."""
    return tuple(_chain(prompt_ids, hash((model, tenant))))


def _chain(prompt_ids: Sequence[int], root: int) -> Iterator[int]:
    key = root
    for start in range(0, len(prompt_ids) - SPAN_LEN + 1, SPAN_LEN):
        key = hash((key, tuple(prompt_ids[start : start + SPAN_LEN])))
        yield key


class PrefixIndex:
    """Maps a key to the worker that saw it last; the least recently used keys go when `capacity` is reached."""

    def __init__(self, capacity: int = 65_536) -> None:
        self._capacity = capacity
        self._seen: OrderedDict[int, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def remember(self, keys: Keys, address: str) -> None:
        """`address` computes or receives the prefix that `keys` name."""
        for key in reversed(keys):  # a prefix is worth more than what follows it: it is used last, so it goes last
            self._seen[key] = address
            self._seen.move_to_end(key)
        while len(self._seen) > self._capacity:
            self._seen.popitem(last=False)

    def forget(self, address: str) -> None:
        """`address` lost its cache: its process ended."""
        for key in [key for key, held_by in self._seen.items() if held_by == address]:
            del self._seen[key]

    def holders(self, keys: Keys) -> set[str]:
        """Addresses that probably have some leading tokens of the prompt."""
        held = (self._seen.get(key) for key in keys)
        return {address for address in itertools.takewhile(bool, held) if address}

    def hit_len(self, keys: Keys, address: str) -> int:
        """Leading tokens of the prompt that `address` probably has."""
        num_spans = 0
        for key in keys:
            if self._seen.get(key) != address:
                break
            num_spans += 1
        return num_spans * SPAN_LEN
