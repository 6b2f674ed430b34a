"""The receiver's machine: what may be written, when it may be read, when it is free."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.wire.types import Commit, Committed, Fenced, FirstToken, FrameHeader, Gone, KvAnswer, Refused, Token
from kvtransfer.protocol.receiver import Answer, Expected, Free, Live, ReceiveLease, Report, State, Write

LEASE = b"lease-of-16-byte"
LAYERS = 2
FIRST = (FirstToken(0, Token(7)),)


def combine(digests) -> int:
    return sum(digests)


def lease(num_cached: int = 2, total_len: int = 6, epoch: int = 0, index: int = 0) -> ReceiveLease:
    return ReceiveLease(LEASE, Expected(epoch, num_cached, total_len, index), LAYERS, combine)


def frame(sequence: int, start: int, end: int, layers: tuple[int, int] = (0, LAYERS), epoch: int = 0) -> FrameHeader:
    return FrameHeader(LEASE, epoch, sequence, start, end, *layers, digest=10 + sequence)


def commit(epoch: int = 0, index: int = 0, cover: tuple[int, int] = (2, 6), num_frames: int = 2, digest: int = 21) -> Commit:
    return Commit(LEASE, epoch, index, FIRST, *cover, LAYERS, num_frames, digest)


def deliver(machine: ReceiveLease, *headers: FrameHeader) -> None:
    for header in headers:
        assert machine.frame(header) == [Write(header)]
        assert machine.written(header.epoch, header.sequence) == []


def ok(epoch: int = 0) -> Answer:
    return Answer(KvAnswer(LEASE, epoch, ok=True))


def refusal(reason: str, epoch: int = 0) -> list:
    return [no(reason, epoch), Report(Refused(LEASE, epoch, reason))]


def no(reason: str, epoch: int = 0) -> Answer:
    return Answer(KvAnswer(LEASE, epoch, ok=False, reason=reason))


def received() -> ReceiveLease:
    machine = lease()
    deliver(machine, frame(0, 2, 4), frame(1, 4, 6))
    return machine


def test_exact_cover_makes_the_blocks_live_before_the_ok():
    assert received().commit(commit()) == [Live(commit()), ok()]


def test_a_commit_said_again_is_answered_again_and_is_live_once():
    machine = received()
    machine.commit(commit())
    assert machine.commit(commit()) == [ok()]
    assert machine.commit(replace(commit(), digest=1)) == [no("committed")]


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (frame(1, 4, 6), "sequence"),
        (frame(0, 1, 3), "range"),
        (frame(0, 5, 7), "range"),
        (frame(0, 4, 4), "range"),
        (frame(0, 2, 4, (1, 3)), "range"),
        (frame(0, 2, 4, (1, 1)), "range"),
    ],
)
def test_a_frame_outside_the_transfer_ends_the_attempt(header, reason):
    machine = lease()
    assert machine.frame(header) == refusal(reason)
    assert machine.frame(frame(0, 2, 4)) == [no("refused")]
    assert machine.commit(commit()) == [no("refused")]


def test_cells_may_not_come_twice():
    machine = lease()
    deliver(machine, frame(0, 2, 5, (0, 1)))
    assert machine.frame(frame(1, 4, 6)) == refusal("overlap")


def test_layers_may_come_apart():
    machine = lease()
    deliver(machine, frame(0, 2, 6, (0, 1)), frame(1, 2, 6, (1, 2)))
    assert machine.commit(commit()) == [Live(commit()), ok()]


@pytest.mark.parametrize("late", [False, True])
def test_a_wrong_digest_ends_the_attempt_before_or_after_the_write(late):
    machine = lease()
    if late:
        machine.frame(frame(0, 2, 4))
        assert machine.written(0, 0, digest_ok=False) == refusal("digest")
    else:
        assert machine.frame(frame(0, 2, 4), digest_ok=False) == refusal("digest")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (commit(index=1), "index"),
        (commit(cover=(0, 6)), "range"),
        (commit(cover=(2, 5)), "range"),
        (replace(commit(), num_layers=1), "range"),
        (commit(num_frames=3), "cover"),
        (commit(digest=22), "digest"),
        (replace(commit(), first=()), "index"),
        (replace(commit(), first=FIRST * 2), "index"),
    ],
)
def test_a_commit_that_does_not_fit_is_refused_and_nothing_is_live(wrong, reason):
    machine = received()
    assert machine.commit(wrong) == refusal(reason)
    assert machine.state is State.REFUSED


def test_a_hole_is_refused():
    machine = lease()
    deliver(machine, frame(0, 2, 4), frame(1, 5, 6))
    assert machine.commit(commit()) == refusal("cover")


def test_a_commit_waits_for_the_writes_in_flight():
    machine = lease()
    deliver(machine, frame(0, 2, 4))
    machine.frame(frame(1, 4, 6))
    assert machine.commit(commit()) == []
    assert machine.written(0, 1) == [Live(commit()), ok()]


def test_nothing_may_follow_a_commit_that_waits():
    machine = lease()
    machine.frame(frame(0, 2, 4))
    machine.commit(commit())
    assert machine.frame(frame(1, 4, 6)) == refusal("frame_after_commit")
    assert machine.written(0, 0) == []


def test_a_fence_forgets_what_came_and_takes_only_its_epoch():
    machine = received()
    assert machine.fence(1, total_len=7, index=1) == [Report(Fenced(LEASE, 1, 2))]
    assert machine.frame(frame(2, 6, 7)) == [no("stale_epoch")]
    assert machine.commit(commit()) == [no("stale_epoch")]
    deliver(machine, frame(0, 2, 7, epoch=1))
    again = commit(epoch=1, index=1, cover=(2, 7), num_frames=1, digest=10)
    assert machine.commit(again) == [Live(again), ok(1)]


def test_a_frame_never_raises_the_epoch():
    machine = lease()
    assert machine.frame(frame(0, 2, 4, epoch=1)) == [no("future_epoch", 1)]
    deliver(machine, frame(0, 2, 4))


def test_a_fence_is_answered_when_the_old_writes_have_returned():
    machine = lease()
    machine.frame(frame(0, 2, 4))
    assert machine.fence(1, 6, 0) == []
    assert machine.frame(frame(0, 2, 4, epoch=1)) == [no("future_epoch", 1)]
    assert machine.fence(1, 6, 0) == []
    assert machine.written(0, 0) == [Report(Fenced(LEASE, 1, 2))]
    assert machine.fence(1, 6, 0) == [Report(Fenced(LEASE, 1, 2))]


def test_a_fence_after_the_commit_changes_nothing():
    machine = received()
    machine.commit(commit())
    assert machine.fence(1, 6, 0) == [Report(Committed(LEASE, 0, 0, FIRST))]
    machine.finished()
    assert machine.fence(1, 6, 0) == [Report(Committed(LEASE, 0, 0, FIRST))]


def test_a_fence_from_before_says_nothing():
    machine = lease(epoch=2)
    assert machine.fence(1, 6, 0) == []
    assert machine.epoch == 2


def test_after_the_end_everything_is_refused_and_a_fence_finds_nobody():
    machine = lease()
    assert machine.end() == [Free()]
    assert machine.end() == []
    assert machine.frame(frame(0, 2, 4)) == [no("ended")]
    assert machine.commit(commit()) == [no("ended")]
    assert machine.fence(1, 6, 0) == [Report(Gone(LEASE, 1))]


@pytest.mark.parametrize("fenced", [False, True])
def test_blocks_are_free_only_when_no_write_is_in_flight(fenced):
    machine = lease()
    machine.frame(frame(0, 2, 4))
    machine.frame(frame(1, 4, 6))
    if fenced:
        machine.fence(1, 6, 0)
    assert machine.end() == []
    assert machine.written(0, 1) == []
    assert machine.written(0, 0) == [Free()]


def test_blocks_are_freed_once_when_the_request_finishes_before_its_end():
    machine = received()
    assert machine.finished() == []
    machine.commit(commit())
    assert machine.finished() == [Free()]
    assert machine.end() == []
