"""What is sent and when: arrivals, traces, lengths, plans."""

import gzip
import itertools
import statistics

import pytest

from baton.loadtest.arrivals import arrivals
from baton.loadtest.bench import Options, make_plans
from baton.loadtest.errors import BenchError
from baton.loadtest.traces import Entry, read_trace, scale
from baton.loadtest.workload import Drawn, Lengths, Replayed

MOONCAKE = """{"timestamp": 1000, "input_length": 1100, "output_length": 64, "hash_ids": [0, 1, 2]}
{"timestamp": 2000, "input_length": 1300, "output_length": 32, "hash_ids": [0, 1, 5]}

{"timestamp": 4000, "input_length": 600, "output_length": 320, "hash_ids": [9, 1]}
"""
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""


def gaps(kind, num, **options):
    times = list(itertools.islice(arrivals(kind, 4.0, options.get("burstiness", 1.0), 1), num))
    assert times[0] == 0
    return [later - earlier for earlier, later in itertools.pairwise(times)]


@pytest.mark.parametrize("kind", ["poisson", "gamma", "constant"])
def test_arrivals_have_their_rate(kind):
    assert statistics.mean(gaps(kind, 20_000)) == pytest.approx(0.25, rel=0.05)


BURSTS = [("poisson", 1, 1), ("gamma", 1, 1), ("gamma", 4, 4), ("gamma", 0.25, 0.25)]


@pytest.mark.parametrize(("kind", "burstiness", "squared"), BURSTS)
def test_burstiness_is_the_gaps_squared_variation(kind, burstiness, squared):
    found = gaps(kind, 40_000, burstiness=burstiness)
    assert (statistics.pstdev(found) / statistics.mean(found)) ** 2 == pytest.approx(squared, rel=0.1)


def test_constant_arrivals_are_even():
    assert set(gaps("constant", 9)) == {0.25}


def test_a_seed_repeats_arrivals():
    draw = [list(itertools.islice(arrivals("gamma", 1.0, 2.0, seed), 20)) for seed in (1, 1, 2)]
    assert draw[0] == draw[1] != draw[2]


@pytest.mark.parametrize(("kind", "rate", "burstiness"), [("poisson", 0, 1), ("gamma", 1, 0), ("bursts", 1, 1)])
def test_arrivals_that_make_no_sense(kind, rate, burstiness):
    with pytest.raises(BenchError):
        arrivals(kind, rate, burstiness, 0)


@pytest.fixture
def mooncake(tmp_path):
    path = tmp_path / "conversation.jsonl.gz"
    path.write_bytes(gzip.compress(MOONCAKE.encode()))
    return str(path)


def test_mooncake_is_read(mooncake):
    entries = read_trace(mooncake)
    assert [(e.at_s, e.input_len, e.output_len) for e in entries] == [(0, 1100, 64), (1, 1300, 32), (3, 600, 320)]
    assert entries[1].hash_ids == (0, 1, 5)


def test_azure_is_read(tmp_path):
    path = tmp_path / "code.csv"
    path.write_text(AZURE)
    first, second = read_trace(str(path))
    assert (first.at_s, first.input_len, first.output_len) == (0, 4808, 10)
    assert second.at_s == pytest.approx(0.052, abs=1e-6)


NO_TRACES = [
    ("x.jsonl", '{"timestamp": 1}\n', "input_length"),
    ("x.csv", "a,b\n1,2\n", "TIMESTAMP"),
    ("x.jsonl", "", "empty"),
    ("x.jsonl", "{", "x.jsonl"),
]


@pytest.mark.parametrize(("name", "text", "said"), NO_TRACES)
def test_a_file_that_is_no_trace_is_refused_by_name(tmp_path, name, text, said):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(BenchError, match=said):
        read_trace(str(path))


def test_a_missing_trace_is_refused(tmp_path):
    with pytest.raises(BenchError, match="cannot read the trace"):
        read_trace(str(tmp_path / "none.jsonl"))


def scaled(entries, **options):
    return scale(entries, **({"num": 9, "skip": 0, "shrink": 1.0, "stretch": None, "rate": None, "max_len": 0} | options))


def test_lengths_shrink_and_times_stretch(mooncake):
    replay = scaled(read_trace(mooncake), shrink=16, stretch=2)
    assert [(e.at_s, e.input_len, e.output_len) for e in replay.entries] == [(0, 69, 4), (2, 81, 2), (6, 38, 20)]
    assert (replay.block_len, replay.stretch, replay.num_dropped) == (32, 2, 0)


