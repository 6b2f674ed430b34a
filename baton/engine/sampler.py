"""From logits to tokens: one pass over a step's rows, each under its own parameters.

A row's token depends on its logits, parameters and history alone, never on the other rows. Order per row: bias, penalties,
end-token ban; then temperature, min_p, top_k, top_p; then Gumbel-max. Log-probabilities are of the raw row.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from baton.engine import noise
from baton.engine.penalties import History, adjust, changes_logits
from baton.engine.race import scaled, winner
from baton.wire.types import SamplingParams, Token

_log = logging.getLogger(__name__)
NOT_FINITE = "the logits are not finite"
NUCLEUS_FLOORS = (-4.0, -12.0, -math.inf)


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
    row = _adjusted(raw, draw)
    best = int(row.argmax())
    if not math.isfinite(row[best]):
        raise SamplingError(NOT_FINITE)
    if params.temperature == 0:
        return best
    token_ids = _candidates(row, float(row[best]), params)
    left = row if token_ids is None else row[token_ids]
    won = winner(left, token_ids, params.temperature, noise.key(params.seed, draw.choice, draw.index))
    return won if token_ids is None else int(token_ids[won])


def _adjusted(raw: np.ndarray, draw: Draw) -> np.ndarray:
    if not changes_logits(draw.params, draw.index):
        return raw
    row = raw.astype(np.float64)
    adjust(row, draw.params, draw.history, draw.index)
    return row


def _candidates(row: np.ndarray, best: float, params: SamplingParams) -> np.ndarray | None:
    """Ids that min_p, top_k and top_p leave of `row`, whose maximum is `best`; None: all."""
    token_ids = None
    if params.min_p > 0:
        token_ids = np.flatnonzero(scaled(row, best, params.temperature) >= math.log(params.min_p))
    if 0 < params.top_k < len(row):
        token_ids = _narrowed(token_ids, row, lambda left: _largest(left, min(params.top_k, len(left))))
    if params.top_p < 1:
        token_ids = _narrowed(token_ids, row, lambda left: _nucleus(scaled(left, best, params.temperature), params.top_p))
    return token_ids


def _narrowed(token_ids: np.ndarray | None, row: np.ndarray, choose: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The ids of those that `choose` takes out of what is left of `row`."""
    return choose(row) if token_ids is None else token_ids[choose(row[token_ids])]


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Positions of the `count` largest values, the first among equals; ascending within those above the smallest."""
    floor = np.partition(values, -count)[-count]
    above = np.flatnonzero(values > floor)
    return np.concatenate([above, np.flatnonzero(values == floor)[: count - len(above)]])


def _nucleus(values: np.ndarray, top_p: float) -> np.ndarray:
    """Positions of the most likely, as many as it takes to reach `top_p` of the probability; at least one.

    Only those above a floor are sorted, if they reach it beyond rounding: then the others are not among them.
    """
    weights = np.exp(values)
    wanted = top_p * weights.sum()
    for floor in NUCLEUS_FLOORS:
        kept = np.flatnonzero(values >= floor)
        if weights[kept].sum() > wanted * (1 + 1e-9):
            break
    reached = np.sort(weights[kept])[::-1].cumsum()
    count = min(int(reached.searchsorted(wanted)) + 1, len(kept))
    nucleus: np.ndarray = kept[_largest(values[kept], count)]
    return nucleus


def _with_logprobs(raw: np.ndarray, token_id: int, num_logprobs: int | None) -> Token:
    if num_logprobs is None:
        return Token(token_id)
    highest = raw.max()
    log_total = float(highest) + math.log(np.exp(raw - highest, dtype=np.float64).sum())
    top_ids = _largest(raw, min(num_logprobs, len(raw))) if num_logprobs else np.arange(0)
    best_first = sorted(((float(raw[i]) - log_total, int(i)) for i in top_ids), key=lambda top: (-top[0], top[1]))
    return Token(token_id, float(raw[token_id]) - log_total, tuple((i, logprob) for logprob, i in best_first))
