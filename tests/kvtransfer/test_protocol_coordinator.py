"""The coordinator: one lease at a time, the first token to arrive wins, one ending."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.wire.types import (
    Committed,
    DecodeTarget,
    End,
    Failed,
    Fence,
    Fenced,
    Finish,
    Finished,
    FinishReason,
    FirstToken,
    Gone,
    HandedOff,
    Position,
    Preempted,
    Refused,
    RequestSpec,
    Reserved,
    SamplingParams,
    StartDecode,
    StartPrefill,
    Token,
    Tokens,
)
from kvtransfer.protocol.actions import Accept, Done, Fail, Place, PlaceKind, Propose, Replay, Requeue, Send, Split
from kvtransfer.protocol.coordinator import Coordinator

L0, L1, L2 = b"lease-0", b"lease-1", b"lease-2"
D0, D1 = DecodeTarget("d0", b"d0-life"), DecodeTarget("d1", b"d1-life")
SPEC = RequestSpec((1, 2, 3), SamplingParams(max_tokens=5))
NOBODY: frozenset[str] = frozenset()


def tokens(*ids: int, index: int = 0, lease: bytes = L0, epoch: int = 0, choice: int = 0) -> Tokens:
    return Tokens(lease, epoch, choice, index, tuple(map(Token, ids)))


def accepts(*ids: int, index: int = 0, choice: int = 0) -> list:
    return [Accept(choice, at, Token(id_)) for at, id_ in enumerate(ids, index)]


def with_ids(*ids: int, spec: RequestSpec = SPEC) -> RequestSpec:
    return replace(spec, output_ids=ids)


def running(spec: RequestSpec = SPEC, **options) -> Coordinator:
    coordinator = Coordinator(spec, **options)
    coordinator.begin()
    coordinator.placed(L0, "p0", D0)
    coordinator.event("d0", Reserved(L0, 0, 2))
    return coordinator


def fencing(*accepted: int, spec: RequestSpec = SPEC, **options) -> Coordinator:
    coordinator = running(spec, **options)
    if accepted:
        coordinator.event("p0", tokens(*accepted))
    coordinator.event("p0", Failed(L0, 0, "stalled"))
    return coordinator


def two_choices() -> RequestSpec:
    return replace(SPEC, choices=(0, 1))


def test_decode_reserves_before_prefill_starts():
    coordinator = Coordinator(SPEC)
    assert coordinator.begin() == [Place(PlaceKind.PAIR)]
    assert coordinator.placed(L0, "p0", D0, deadline_s=9.0) == [
        Send("d0", StartDecode(L0, 0, replace(SPEC, deadline_s=9.0))),
    ]
    assert coordinator.reserving
    assert coordinator.event("d0", Reserved(L0, 0, 2)) == [
        Send("p0", StartPrefill(L0, 0, replace(SPEC, deadline_s=9.0), 2, D0)),
    ]
    assert coordinator.event("d0", Reserved(L0, 0, 2)) == []


def test_tokens_are_accepted_in_order_and_early_ones_wait():
    coordinator = running()
    assert coordinator.event("d0", tokens(11, index=1)) == []
    assert coordinator.event("p0", tokens(10)) == accepts(10, 11)
    assert coordinator.event("d0", tokens(11, 12, index=1)) == accepts(12, index=2)
    assert coordinator.positions == (Position(L0, 0, 0, 3),)


def test_decodes_copy_of_the_first_token_may_come_first():
    coordinator = running()
    assert coordinator.event("d0", tokens(10, 11)) == accepts(10, 11)
    assert coordinator.event("p0", tokens(10)) == []


def test_events_of_other_leases_and_epochs_are_dropped():
    coordinator = running()
    assert coordinator.event("p0", tokens(10, lease=L1)) == []
    assert coordinator.event("p0", tokens(10, epoch=1)) == []


def test_every_started_worker_is_ended_once():
    coordinator = running()
    coordinator.event("d0", tokens(10, 11))
    assert coordinator.choice_done(0, 2) == [Send("d0", End(L0)), Send("p0", End(L0)), Done()]
    assert coordinator.finished
    assert coordinator.cancel() == []
    assert coordinator.lost("d0") == []
    assert coordinator.event("d0", tokens(12, index=2)) == []


def test_a_cancel_before_the_start_of_prefill_ends_decode_alone():
    coordinator = Coordinator(SPEC)
    coordinator.begin()
    coordinator.placed(L0, "p0", D0)
    assert coordinator.cancel() == [Send("d0", End(L0)), Done()]


def test_a_lost_worker_needs_no_end():
    coordinator = running()
    coordinator.event("p0", HandedOff(L0, 0))
    assert coordinator.lost("p0") == []
    assert coordinator.cancel() == [Send("d0", End(L0)), Done()]


def test_the_loss_of_an_older_lease_says_nothing():
    coordinator = running()
    coordinator.lost("d0", L0)
    coordinator.placed(L1, "p0", D1)
    coordinator.event("d1", Reserved(L1, 0, 0))
    assert coordinator.lost("p0", L0) == []
    assert coordinator.cancel() == [Send("d1", End(L1)), Send("p0", End(L1)), Done()]


def test_a_proposed_end_waits_for_its_last_token():
    coordinator = running()
    assert coordinator.event("d0", Finished(L0, 0, 0, FinishReason.STOP, 2)) == []
    assert coordinator.event("d0", tokens(10, 11)) == [*accepts(10, 11), Propose(0, FinishReason.STOP)]


def test_one_token_needs_no_decode():
    coordinator = Coordinator(replace(SPEC, params=SamplingParams(max_tokens=1)))
    assert coordinator.begin() == [Place(PlaceKind.ALONE)]
    assert coordinator.placed(L0, "p0") == [Send("p0", StartPrefill(L0, 0, coordinator.spec))]
    assert coordinator.event("p0", tokens(10)) == accepts(10)
    assert coordinator.event("p0", HandedOff(L0, 0)) == [Propose(0, FinishReason.LENGTH)]
    assert coordinator.choice_done(0, 1) == [Send("p0", End(L0)), Done()]


def test_prefill_alone_that_brings_no_token_is_tried_again():
    coordinator = Coordinator(replace(SPEC, params=SamplingParams(max_tokens=1)))
    coordinator.begin()
    coordinator.placed(L0, "p0")
    assert coordinator.event("p0", HandedOff(L0, 0)) == [Send("p0", End(L0)), Place(PlaceKind.ALONE, frozenset({"p0"}))]


@pytest.mark.parametrize("reason", ["no_blocks", "busy", "draining"])
def test_a_refused_reservation_goes_back_to_the_queue_and_is_no_attempt(reason):
    coordinator = Coordinator(SPEC, max_attempts=1)
    coordinator.begin()
    for lease in (L0, L1):
        coordinator.placed(lease, "p0", D0)
        refused = coordinator.event("d0", Refused(lease, 0, reason))
        assert refused == [Send("d0", End(lease)), Requeue(reason, "d0"), Place(PlaceKind.PAIR)]


def test_another_refusal_of_a_reservation_is_an_attempt():
    coordinator = Coordinator(SPEC, max_attempts=2)
    coordinator.begin()
    coordinator.placed(L0, "p0", D0)
    assert coordinator.event("d0", Refused(L0, 0, "identity")) == [
        Send("d0", End(L0)),
        Place(PlaceKind.PAIR, frozenset({"d0"})),
    ]
    coordinator.placed(L1, "p0", D1)
    assert coordinator.reserve_timeout()[-1] == Fail("reserve_timeout", coordinator_message(2), retryable=True)


def coordinator_message(attempts: int) -> str:
    return f"{attempts} attempts failed, the last: decode did not answer a reservation in time"


def test_a_late_reserve_timer_is_nothing():
    assert running().reserve_timeout() == []


def test_prefill_lost_before_its_start_is_replaced_when_decode_has_answered():
    coordinator = Coordinator(SPEC, max_attempts=1)
    coordinator.begin()
    coordinator.placed(L0, "p0", D0)
    assert coordinator.lost("p0") == []
    assert coordinator.event("d0", Reserved(L0, 0, 2)) == [Place(PlaceKind.PREFILL, num_cached=2)]
    assert coordinator.placed(L0, "p1") == [Send("p1", StartPrefill(L0, 0, SPEC, 2, D0))]


@pytest.mark.parametrize("how", ["failed", "lost", "refused"])
def test_a_failed_prefill_is_settled_by_decode(how):
    coordinator = running()
    coordinator.event("p0", tokens(10))
    match how:
        case "failed":
            actions = coordinator.event("p0", Failed(L0, 0, "stalled"))
        case "refused":
            actions = coordinator.event("d0", Refused(L0, 0, "digest"))
        case _:
            actions = coordinator.lost("p0")
    ends = [] if how == "lost" else [Send("p0", End(L0))]
    assert actions == [*ends, Send("d0", Fence(L0, 1, (10,)))]


def test_during_a_fence_nothing_is_accepted_and_the_old_epoch_is_named():
    coordinator = fencing()
    assert coordinator.event("p0", tokens(10)) == []
    assert coordinator.event("d0", Reserved(L0, 0, 2)) == []
    assert coordinator.positions == (Position(L0, 0, 0, 0),)


def test_fenced_drops_what_was_held_and_another_prefill_starts_on_what_was_accepted():
    coordinator = fencing(10)
    coordinator.event("d0", tokens(10, 11))
    assert coordinator.event("d0", Fenced(L0, 1, 2)) == [Place(PlaceKind.PREFILL, frozenset({"p0"}), 2)]
    assert coordinator.positions == (Position(L0, 1, 0, 1),)
    assert coordinator.placed(L0, "p1") == [Send("p1", StartPrefill(L0, 1, with_ids(10), 2, D0))]
    assert coordinator.event("p0", tokens(77, index=1)) == []
    assert coordinator.event("p1", tokens(21, index=1, epoch=1)) == accepts(21, index=1)
    assert coordinator.attempt == 2


def test_committed_accepts_its_first_tokens_and_replays_what_was_held():
    coordinator = fencing()
    late = tokens(10, 11)
    coordinator.event("d0", late)
    committed = coordinator.event("d0", Committed(L0, 0, 0, (FirstToken(0, Token(10)),)))
    assert committed == [*accepts(10), Replay("d0", late)]
    assert coordinator.event("d0", late) == accepts(11, index=1)
    assert coordinator.attempt == 1
    assert coordinator.lost("p0") == []


def test_committed_carries_the_proposed_end_of_a_first_token():
    coordinator = fencing()
    first = (FirstToken(0, Token(10), FinishReason.STOP),)
    assert coordinator.event("d0", Committed(L0, 0, 0, first)) == [*accepts(10), Propose(0, FinishReason.STOP)]


@pytest.mark.parametrize("how", ["gone", "lost"])
def test_a_fence_that_finds_nobody_takes_a_new_pair(how):
    coordinator = fencing(10)
    actions = coordinator.lost("d0") if how == "lost" else coordinator.event("d0", Gone(L0, 1))
    ends = [] if how == "lost" else [Send("d0", End(L0))]
    assert actions == [*ends, Place(PlaceKind.PAIR, frozenset({"p0", "d0"}))]
    assert coordinator.placed(L1, "p1", D1) == [Send("d1", StartDecode(L1, 0, with_ids(10)))]


def test_a_lost_decode_ends_prefill_and_takes_a_new_pair():
    coordinator = running()
    coordinator.event("d0", tokens(10, 11))
    coordinator.event("d0", tokens(13, index=3))
    assert coordinator.lost("d0") == [Send("p0", End(L0)), Place(PlaceKind.PAIR, frozenset({"d0"}))]
    coordinator.placed(L1, "p0", D1)
    assert coordinator.event("d1", Reserved(L1, 0, 0)) == [Send("p0", StartPrefill(L1, 0, with_ids(10, 11), 0, D1))]
    assert coordinator.event("p0", tokens(22, index=2, lease=L1)) == accepts(22, index=2)


def test_decode_lost_while_another_prefill_is_sought():
    coordinator = fencing()
    coordinator.event("d0", Fenced(L0, 1, 2))
    assert coordinator.lost("d0") == [Place(PlaceKind.PAIR, frozenset({"p0", "d0"}))]


def test_when_one_token_remains_prefill_is_asked_alone():
    coordinator = running()
    coordinator.event("d0", tokens(10, 11, 12, 13))
    assert coordinator.lost("d0") == [Send("p0", End(L0)), Place(PlaceKind.ALONE, frozenset({"d0"}))]
    assert coordinator.placed(L1, "p0") == [Send("p0", StartPrefill(L1, 0, with_ids(10, 11, 12, 13)))]


def test_a_failed_prefill_with_one_token_left_needs_no_fence():
    coordinator = running(replace(SPEC, params=SamplingParams(max_tokens=2)))
    coordinator.event("p0", tokens(10))
    assert coordinator.lost("p0") == [Send("d0", End(L0)), Place(PlaceKind.ALONE, frozenset({"p0"}))]


@pytest.mark.parametrize("sign", ["handed_off", "decode_token"])
def test_prefill_is_not_needed_once_decode_has_committed(sign):
    coordinator = running()
    if sign == "handed_off":
        coordinator.event("p0", HandedOff(L0, 0))
    else:
        coordinator.event("d0", tokens(10, 11))
    assert coordinator.event("p0", Failed(L0, 0, "channel_lost", retryable=False)) == []
    assert coordinator.lost("p0") == []


def test_a_differing_token_ends_the_attempt():
    coordinator = running()
    coordinator.event("p0", tokens(10))
    actions = coordinator.event("d0", tokens(99, 11))
    assert actions == [Send("d0", End(L0)), Send("p0", End(L0)), Place(PlaceKind.PAIR, frozenset({"d0"}))]
    assert coordinator.spec.output_ids == (10,)


def test_attempts_end():
    coordinator = running(max_attempts=2)
    coordinator.lost("d0")
    coordinator.placed(L1, "p0", D1)
    actions = coordinator.lost("d1")
    assert actions == [Fail("decode_lost", "2 attempts failed, the last: lost decode worker d1", retryable=True)]


def test_the_last_attempt_may_still_turn_out_to_be_committed():
    coordinator = fencing(max_attempts=1)
    assert not coordinator.finished
    assert coordinator.event("d0", Committed(L0, 0, 0, (FirstToken(0, Token(10)),))) == accepts(10)


def test_a_request_at_fault_is_not_tried_again():
    actions = running().event("p0", Failed(L0, 0, "invalid", "no such token", retryable=False))
    assert actions == [Send("d0", End(L0)), Send("p0", End(L0)), Fail("invalid", "no such token", retryable=False)]


def test_preemption_is_no_attempt_and_blames_nobody():
    coordinator = running(max_attempts=1)
    coordinator.event("d0", tokens(10, 11))
    assert coordinator.event("d0", Preempted(L0, 0, 0)) == [
        Send("d0", End(L0)),
        Send("p0", End(L0)),
        Place(PlaceKind.PAIR),
    ]
    assert coordinator.spec == with_ids(10, 11)


def test_one_worker_with_both_roles_is_ended_once_and_fails_as_one():
    coordinator = Coordinator(SPEC)
    coordinator.begin()
    coordinator.placed(L0, "d0", D0)
    coordinator.event("d0", Reserved(L0, 0, 0))
    coordinator.event("d0", tokens(10))
    assert coordinator.event("d0", Failed(L0, 0, "step")) == [
        Send("d0", End(L0)),
        Place(PlaceKind.PAIR, frozenset({"d0"})),
    ]


def test_a_choice_that_ends_alone_is_stopped_at_decode():
    coordinator = running(two_choices())
    coordinator.event("d0", tokens(10, 11))
    assert coordinator.choice_done(0, 2) == [Send("d0", Finish(L0, 0))]
    assert coordinator.positions == (Position(L0, 0, 1, 0),)


def test_several_choices_that_lost_decode_go_on_one_by_one():
    coordinator = running(two_choices())
    coordinator.event("d0", tokens(10, 11))
    assert coordinator.lost("d0") == [
        Send("p0", End(L0)),
        Split(
            (replace(SPEC, choices=(0,), output_ids=(10, 11)), replace(SPEC, choices=(1,))),
            attempt=2,
            exclude=frozenset({"d0"}),
        ),
        Done(),
    ]


def test_several_choices_without_a_token_are_placed_again_together():
    coordinator = running(two_choices())
    assert coordinator.lost("d0") == [Send("p0", End(L0)), Place(PlaceKind.PAIR, frozenset({"d0"}))]
    assert coordinator.spec == two_choices()


def test_several_choices_are_fenced_before_they_split():
    coordinator = running(two_choices())
    coordinator.event("p0", tokens(10))
    assert coordinator.lost("p0") == [Send("d0", Fence(L0, 1))]
    end, split, done = coordinator.event("d0", Fenced(L0, 1, 0))
    assert end == Send("d0", End(L0))
    assert [spec.output_ids for spec in split.specs] == [(10,), ()]
    assert done == Done()


def test_a_preempted_choice_leaves_and_the_others_stay():
    coordinator = running(two_choices())
    coordinator.event("d0", tokens(10, 11, choice=0))
    coordinator.event("d0", tokens(20, 21, choice=1))
    leaving = replace(SPEC, choices=(1,), output_ids=(20, 21))
    assert coordinator.event("d0", Preempted(L0, 0, 1)) == [Split((leaving,), 1, NOBODY)]
    assert coordinator.event("d0", tokens(12, index=2)) == accepts(12, index=2)
    assert coordinator.choice_done(0, 3)[-1] == Done()


def test_a_placement_that_was_not_asked_for_is_an_error():
    coordinator = running()
    with pytest.raises(ValueError, match="no placement"):
        coordinator.placed(L2, "p0", D0)


def test_a_placement_must_fit_what_was_asked_for():
    coordinator = Coordinator(SPEC)
    coordinator.begin()
    with pytest.raises(ValueError, match="does not fit pair"):
        coordinator.placed(L0, "p0")


def test_a_lease_that_no_prefill_can_reach_is_given_up_for_another_pair():
    coordinator = fencing(5)
    (placing,) = coordinator.event("d0", Fenced(L0, 1, 2))
    assert placing.kind is PlaceKind.PREFILL
    end, placing = coordinator.move()
    assert end == Send("d0", End(L0))
    assert placing == Place(PlaceKind.PAIR, frozenset({"p0"}), 0)
    with pytest.raises(ValueError, match="no prefill"):
        coordinator.move()
    assert coordinator.placed(L1, "p0", D1) == [Send("d1", StartDecode(L1, 0, with_ids(5)))]
    assert coordinator.attempt == 2
