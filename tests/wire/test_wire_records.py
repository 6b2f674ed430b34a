"""A lease's record: every token and answer once, in order, however slowly it is taken and however often it is resumed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from baton.wire.convert import pack_down
from baton.wire.publisher import MESSAGE_BYTES
from baton.wire.records import LeaseRecord, Side
from baton.wire.types import Event, Finished, FinishReason, HandedOff, Reserved, Spans, Token, Tokens

LEASE = b"l" * 16


def record() -> LeaseRecord:
    made = LeaseRecord(LEASE, Side.DECODE, lambda _: None)
    made.restart(1)
    return made


def taken(source: LeaseRecord, budget: int = MESSAGE_BYTES) -> list[Event]:
    events: list[Event] = []
    while source.has_unsent:
        events += source.take(budget)[0]
    return events


def ids(events: list[Event], choice: int = 0) -> list[tuple[int, int]]:
    """(index, id) of a choice's tokens as told."""
    return [
        (event.index + offset, token.id)
        for event in events
        if isinstance(event, Tokens) and event.choice == choice
        for offset, token in enumerate(event.tokens)
    ]


def test_tokens_since_the_last_look_are_one_event() -> None:
    made = record()
    for index in range(5):
        made.output(0, index, Token(index))
    assert made.take(MESSAGE_BYTES)[0] == [Tokens(LEASE, 1, 0, 0, tuple(Token(i) for i in range(5)))]
    made.output(0, 5, Token(5))
    assert made.take(MESSAGE_BYTES)[0] == [Tokens(LEASE, 1, 0, 5, (Token(5),))]


def test_an_answer_comes_after_what_was_told_before_it() -> None:
    made = record()
    made.answer(Reserved(LEASE, 1, 0))
    made.output(0, 0, Token(7))
    made.answer(HandedOff(LEASE, 1))
    made.output(0, 1, Token(8))
    assert [type(event) for event in taken(made)] == [Reserved, Tokens, HandedOff, Tokens]


def test_one_choices_end_does_not_cut_the_others_runs() -> None:
    made = record()
    for choice in (0, 1):
        made.output(choice, 0, Token(choice))
    made.answer(Finished(LEASE, 1, 0, FinishReason.STOP, 1))
    made.output(1, 1, Token(9))
    assert [type(event) for event in taken(made)] == [Tokens, Tokens, Finished]


def test_spans_are_told_with_the_first_of_their_tokens() -> None:
    made = record()
    made.output(0, 0, Token(1))
    made.output(0, 1, Token(2), Spans(queue_s=1.0))
    made.output(0, 2, Token(3))
    events = [event for event in taken(made, budget=1) if isinstance(event, Tokens)]
    assert [event.spans for event in events] == [None, Spans(queue_s=1.0), None]


def test_a_higher_epoch_forgets_the_lower() -> None:
    made = record()
    made.output(0, 0, Token(1))
    made.restart(2)
    assert not made.has_unsent
    made.output(0, 0, Token(2))
    assert taken(made) == [Tokens(LEASE, 2, 0, 0, (Token(2),))]


Step = st.tuples(st.sampled_from(["output", "take", "resume"]), st.integers(0, 2), st.integers(1, 400))


@given(st.lists(Step, max_size=40))
def test_a_router_that_resumes_anywhere_sees_every_token_once(steps: list[tuple[str, int, int]]) -> None:
    """The router accepts the next index only; a resumption names what it has, losing whatever was on its way."""
    made, written, accepted = record(), {0: 0, 1: 0, 2: 0}, {0: 0, 1: 0, 2: 0}
    for kind, choice, size in [*steps, ("resume", 0, 1)]:
        if kind == "output":
            made.output(choice, written[choice], Token(written[choice]))
            written[choice] += 1
        elif kind == "take":
            events, _ = made.take(size)
            for told in (0, 1) if choice else ():  # a message may be lost with the link
                for index, token_id in ids(events, told):
                    assert index == token_id
                    accepted[told] = index + 1 if index == accepted[told] else accepted[told]
        else:
            made.resume(accepted)
    rest = taken(made)
    for choice, count in written.items():
        assert ids(rest, choice) == [(index, index) for index in range(accepted[choice], count)]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=300))
def test_a_message_keeps_to_its_budget(num_alternatives: list[int]) -> None:
    made = record()
    for index, count in enumerate(num_alternatives):
        made.output(0, index, Token(2**20, -1.0, ((2**20, -1.5),) * count))
    largest = 64 + 16 + 16 * 20  # an event and its dearest token may go over
    while made.has_unsent:
        events, _ = made.take(1000)
        assert len(pack_down(events, None).SerializeToString()) <= 1000 + largest
