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
_NUCLEUS_GUESS = 512


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
    if all(draw.is_plain for draw in draws):
        return _sample_plain(logits, draws)
    rows = logits.cpu().numpy()
    return [_sample_one(rows[draw.row], draw) for draw in draws]


def _sample_plain(logits: torch.Tensor, draws: Sequence[Draw]) -> list[Token | SamplingError]:
    best, ids = logits.max(dim=1)
    tokens = [
        Token(token_id) if math.isfinite(value) else SamplingError("the logits are not finite")
        for value, token_id in zip(best.tolist(), ids.tolist(), strict=True)
    ]
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
    best = int(row.argmax())  # the first of equals: the lowest id; a NaN if there is one
    if not math.isfinite(row[best]):
        raise SamplingError("the logits are not finite")
    if params.temperature == 0:
        return best
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf, as it should
        scaled = (row - row[best]) / params.temperature
    token_ids = _candidates(scaled, params)
    scores = scaled[token_ids] + noise.gumbel(noise.key(params.seed, draw.choice, draw.index), token_ids)
    return int(token_ids[scores.argmax()])


def _candidates(scaled: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Ids that min_p, top_k and top_p leave. `scaled` [vocab]: logits over temperature, their maximum moved to 0."""
    token_ids = np.arange(len(scaled))
    if params.min_p > 0:
        token_ids = token_ids[scaled >= math.log(params.min_p)]
    if 0 < params.top_k < len(token_ids):
        token_ids = _largest(scaled, token_ids, params.top_k)
    if params.top_p < 1:
        token_ids = _nucleus(scaled, token_ids, params.top_p)
    return token_ids


def _largest(scaled: np.ndarray, token_ids: np.ndarray, count: int) -> np.ndarray:
    """The `count` ids of largest value, the lowest ids among equals; in no order."""
    values = scaled[token_ids]
    floor = np.partition(values, -count)[-count]
    above = token_ids[values > floor]
    return np.concatenate([above, token_ids[values == floor][: count - len(above)]])


def _descending(scaled: np.ndarray, token_ids: np.ndarray) -> np.ndarray:
    """`token_ids` by value, best first, the lowest id first among equals."""
    return token_ids[np.lexsort((token_ids, -scaled[token_ids]))]


def _nucleus(scaled: np.ndarray, token_ids: np.ndarray, top_p: float) -> np.ndarray:
    """The smallest set of most likely ids whose probability among `token_ids` reaches `top_p`; never empty."""
    wanted = top_p * np.exp(scaled[token_ids]).sum()
    # a few hundred ids nearly always suffice, and sorting the whole vocabulary is what costs
    for count in (_NUCLEUS_GUESS, len(token_ids)):
        part = _largest(scaled, token_ids, count) if count < len(token_ids) else token_ids
        ordered = _descending(scaled, part)
        reached = np.exp(scaled[ordered]).cumsum()
        if reached[-1] >= wanted:
            break
    return ordered[: int(reached.searchsorted(wanted)) + 1]


def _with_logprobs(raw: np.ndarray, token_id: int, num_logprobs: int | None) -> Token:
    if num_logprobs is None:
        return Token(token_id)
    row = raw.astype(np.float64)
    logprobs = row - (row.max() + math.log(np.exp(row - row.max()).sum()))
    top_ids = np.arange(0)
    if num_logprobs:
        top_ids = _descending(logprobs, _largest(logprobs, np.arange(len(row)), min(num_logprobs, len(row))))
    return Token(token_id, float(logprobs[token_id]), tuple((int(i), float(logprobs[i])) for i in top_ids))
