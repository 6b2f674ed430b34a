"""From logits to tokens: one pass over a step's rows, each under its own parameters.

A row's token depends on its logits, parameters and history alone, never on the other rows. Order per row: bias, penalties,
end-token ban; then temperature, min_p, top_k, top_p; then Gumbel-max. Log-probabilities are of the raw row.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from baton.engine import noise
from baton.engine.penalties import History, adjust, changes_logits
from baton.wire.types import SamplingParams, Token

_log = logging.getLogger(__name__)
NOT_FINITE = "the logits are not finite"


class SamplingError(Exception):
    """One draw has no answer; the other draws of the step have theirs."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to sample: output token `index` of `choice`, from row `row` of the logits."""

    row: int
    choice: int
    index: int
    params: SamplingParams
    history: History

    @property
    def is_plain(self) -> bool:
        """The row's argmax is all that is asked for."""
        params = self.params
        return params.temperature == 0 and params.num_logprobs is None and not changes_logits(params, self.index)


def sample(logits: torch.Tensor, draws: Sequence[Draw]) -> list[Token | SamplingError]:
    """A token for each draw from `logits` (float32 [rows, vocab]). Several draws may share a row."""
    rows = logits.cpu().numpy()
    if all(draw.is_plain for draw in draws):
        return _sample_plain(rows, draws)
    return [_sample_one(rows[draw.row], draw) for draw in draws]


def _sample_plain(rows: np.ndarray, draws: Sequence[Draw]) -> list[Token | SamplingError]:
    """Greedy rows with nothing to change: one argmax (the first of equals, or a NaN if there is one)."""
    ids = rows.argmax(axis=1)
    is_finite = np.isfinite(rows[np.arange(len(rows)), ids]).tolist()
    tokens = [Token(i) if ok else SamplingError(NOT_FINITE) for i, ok in zip(ids.tolist(), is_finite, strict=True)]
    return [tokens[draw.row] for draw in draws]


def _sample_one(row: np.ndarray, draw: Draw) -> Token | SamplingError:
    try:
        token_id = _choose(row, draw)
        return _with_logprobs(row, token_id, draw.params.num_logprobs)
    except SamplingError as error:
        return error
    except Exception as error:  # whatever one request's parameters do to numpy must not reach its batch mates
        _log.exception("sampling failed")
        return SamplingError(f"sampling failed: {error}")


def _choose(raw: np.ndarray, draw: Draw) -> int:
    params = draw.params
    row = raw.astype(np.float64)
    adjust(row, params, draw.history, draw.index)
    best = int(row.argmax())
    if not math.isfinite(row[best]):
        raise SamplingError(NOT_FINITE)
    if params.temperature == 0:
        return best
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf, as it should
        scaled = (row - row[best]) / params.temperature
    token_ids, values = _candidates(scaled, params)
    scores = values + noise.gumbel(noise.key(params.seed, draw.choice, draw.index), token_ids)
    return int(token_ids[scores.argmax()])


def _candidates(scaled: np.ndarray, params: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """Ids that min_p, top_k and top_p leave, and their values. `scaled` [vocab]: logits over temperature, the maximum at 0."""
    token_ids, values = np.arange(len(scaled)), scaled
    if params.min_p > 0:
        kept = np.flatnonzero(values >= math.log(params.min_p))
        token_ids, values = token_ids[kept], values[kept]
    if 0 < params.top_k < len(values):
        kept = _largest(values, params.top_k)
        token_ids, values = token_ids[kept], values[kept]
    if params.top_p < 1:
        kept = _largest(values, _nucleus_size(values, params.top_p))
        token_ids, values = token_ids[kept], values[kept]
    return token_ids, values


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Positions of the `count` largest values, the first among equals; ascending within those above the smallest."""
    floor = np.partition(values, -count)[-count]
    above = np.flatnonzero(values > floor)
    return np.concatenate([above, np.flatnonzero(values == floor)[: count - len(above)]])


def _nucleus_size(values: np.ndarray, top_p: float) -> int:
    """How many of the most likely it takes to reach `top_p` of the probability; at least one."""
    reached = np.exp(np.sort(values)[::-1]).cumsum()
    return int(reached.searchsorted(top_p * reached[-1])) + 1


def _with_logprobs(raw: np.ndarray, token_id: int, num_logprobs: int | None) -> Token:
    if num_logprobs is None:
        return Token(token_id)
    highest = raw.max()
    log_total = float(highest) + math.log(np.exp(raw - highest, dtype=np.float64).sum())
    top_ids = _largest(raw, min(num_logprobs, len(raw))) if num_logprobs else np.arange(0)
    best_first = sorted(((float(raw[i]) - log_total, int(i)) for i in top_ids), key=lambda top: (-top[0], top[1]))
    return Token(token_id, float(raw[token_id]) - log_total, tuple((i, logprob) for logprob, i in best_first))
