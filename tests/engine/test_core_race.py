"""Pruned draws are the full ones, bit for bit: for any logits, and for those that are made to trip a bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.engine import noise
from baton.engine.race import DEPTHS, HEAD_LEN, scaled, winner
from baton.engine.sampler import _nucleus

LEN = 6000
MANY_IDS = np.arange(4_000_000)


def full(row: np.ndarray, token_ids: np.ndarray, temperature: float, draw_key: int) -> int:
    """By the definition: noise for every token, and the first of the largest sums."""
    scores = scaled(row, float(row.max()), temperature) + noise.gumbel(draw_key, token_ids)
    return int(scores.argmax())


def rows(rng: np.random.Generator, kind: str) -> np.ndarray:
    row: np.ndarray = rng.normal(0, 3, LEN)
    match kind:
        case "flat":
            row *= 1e-3
        case "equal":
            row[:] = rng.normal()
        case "peaked":
            row[rng.integers(LEN, size=3)] += 30
        case "steps":
            row = np.round(row / 4) * 4
        case "edges":  # values at the very bounds between head and tail
            row = np.repeat([0.0, *(-depth for depth in DEPTHS)], LEN // (len(DEPTHS) + 1) + 1)[:LEN]
        case "masked":
            row[rng.random(LEN) < 0.9] = -np.inf
        case "wide":
            row *= 1e30
        case "tiny":
            row *= 1e-38
    return row


KINDS = ["normal", "flat", "equal", "peaked", "steps", "edges", "masked", "wide", "tiny"]


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**32),
    draw_key=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([1.0, 0.7, 0.01, 1e-300, 2.0, 50.0]),
    dtype=st.sampled_from([np.float32, np.float64]),
    length=st.sampled_from([1, 2, HEAD_LEN, HEAD_LEN + 1, LEN]),
    named=st.booleans(),
)
def test_the_winner_is_the_one_of_all_noise(
    kind: str, seed: int, draw_key: int, temperature: float, dtype: type, length: int, named: bool
) -> None:
    rng = np.random.default_rng(seed)
    row: np.ndarray = rows(rng, kind)[:length].astype(dtype)
    if not np.isfinite(row.max()):
        row[0] = 0.0
    token_ids = rng.permutation(200_000)[:length] if named else None
    expected = full(row, np.arange(length) if token_ids is None else token_ids, temperature, draw_key)
    assert winner(row, token_ids, temperature, draw_key) == expected


@pytest.mark.parametrize("draw_key", range(5))
def test_a_token_that_nobody_expects_wins_by_the_last_bit(draw_key: int) -> None:
    """The largest noise of four million tokens lifts one from far below, to just above the best or just not."""
    every = noise.gumbel(draw_key, MANY_IDS)
    lucky = int(every.argmax())
    others = np.delete(MANY_IDS, lucky)[:LEN]
    token_ids = np.append(others, lucky)
    row = np.append(np.zeros(LEN), -np.inf)
    leader = int(np.abs(every[others]).argmin())
    row[leader] = 15.0  # the others are tail
    lead = 15.0 + every[others[leader]]
    for lift, expected in ((1e-9, LEN), (-1e-9, leader)):
        row[-1] = lead - every[lucky] + lift
        assert full(row, token_ids, 1.0, draw_key) == expected
        assert winner(row, token_ids, 1.0, draw_key) == expected
    assert row[-1] < 15.0 - max(DEPTHS)


def test_no_token_is_below_the_bits_of_its_noise() -> None:
    for draw_key in range(3):
        bits = noise.leading_bits(draw_key, MANY_IDS).copy()
        every = noise.gumbel(draw_key, MANY_IDS)
        order = every.argsort()
        for i in (*order[:50], *order[:: len(order) // 100], *order[-50:]):
            assert bits[i] >= noise.least_bits(float(every[i]))
        threshold = 9.0
        assert (bits >= noise.least_bits(threshold)).sum() < 1.1 * (every >= threshold).sum() + 5, "it prunes"
    assert (noise.leading_bits(9, 1000) == noise.leading_bits(9, np.arange(1000))).all()


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from([kind for kind in KINDS if kind != "wide"]),
    seed=st.integers(0, 2**32),
    top_p=st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.99, 1 - 1e-9, 1 - 2**-53]),
)
def test_a_nucleus_is_the_one_of_a_full_sort(kind: str, seed: int, top_p: float) -> None:
    row = rows(np.random.default_rng(seed), kind)
    values = scaled(row, float(row.max()), 1.0)
    weights = np.exp(values)
    reached = np.sort(weights)[::-1].cumsum()
    count = min(int(reached.searchsorted(top_p * weights.sum())) + 1, len(values))
    likeliest = np.argsort(-values, kind="stable")[:count]
    assert sorted(_nucleus(values, top_p)) == sorted(likeliest)
