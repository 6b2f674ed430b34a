"""The sender's machine: what is shipped, when it commits, when the blocks are unpinned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.wire.types import Commit, Failed, FinishReason, FirstToken, FrameHeader, HandedOff, KvAnswer, Token
from kvtransfer.protocol.sender import Report, SendAttempt, SendCommit, Ship, Unpin

LEASE = b"lease-of-16-byte"
FIRST = (FirstToken(0, Token(7)),)


def combine(digests) -> int:
    return sum(digests)


def attempt() -> SendAttempt:
    return SendAttempt(LEASE, 3, cover_start=2, cover_end=6, num_layers=2, combine=combine)


def ship(machine: SendAttempt, start: int, end: int) -> list:
    header = machine.frame(start, end, 0, 2)
    return machine.sent(replace(header, digest=10 + header.sequence))


def committing() -> SendAttempt:
    machine = attempt()
    machine.computed(6)
    machine.sampled(1, FIRST)
    ship(machine, 2, 6)
    return machine


def test_only_what_is_computed_and_lacking_is_shipped():
    machine = attempt()
    assert machine.computed(2) == []
    assert machine.computed(4) == [Ship(2, 4)]
    assert machine.computed(4) == []
    assert machine.computed(9) == [Ship(4, 6)]


def test_frames_are_numbered():
    machine = attempt()
    assert machine.frame(2, 4, 0, 1) == FrameHeader(LEASE, 3, 0, 2, 4, 0, 1)
    assert machine.frame(2, 4, 1, 2).sequence == 1


@pytest.mark.parametrize("sampled_first", [False, True])
def test_it_commits_when_everything_was_sent_and_sampled(sampled_first):
    machine = attempt()
    machine.computed(6)
    assert ship(machine, 2, 4) == []
    if sampled_first:
        assert machine.sampled(1, FIRST) == []
        committed = ship(machine, 4, 6)
    else:
        assert ship(machine, 4, 6) == []
        committed = machine.sampled(1, FIRST)
    assert committed == [SendCommit(Commit(LEASE, 3, 1, FIRST, 2, 6, 2, 2, 21))]


def test_frames_may_be_closed_in_another_order():
    machine = attempt()
    machine.computed(6)
    machine.sampled(1, FIRST)
    first, second = machine.frame(2, 4, 0, 2), machine.frame(4, 6, 0, 2)
    assert machine.sent(replace(second, digest=5)) == []
    [action] = machine.sent(replace(first, digest=4))
    assert action.commit.num_frames == 2


def test_the_ok_hands_off_and_unpins():
    machine = committing()
    assert machine.answer(KvAnswer(LEASE, 3, ok=True)) == [Report(HandedOff(LEASE, 3)), Unpin()]
    assert machine.answer(KvAnswer(LEASE, 3, ok=True)) == []
    assert machine.lost("channel_lost") == []
    assert machine.end() == []


def test_a_refusal_fails_the_attempt_at_any_time():
    machine = attempt()
    machine.computed(4)
    refused = machine.answer(KvAnswer(LEASE, 3, ok=False, reason="overlap"))
    assert refused == [Report(Failed(LEASE, 3, "overlap")), Unpin()]
    assert machine.computed(6) == []
    assert machine.frame(4, 6, 0, 2) is None
    assert machine.sampled(1, FIRST) == []


def test_answers_to_others_are_not_for_it():
    machine = committing()
    assert machine.answer(KvAnswer(LEASE, 2, ok=True)) == []
    assert machine.answer(KvAnswer(b"another lease...", 3, ok=True)) == []
    assert not machine.over


def test_an_ok_without_a_commit_is_nothing():
    machine = attempt()
    assert machine.answer(KvAnswer(LEASE, 3, ok=True)) == []


def test_a_broken_channel_fails_but_unpins_only_when_no_frame_is_read():
    machine = attempt()
    machine.computed(6)
    header = machine.frame(2, 4, 0, 2)
    assert machine.lost("channel_lost") == [Report(Failed(LEASE, 3, "channel_lost"))]
    assert machine.reading
    assert machine.sent(replace(header, digest=1)) == [Unpin()]
    assert machine.unpinned


def test_an_end_reports_nothing_and_waits_for_the_read():
    machine = attempt()
    machine.computed(6)
    header = machine.frame(2, 4, 0, 2)
    assert machine.end() == []
    assert machine.end() == []
    assert machine.sent(replace(header, digest=1)) == [Unpin()]


def test_first_tokens_that_end_every_choice_commit_nothing():
    machine = attempt()
    machine.computed(6)
    ended = (FirstToken(0, Token(7), FinishReason.STOP), FirstToken(1, Token(8), FinishReason.LENGTH))
    assert machine.sampled(0, ended) == [Report(HandedOff(LEASE, 3)), Unpin()]
    assert machine.frame(2, 6, 0, 2) is None


def test_one_choice_that_goes_on_is_handed_off():
    machine = attempt()
    machine.computed(6)
    ship(machine, 2, 6)
    [action] = machine.sampled(0, (FirstToken(0, Token(7), FinishReason.STOP), FirstToken(1, Token(8))))
    assert isinstance(action, SendCommit)


def test_an_engine_that_cannot_says_whether_another_could():
    assert attempt().broken("step", "nan", retryable=False) == [Report(Failed(LEASE, 3, "step", "nan", False)), Unpin()]
