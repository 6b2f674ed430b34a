"""Prompts without meaning, of a given length in tokens. The same key gives the same prompt, different keys share no prefix."""

from __future__ import annotations

import random
from collections.abc import Iterable

from baton.loadtest.record import Prompt

# Common words: with a space before it each is one token in the vocabularies of GPT-2, Llama, Qwen and SmolLM.
TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand part "
    "place case week company system program question work government number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father power hour "
    "game line end member law car city community name president team minute idea body information back parent face level "
    "office door health person art war history party result change morning reason research girl guy moment air teacher force"
)
WORDS = tuple(TEXT.split())

FIRST_ID, LAST_ID = 1000, 20000
"""Token ids that are ordinary text in every common vocabulary."""


def filler(key: str, num_tokens: int, as_ids: bool) -> tuple[int, ...] | tuple[str, ...]:
    """`num_tokens` words, or token ids, drawn by `key`."""
    rng = random.Random(key)
    if as_ids:
        return tuple(rng.choices(range(FIRST_ID, LAST_ID), k=num_tokens))
    return tuple(rng.choices(WORDS, k=num_tokens))


def joined(parts: Iterable[tuple[int, ...] | tuple[str, ...]], num_tokens: int) -> Prompt:
    """One prompt of the parts in order, cut to `num_tokens`."""
    units = [unit for part in parts for unit in part][:num_tokens]
    ids = tuple(unit for unit in units if isinstance(unit, int))
    return ids if ids else " ".join(str(unit) for unit in units)
