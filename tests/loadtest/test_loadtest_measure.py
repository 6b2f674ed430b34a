"""Figures out of recorded times, exactly."""

import random
import statistics

import pytest

from baton.loadtest.compare import compare
from baton.loadtest.errors import BenchError
from baton.loadtest.measure import Distribution, summarise
from baton.loadtest.slo import Slo
from tests.loadtest.loadtest_support import outcome, result_of, run_of, steady


def test_percentiles_are_those_of_statistics():
    values = [random.Random(1).random() for _ in range(101)]
    of = Distribution.of((value, 1) for value in values)
    expected = statistics.quantiles(values, n=100, method="inclusive")
    assert [of.percentile(percent) for percent in (50, 90, 99)] == pytest.approx([expected[49], expected[89], expected[98]])
    assert (of.max, of.mean, of.num) == (max(values), pytest.approx(statistics.mean(values)), 101)


def test_weights_are_repetitions():
    weighted = Distribution.of([(1.0, 3), (2.0, 1), (5.0, 4)])
    plain = Distribution.of((value, 1) for value in (1, 1, 1, 2, 5, 5, 5, 5))
    assert [weighted.percentile(p) for p in range(0, 101, 5)] == [plain.percentile(p) for p in range(0, 101, 5)]
    assert weighted.mean == plain.mean


def test_the_harness_on_a_coalescing_server():
    """Ten requests, one at a time: 13 tokens each, in messages of 1, 4, 4 and 4, over 1.1 s."""
    outcomes = [
        outcome([(1.1 * i + at, num) for at, num in ((0.5, 1), (0.7, 4), (0.9, 4), (1.1, 4))], number=i, intended_s=1.1 * i)
        for i in range(10)
    ]
    summary = summarise(outcomes, Slo())
    assert summary.output_tokens == 130
    assert summary.span_s == pytest.approx(11.0)
    assert summary.per_s(summary.output_tokens) == pytest.approx(11.818, abs=0.001)
    assert [summary.latencies[name].percentile(50) for name in ("ttft", "tpot", "itl", "e2e")] == pytest.approx(
        [0.5, 0.05, 0.05, 1.1]
    )


def test_failures_count_in_the_rates_and_not_in_the_latencies():
    outcomes = [
        *steady(8, 0.2, 0.01),
        outcome([], number=8, error="http 429"),
        outcome([(9.9, 1)], number=9, error="stream cut"),
    ]
    summary = summarise(outcomes, Slo.parse(["ttft:300"]))
    assert (summary.num, summary.num_ok, summary.success) == (10, 8, 0.8)
    assert summary.errors == {"http 429": 1, "stream cut": 1}
    assert summary.attained == 0.8
    assert summary.latencies["ttft"].num == 8


def test_goodput_counts_requests_that_keep_every_slo():
    outcomes = [
        outcome([(0.1, 1), (0.2, 1)], number=0),
        outcome([(0.9, 1), (1.0, 1)], number=1),
        outcome([(0.1, 1), (0.9, 1)], number=2),
        outcome([(0.9, 1), (2.0, 1)], number=3),
    ]
    summary = summarise(outcomes, Slo.parse(["ttft:500,itl:300"]))
    assert summary.num_good == 1
    assert summary.missed == {"ttft": 2, "itl": 2}
    assert summary.per_s(summary.num_good) == 0.5


def test_attainment_grows_with_the_scale():
    outcomes = [outcome([(0.1 * (i + 1), 1)], number=i) for i in range(10)]
    attained = dict(summarise(outcomes, Slo.parse(["ttft:500"])).attainment)
    assert attained[1.0] == 0.5
    assert attained[0.5] == 0.2
    assert attained[2.0] == 1.0
    assert list(attained.values()) == sorted(attained.values())


def test_no_slo_is_no_limit():
    summary = summarise(steady(3, 99.0, 9.0), Slo())
    assert summary.num_good == 3


@pytest.mark.parametrize("text", ["ttft", "ttft:0", "ttft:x", "speed:3", "", "ttft:inf", "itl:nan"])
def test_slos_that_are_none(text):
    with pytest.raises(BenchError):
        Slo.parse([text])


def test_an_empty_run_has_figures():
    summary = summarise([], Slo.parse(["ttft:1"]))
    assert (summary.success, summary.attained, summary.per_s(0), summary.latencies) == (0.0, 0.0, 0.0, {})


def noisy(num, base_s, seed):
    rng = random.Random(seed)
    return [
        outcome([(i + base_s * rng.uniform(0.9, 1.1) + 0.01 * k, 1) for k in range(5)], number=i, intended_s=float(i))
        for i in range(num)
    ]


def differences(a, b):
    ((_, found),) = compare(result_of(run_of(a)), result_of(run_of(b)))
    return {difference.name: difference for difference in found}


def test_a_difference_beyond_the_spread_is_told():
    found = differences(noisy(60, 0.2, 1), noisy(60, 0.4, 2))
    assert found["TTFT p50"].verdict == "worse"
    assert found["TTFT p50"].relative == pytest.approx(1.0, abs=0.15)
    low, high = found["TTFT p50"].spread
    assert low <= found["TTFT p50"].relative <= high
    assert differences(noisy(60, 0.4, 2), noisy(60, 0.2, 1))["TTFT p50"].verdict == "better"


def test_noise_is_no_difference():
    found = differences(noisy(60, 0.2, 1), noisy(60, 0.2, 2))
    assert found["TTFT p50"].verdict == "no clear difference"
    assert found["TTFT max"].spread is None


def test_more_failures_are_worse():
    broken = [
        outcome([], number=i, intended_s=float(i), error="http 500") if i % 2 else o for i, o in enumerate(noisy(60, 0.2, 1))
    ]
    assert differences(noisy(60, 0.2, 1), broken)["success"].verdict == "worse"


def test_a_result_of_failures_alone_compares():
    found = differences(noisy(10, 0.2, 1), [outcome([], number=i, error="http 500") for i in range(10)])
    assert found["success"].b == 0.0
    assert "TTFT p50" not in found


def test_runs_are_paired_by_label():
    runs = [run_of(noisy(5, 0.2, i), label=label) for i, label in enumerate(("1 req/s", "2 req/s", "4 req/s"))]
    pairs = compare(result_of(runs[0], runs[1]), result_of(runs[1], runs[2]))
    assert [label for label, _ in pairs] == ["2 req/s"]
    with pytest.raises(BenchError, match="no run in common"):
        compare(result_of(runs[0], runs[1]), result_of(runs[2]))
