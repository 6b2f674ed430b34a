"""Tokens to text: characters, stop strings, ends. The pieces of any run join to the whole text, cut at its first stop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.wire.types import FinishReason, SamplingParams, Token
from router.request import Piece
from router.text import ChoiceText
from router.tokenizer import Tokenizer
from tests.support.doors import END, SECOND_END, scripted_card

TOKENIZER = Tokenizer(scripted_card())
EOS = (END, SECOND_END)


def run(ids: list[int], *, max_tokens: int = 100, stop: tuple[str, ...] = (), **more: object) -> list[Piece]:
    include = bool(more.pop("include_stop", False))
    skip = bool(more.pop("skip_special", True))
    params = SamplingParams(max_tokens=max_tokens, eos_ids=EOS, **more)  # type: ignore[arg-type]
    text = ChoiceText(TOKENIZER, params, stop, include, skip)
    pieces = []
    for token_id in ids:
        pieces.append(text.push(Token(token_id)))
        if pieces[-1].finish:
            break
    return pieces


def joined(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def cut(text: str, stop: tuple[str, ...], include: bool = False) -> tuple[str, bool]:
    """The reference: the text cut at the stop string that is complete first, found letter by letter."""
    for end in range(1, len(text) + 1):
        ending = [s for s in stop if text[:end].endswith(s)]
        if ending:
            return (text[:end] if include else text[: end - max(map(len, ending))]), True
    return text, False


letters = st.text("abé🌶", min_size=1, max_size=4)


@given(
    data=st.one_of(st.text("abé🌶", max_size=20).map(str.encode), st.binary(max_size=20)),
    stop=st.lists(letters, max_size=4).map(tuple),
    include=st.booleans(),
)
def test_pieces_join_to_the_whole_text_cut_at_its_first_stop(data: bytes, stop: tuple[str, ...], include: bool) -> None:
    pieces = run([*data, END], stop=stop, include_stop=include)
    expected, _ = cut(data.decode(errors="replace"), stop, include)
    assert joined(pieces) == expected
    assert pieces[-1].finish is FinishReason.STOP


@given(text=st.text("abé🌶", max_size=12), stop=st.lists(letters, max_size=4).map(tuple))
def test_no_piece_shows_what_a_later_one_takes_back(text: str, stop: tuple[str, ...]) -> None:
    expected, _ = cut(text, stop)
    so_far = ""
    for piece in run([*text.encode(), END], stop=stop):
        so_far += piece.text
        assert expected.startswith(so_far)
        assert "\N{REPLACEMENT CHARACTER}" not in piece.text


@given(data=st.binary(min_size=1, max_size=20), max_tokens=st.integers(1, 20))
def test_every_token_is_named_once_and_in_order(data: bytes, max_tokens: int) -> None:
    pieces = run([*data, END], max_tokens=max_tokens)
    ids = [token.id for piece in pieces for token in piece.tokens]
    assert ids == [*data, END][:max_tokens]


@pytest.mark.parametrize(
    ("stop", "text"), [(("ef",), "bcd"), (("bc",), ""), (("b",), ""), (("zz", "hij"), "bcdefg"), (("c", "bcd"), "b")]
)
def test_c344_a_stop_string_is_never_shown(stop: tuple[str, ...], text: str) -> None:
    pieces = run([*b"bcdefghij", END], stop=stop)
    assert joined(pieces) == text
    assert pieces[-1].finish is FinishReason.STOP


def test_c983_a_stop_beats_the_limit() -> None:
    pieces = run([*b"bcd"], stop=("d",), max_tokens=3)
    assert (joined(pieces), pieces[-1].finish) == ("bc", FinishReason.STOP)
    pieces = run([*b"bcdefghij", END], max_tokens=10)
    assert (joined(pieces), pieces[-1].finish) == ("bcdefghij", FinishReason.STOP)


@pytest.mark.parametrize(("max_tokens", "texts"), [(2, {"", "\ufffd"}), (6, {"🌶", "🌶\ufffd"}), (8, {"🌶辣!"})])
def test_c272_a_character_in_parts_is_held_back(max_tokens: int, texts: set[str]) -> None:
    pieces = run([*"🌶辣!".encode()], max_tokens=max_tokens)
    assert joined(pieces) in texts
    assert not any("\ufffd" in piece.text for piece in pieces[:-1])
    assert pieces[-1].finish is FinishReason.LENGTH
    assert len(pieces) == max_tokens


@pytest.mark.parametrize("end", EOS)
def test_c796_an_end_token_at_once_gives_no_text(end: int) -> None:
    (piece,) = run([end])
    assert (piece.text, piece.finish, len(piece.tokens)) == ("", FinishReason.STOP, 1)


def test_ignored_end_tokens_are_ordinary_and_stop_ids_are_not() -> None:
    pieces = run([97, END, 98, 99], ignore_eos=True, stop_ids=(98,))
    assert (joined(pieces), pieces[-1].finish) == ("a", FinishReason.STOP)
    assert len(pieces) == 3


def test_control_tokens_are_shown_on_request_only() -> None:
    assert joined(run([97, 259, 98, END])) == "ab"
    assert joined(run([97, 259, 98, END], skip_special=False)) == "a<|user|>b"
    assert joined(run([97, END], skip_special=False, include_stop=True)) == "a</s>"


def test_nothing_stops_a_choice_before_min_tokens() -> None:
    pieces = run([*b"abab", END], stop=("b",), min_tokens=3)
    assert joined(pieces) == "aba"
    pieces = run([97, END, 98, END], min_tokens=3)
    assert len(pieces) == 4


def test_a_logprob_comes_with_its_rivals_and_its_place() -> None:
    text = ChoiceText(TOKENIZER, SamplingParams(max_tokens=9, num_logprobs=1))
    text.push(Token(0xC3, -1.0, ((0xC3, -1.0),)))
    text.push(Token(0xA9, -2.0, ((98, -0.5),)))
    (token,) = text.push(Token(97, -0.5, ((97, -0.5),))).tokens
    assert (token.text, token.logprob, token.offset) == ("a", -0.5, 1)
    assert TOKENIZER.token(0xC3).text == "\\xc3"
