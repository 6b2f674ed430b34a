"""The sampler: each row alone, whatever stands beside it; noise that is named, not drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from core_support import with_params
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.engine import noise
from baton.engine.penalties import History
from baton.engine.sampler import Draw, SamplingError, sample
from baton.wire.types import SamplingParams, Token

HOT = SamplingParams(max_tokens=8, temperature=1.0)
VOCAB = 50


def draw(
    params: SamplingParams,
    row: int = 0,
    choice: int = 0,
    index: int = 0,
    prompt: tuple[int, ...] = (),
    output: tuple[int, ...] = (),
) -> Draw:
    return Draw(row, choice, index, params, History(prompt, output))


def pick(row: list[float], params: SamplingParams, **where: object) -> int:
    token = sample(torch.tensor([row]), [draw(params, **where)])[0]  # type: ignore[arg-type]
    assert isinstance(token, Token)
    return token.id


def frequencies(row: list[float], params: SamplingParams, num_draws: int = 4000) -> np.ndarray:
    draws = [draw(params, index=index) for index in range(num_draws)]
    ids = [token.id for token in sample(torch.tensor([row]), draws) if isinstance(token, Token)]
    return np.bincount(ids, minlength=len(row)) / num_draws


def test_greedy_takes_the_lowest_of_equals() -> None:
    assert pick([0.0, 3.0, 3.0, 1.0], with_params()) == 1
    assert pick([0.0, 3.0, 3.0, 1.0], with_params(repetition_penalty=1.5)) == 1


def test_draws_follow_the_distribution() -> None:
    row = [1.0, 0.0, 2.0, -1.0, 0.5]
    probabilities = np.exp(row) / np.exp(row).sum()
    assert frequencies(row, HOT) == pytest.approx(probabilities, abs=0.03)
    colder = np.exp(np.array(row) * 2) / np.exp(np.array(row) * 2).sum()
    assert frequencies(row, with_params(HOT, temperature=0.5)) == pytest.approx(colder, abs=0.03)


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"top_k": 1}, [2]),
        ({"top_k": 2}, [2, 1]),
        ({"top_k": 3}, [2, 1, 3]),
        ({"top_k": 99}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.39}, [2]),
        ({"top_p": 0.41}, [2, 1]),
        ({"top_p": 1e-9}, [2]),
        ({"min_p": 0.49}, [2, 1, 3]),
        ({"min_p": 1.0}, [2]),
        ({"top_k": 3, "top_p": 0.49}, [2]),
        ({"top_k": 3, "top_p": 0.51}, [2, 1]),
        ({"temperature": 1e-300}, [2]),
    ],
)
def test_filters_keep_what_they_say(changes: dict[str, float], kept: list[int]) -> None:
    row = np.log([0.05, 0.2, 0.4, 0.2, 0.15]).tolist()
    assert set(np.flatnonzero(frequencies(row, with_params(HOT, **changes), 600))) == set(kept)


def test_a_nucleus_wider_than_the_guess_is_exact() -> None:
    row = [0.0] * 3000
    seen = np.flatnonzero(frequencies(row, with_params(HOT, top_p=0.5), 3000))
    assert seen.max() < 1500
    assert seen.max() > 1400


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_row_is_the_same_in_any_batch(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    size = data.draw(st.integers(1, 6))
    rows = torch.from_numpy(rng.normal(0, 3, (size, VOCAB)).astype(np.float32))
    params = [
        SamplingParams(
            max_tokens=20,
            temperature=data.draw(st.sampled_from([0.0, 0.7, 1.0])),
            top_p=data.draw(st.sampled_from([1.0, 0.8])),
            top_k=data.draw(st.sampled_from([0, 5])),
            min_p=data.draw(st.sampled_from([0.0, 0.1])),
            presence_penalty=data.draw(st.sampled_from([0.0, 1.0])),
            repetition_penalty=data.draw(st.sampled_from([1.0, 1.3])),
            min_tokens=data.draw(st.sampled_from([0, 9])),
            eos_ids=(3,),
            seed=data.draw(st.integers(0, 2**64 - 1)),
            num_logprobs=data.draw(st.sampled_from([None, 0, 3])),
        )
        for _ in range(size)
    ]
    draws = [draw(p, row, choice=row % 3, index=row, prompt=(1, 2, 2), output=(5, 5, 6)) for row, p in enumerate(params)]
    together = sample(rows, draws)
    alone = [sample(rows[d.row : d.row + 1], [Draw(0, d.choice, d.index, d.params, d.history)])[0] for d in draws]
    assert together == alone


def test_penalties_count_what_they_say() -> None:
    flat = [0.0] * 6
    assert pick(flat, with_params(presence_penalty=1.0), prompt=(0,), output=(1,)) == 0
    assert pick(flat, with_params(frequency_penalty=-1.0), prompt=(0, 0, 0), output=(1, 2, 2)) == 2
    assert pick(flat, with_params(presence_penalty=-1.0, frequency_penalty=0.4), output=(1, 2, 2, 2)) == 1
    assert pick([4.0, 3.0, 0.0], with_params(repetition_penalty=2.0), prompt=(0, 0)) == 1
    assert pick([4.0, 3.0, 2.5], with_params(repetition_penalty=2.0), prompt=(0,), output=(1,)) == 2
    assert pick([-1.0, -1.5], with_params(repetition_penalty=2.0), prompt=(0,)) == 1
    assert pick(flat, with_params(logit_bias=((4, 1.0), (5, 0.5)))) == 4
    assert pick([9.0, 1.0], with_params(logit_bias=((0, -100.0),))) == 1


def test_a_history_grows_and_forks() -> None:
    history = History((7,), (1, 2))
    child = history.fork()
    history.append(1)
    child.append(3)
    assert dict(history.counts) == {1: 2, 2: 1}
    assert dict(child.counts) == {1: 1, 2: 1, 3: 1}
    assert set(child.seen_ids) == {7, 1, 2, 3}
    assert set(history.seen_ids) == {7, 1, 2}


def test_end_tokens_are_masked_until_the_minimum() -> None:
    params = with_params(min_tokens=2, eos_ids=(0,), stop_ids=(1,))
    assert [pick([9.0, 8.0, 1.0], params, index=index) for index in (0, 1, 2)] == [2, 2, 0]


def test_logprobs_are_raw_and_only_on_request() -> None:
    row = [0.5, 2.0, 1.0, 2.0]
    expected = torch.log_softmax(torch.tensor(row, dtype=torch.float64), 0)
    params = with_params(num_logprobs=3, logit_bias=((0, 50.0),), temperature=0.3)
    token = sample(torch.tensor([row]), [draw(params)])[0]
    assert isinstance(token, Token)
    assert token.id == 0
    assert token.logprob == pytest.approx(expected[0].item())
    assert [token_id for token_id, _ in token.top] == [1, 3, 2]
    assert [logprob for _, logprob in token.top] == pytest.approx(expected[[1, 3, 2]].tolist())
    assert sample(torch.tensor([row]), [draw(with_params(num_logprobs=0))])[0] == Token(1, pytest.approx(expected[1].item()))
    assert sample(torch.tensor([row]), [draw(with_params())]) == [Token(1)]


@pytest.mark.parametrize("params", [with_params(), HOT, with_params(num_logprobs=1)])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_rows_that_are_not_finite_fail_alone(params: SamplingParams, poison: float) -> None:
    rows = torch.zeros(2, 4)
    rows[0, 2] = poison
    rows[1, 3] = 50.0
    bad, good = sample(rows, [draw(params, 0), draw(params, 1)])
    assert isinstance(bad, SamplingError)
    assert isinstance(good, Token)
    assert good.id == 3


def test_parameters_that_numpy_chokes_on_fail_alone() -> None:
    rows = torch.zeros(2, 4)
    bad, good = sample(rows, [draw(with_params(logit_bias=((99, 1.0),)), 0), draw(HOT, 1)])
    assert isinstance(bad, SamplingError)
    assert isinstance(good, Token)


def test_everything_masked_is_an_error() -> None:
    outcome = sample(torch.zeros(1, 2), [draw(with_params(min_tokens=1, eos_ids=(0, 1)))])[0]
    assert isinstance(outcome, SamplingError)


def test_noise_is_a_fixed_function_of_its_names() -> None:
    ids = np.arange(1000)
    # workers of different versions must draw alike: these numbers never change
    assert noise.key(1, 0, 0) == 0xB18A02F46D8D86C3
    assert noise.gumbel(noise.key(1, 0, 0), np.arange(3)) == pytest.approx(
        [2.100418772361179, 0.09606664801210943, 1.7348815681702754]
    )
    base = noise.gumbel(noise.key(7, 1, 2), ids)
    assert (noise.gumbel(noise.key(7, 1, 2), ids[500:]) == base[500:]).all()
    for other in ((8, 1, 2), (7, 2, 2), (7, 1, 3), (1, 7, 2), (2**64 - 1, 1, 2)):
        assert not np.isclose(noise.gumbel(noise.key(*other), ids), base).any()
    assert np.isfinite(base).all()


def test_noise_is_gumbel_over_ids_and_over_draws() -> None:
    over_ids = noise.gumbel(noise.key(3, 0, 0), np.arange(200_000))
    over_draws = np.array([noise.gumbel(noise.key(3, 0, index), np.array([17]))[0] for index in range(20_000)])
    for values, tolerance in ((over_ids, 0.01), (over_draws, 0.04)):
        assert values.mean() == pytest.approx(np.euler_gamma, abs=tolerance)
        assert values.std() == pytest.approx(math.pi / math.sqrt(6), abs=tolerance)
    assert abs(np.corrcoef(over_ids[:-1], over_ids[1:])[0, 1]) < 0.01
    assert abs(np.corrcoef(over_draws[:-1], over_draws[1:])[0, 1]) < 0.03
