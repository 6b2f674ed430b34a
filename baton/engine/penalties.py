"""What changes a row of logits before it is sampled: bias, penalties, the ban on early end tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from baton.wire.types import SamplingParams


class History:
    """The ids that penalties count: derived from a choice's ids alone, kept up to date token by token."""

    def __init__(self, prompt_ids: Iterable[int], output_ids: Iterable[int] = ()):
        self._prompt_ids = prompt_ids
        self._unique_prompt_ids: np.ndarray | None = None
        self.counts = Counter(output_ids)

    def append(self, token_id: int) -> None:
        self.counts[token_id] += 1

    def fork(self) -> History:
        """A history that shares the prompt and goes its own way from here."""
        child = History(self._prompt_ids)
        child._unique_prompt_ids = self._unique_prompt_ids
        child.counts = self.counts.copy()
        return child

    @property
    def output_ids(self) -> np.ndarray:
        """Distinct output ids, in the order of `output_counts`."""
        return np.fromiter(self.counts.keys(), np.int64, len(self.counts))

    @property
    def output_counts(self) -> np.ndarray:
        return np.fromiter(self.counts.values(), np.float64, len(self.counts))

    @property
    def seen_ids(self) -> np.ndarray:
        """Prompt and output ids; one that is in both may come twice."""
        if self._unique_prompt_ids is None:
            self._unique_prompt_ids = np.unique(np.fromiter(self._prompt_ids, np.int64))
        return np.concatenate([self._unique_prompt_ids, self.output_ids])


def changes_logits(params: SamplingParams, index: int) -> bool:
    """Whether `adjust` would do anything to the row of output token `index`."""
    return bool(
        params.logit_bias
        or params.repetition_penalty != 1.0
        or params.presence_penalty
        or params.frequency_penalty
        or index < params.min_tokens
    )


def adjust(row: np.ndarray, params: SamplingParams, history: History, index: int) -> None:
    """Applies `params` in place to `row` (float64 [vocab]), the logits of output token `index`."""
    if params.logit_bias:
        ids, values = zip(*params.logit_bias, strict=True)
        np.add.at(row, np.array(ids), values)
    if params.repetition_penalty != 1.0:
        seen_ids = history.seen_ids
        seen = row[seen_ids]
        row[seen_ids] = np.where(seen > 0, seen / params.repetition_penalty, seen * params.repetition_penalty)
    if params.presence_penalty or params.frequency_penalty:
        row[history.output_ids] -= params.presence_penalty + params.frequency_penalty * history.output_counts
    if index < params.min_tokens:
        row[[*params.eos_ids, *params.stop_ids]] = -np.inf
