"""Tokens of messages, and the times of a request from them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.loadtest.counting import MESSAGES, TEXT, TOKEN_IDS, count, share
from baton.loadtest.record import Answer
from baton.loadtest.timing import slowest_tenth, timing_of
from tests.loadtest.loadtest_support import outcome


def answer_of(*messages, total=None):
    """Messages as (at, characters[, tokens])."""
    answer = Answer([])
    for message in messages:
        answer.add(*message)
    answer.output_tokens = total
    return answer


def tokens(answer):
    return [message.num_tokens for message in count(answer)[0]]


def test_a_role_is_no_token():
    assert tokens(answer_of((0.0, 0), (0.5, 4))) == [1]


def test_named_tokens_are_taken_as_they_are():
    answer = answer_of((0.1, 4, 1), (0.2, 2, 3), total=4)
    assert tokens(answer) == [1, 3]
    assert count(answer)[1:] == (4, TOKEN_IDS)


def test_a_running_total_gives_each_message_its_part():
    answer = Answer([])
    for at_s, total in ((0.0, 0), (0.5, 1), (0.7, 5), (0.9, 9)):
        answer.add(at_s, 0, total_tokens=total)
    assert tokens(answer) == [1, 4, 4]


def test_tokens_without_text_are_counted_where_they_arrive():
    """Half a character is a token whose text comes with the next."""
    assert tokens(answer_of((0.1, 0, 1), (0.2, 1, 1))) == [1, 1]


def test_a_sum_is_shared_by_length():
    answer = answer_of((0.5, 4), (0.7, 16), (0.9, 16), (1.1, 16), total=13)
    assert tokens(answer) == [1, 4, 4, 4]
    assert count(answer)[1:] == (13, TEXT)


def test_one_token_a_message_stays_so_whatever_the_lengths():
    assert tokens(answer_of((0.1, 1), (0.2, 20), (0.3, 3), total=3)) == [1, 1, 1]


def test_without_any_count_messages_are_tokens():
    assert count(answer_of((0.1, 4), (0.2, 16)))[1:] == (2, MESSAGES)


@given(st.integers(0, 500), st.lists(st.integers(0, 90), min_size=1, max_size=60))
def test_shares_add_up(total, weights):
    parts = share(total, weights)
    assert sum(parts) == total
    assert min(parts) >= (1 if total >= len(weights) else 0)


def test_several_tokens_in_a_message():
    """Role at 0, a token at 500 ms, three messages of four tokens 200 ms apart."""
    timing = timing_of(outcome([(0.5, 1), (0.7, 4), (0.9, 4), (1.1, 4)]))
    assert timing.ttft_s == 0.5
    assert timing.tpot_s == pytest.approx(0.6 / 12)
    assert timing.e2e_s == 1.1
    assert [(round(value, 9), num) for value, num in timing.itls] == [(0.05, 4)] * 3
    assert timing.pauses_s == pytest.approx([0.2] * 3)


def test_several_tokens_in_the_first_message_are_no_gaps_of_zero():
    timing = timing_of(outcome([(0.5, 4), (0.7, 4), (0.9, 4), (1.1, 4)]))
    assert timing.tpot_s == pytest.approx(0.6 / 12)
    assert sum(num for _, num in timing.itls) == 12


def test_one_message_has_no_gaps():
    timing = timing_of(outcome([(0.5, 3)]))
    assert timing.tpot_s is None
    assert timing.itls == ()
    assert timing.of("itl") == timing.of("tpot") == 0.0


def test_an_open_loop_counts_from_the_due_time():
    timing = timing_of(outcome([(7.0, 1)], intended_s=2.0))
    assert (timing.ttft_s, timing.e2e_s) == (5.0, 5.0)


def test_a_stall_stays_whole_as_a_pause():
    """Two seconds of silence, then all that was missed at once."""
    timing = timing_of(outcome([(0.1, 1), (2.1, 20), (2.2, 1)]))
    assert timing.of("itl") == pytest.approx(0.1)
    assert timing.of("pause") == pytest.approx(2.0)


def test_slowest_tenth():
    assert slowest_tenth([(float(i), 1) for i in range(1, 21)]) == 19.5
    assert slowest_tenth([(1.0, 19), (9.0, 1)]) == 5.0
    assert slowest_tenth([]) == 0.0