def test_a_rate_stretches_time(mooncake):
    replay = scaled(read_trace(mooncake), rate=0.5)
    assert [e.at_s for e in replay.entries] == pytest.approx([0, 4 / 3, 4])


def test_what_is_too_long_is_left_out_and_counted(mooncake):
    replay = scaled(read_trace(mooncake), max_len=1300, num=2)
    assert [e.input_len for e in replay.entries] == [1100, 600]
    assert replay.num_dropped == 1


def test_nothing_left_is_an_error(mooncake):
    with pytest.raises(BenchError, match="no request"):
        scaled(read_trace(mooncake), max_len=10)


def units(request):
    return request.prompt.split(" ") if isinstance(request.prompt, str) else list(request.prompt)


@pytest.mark.parametrize("as_ids", [False, True])
def test_equal_hash_ids_give_equal_text(as_ids):
    entries = (Entry(0, 40, 4, (0, 1, 2)), Entry(1, 44, 4, (0, 1, 5)), Entry(2, 20, 4, (9, 1)))
    replay = scaled(entries)
    first, second, third = (units(r) for r in Replayed(type(replay)(entries, 32, 1, 16, 0), "t", as_ids).requests(3, 7))
    assert [len(first), len(second), len(third)] == [40, 44, 20]
    assert first[:32] == second[:32]
    assert first[32:40] != second[32:40]
    assert third[16:20] == first[16:20]
    assert third[:16] != first[:16]


def test_blocks_that_are_too_few_are_filled_up():
    replay = type(scaled([Entry(0, 5, 1)]))((Entry(0, 40, 4, (0,)), Entry(0, 40, 4, (0,))), 32, 1, 16, 0)
    first, second = (units(r) for r in Replayed(replay, "t").requests(2, 7))
    assert len(first) == len(second) == 40
    assert first[:16] == second[:16]
    assert first[16:] != second[16:]


def test_drawn_lengths_and_prefix():
    requests = Drawn(Lengths(20, 30), Lengths(3, 3), prefix_len=12).requests(50, seed=1)
    lengths = {request.input_len for request in requests}
    assert lengths <= set(range(20, 31))
    assert len(lengths) > 5
    assert all(len(units(request)) == request.input_len for request in requests)
    assert len({tuple(units(request)[:12]) for request in requests}) == 1
    assert len({tuple(units(request)[12:16]) for request in requests}) == 50


def test_a_seed_repeats_requests_and_another_shares_no_prefix():
    drawn = Drawn(Lengths(8, 16), Lengths(4, 8))
    assert drawn.requests(5, 1) == drawn.requests(5, 1)
    of_one, of_two = ({tuple(units(request)[:3]) for request in drawn.requests(5, seed)} for seed in (1, 2))
    assert of_one.isdisjoint(of_two)


@pytest.mark.parametrize("text", ["", "0", "5:3", "a", "3:", "-1", "1:2:3"])
def test_lengths_that_are_none(text):
    with pytest.raises(BenchError):
        Lengths.parse(text)


def test_a_sweep_has_a_plan_a_rate_with_prompts_of_its_own():
    plans = make_plans(Options(rates=(1.0, 2.0), num_requests=5), seed=3)
    assert [(plan.label, plan.rate, len(plan.requests)) for plan in plans] == [("1 req/s", 1.0, 5), ("2 req/s", 2.0, 5)]
    assert plans[0].requests[0].prompt != plans[1].requests[0].prompt


def test_a_trace_brings_its_own_times(mooncake):
    (plan,) = make_plans(Options(trace=mooncake, shrink=16, rates=(2.0,)), seed=3)
    assert plan.due_s == pytest.approx((0, 1 / 3, 1))
    assert plan.facts["lengths"] == "divided by 16"
    assert "times multiplied by 0.3333" in plan.facts["load"]


def test_a_trace_with_arrivals_of_another_kind(mooncake):
    (plan,) = make_plans(Options(trace=mooncake, arrival="constant", rates=(2.0,)), seed=3)
    assert plan.due_s == (0, 0.5, 1)


def test_a_closed_loop_has_no_times():
    (plan,) = make_plans(Options(concurrency=3, num_requests=4), seed=3)
    assert (plan.due_s, plan.concurrency, plan.rate) == (None, 3, None)


NO_LOADS = [
    {},
    {"concurrency": 1, "rates": (1.0,)},
    {"rates": (1.0,), "num_requests": 0},
    {"concurrency": 0},
    {"concurrency": 1, "num_warmup": -1},
]


@pytest.mark.parametrize("options", NO_LOADS)
def test_loads_that_make_no_sense(options):
    with pytest.raises(BenchError):
        make_plans(Options(**options), seed=0)
