"""Text to ids and back to bytes, for both families of tokenizers, and chats whose text names control tokens."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as HfTokenizer

from baton.wire.errors import ContextOverflow, InvalidRequest
from router.messages import fence, read_messages
from router.template import ChatTemplate
from router.tokenizer import NONCHARACTERS, Tokenizer
from tests.support.doors import BOS, SPECIAL, scripted_card

CARD = scripted_card()
TOKENIZER = Tokenizer(CARD)
TEMPLATE = ChatTemplate(CARD)


def chat_ids(*contents: str) -> list[int]:
    messages, mark = fence(read_messages([{"role": "user", "content": text} for text in contents]), TOKENIZER)
    return TOKENIZER.encode_chat(TEMPLATE.render(messages), mark)


def test_c717_plain_text_gets_one_bos_and_a_chat_keeps_its_own() -> None:
    assert TOKENIZER.encode("hi") == [BOS, *b"hi"]
    assert chat_ids("hi") == [256, 259, 10, 104, 105, 10, 260, 10]
    rendered = TEMPLATE.render([{"role": "user", "content": "hi"}])
    assert TOKENIZER.encode(rendered) == chat_ids("hi")


def test_no_bos_where_the_model_wants_none() -> None:
    assert Tokenizer(scripted_card(add_bos=False)).encode("hi") == [*b"hi"]


@given(st.lists(st.one_of(st.sampled_from([*SPECIAL, "<|", "|>", "<s", *NONCHARACTERS[:2]]), st.text(max_size=4))))
def test_text_of_a_chat_never_becomes_a_control_token(parts: list[str]) -> None:
    text = "".join(parts)
    ids = chat_ids(text)
    assert [i for i in ids if i >= BOS] == [256, 259, 260]
    assert bytes(i for i in ids if i < BOS).decode() == f"\n{text}\n\n"


def test_a_name_or_a_tool_call_is_no_way_in_either() -> None:
    call = {"id": "<s>", "type": "function", "function": {"name": "</s>", "arguments": '{"<|eot|>": ["<|tool|>"]}'}}
    messages = [{"role": "assistant", "content": None, "name": "<|user|>", "tool_calls": [call]}]
    card = scripted_card(chat_template="{{ messages | tojson }}")
    fenced, mark = fence(read_messages(messages), TOKENIZER)
    ids = TOKENIZER.encode_chat(ChatTemplate(card).render(fenced), mark)
    assert max(ids) < BOS
    assert json.loads(bytes(ids))[0]["tool_calls"][0]["function"]["arguments"] == {"<|eot|>": ["<|tool|>"]}


def test_text_with_every_private_mark_and_a_control_token_is_refused() -> None:
    with pytest.raises(InvalidRequest) as error:
        chat_ids("<s>" + "".join(NONCHARACTERS))
    assert error.value.param == "messages"


def test_byte_fallback_pieces_are_spaces_and_bytes() -> None:
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁he", "y"]
    hf = HfTokenizer(models.BPE({name: i for i, name in enumerate(pieces)}, [("▁", "he")][:0], byte_fallback=True))
    hf.normalizer = normalizers.Replace(" ", "▁")
    hf.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    hf.add_special_tokens([AddedToken("<end>", special=True)])
    tokenizer = Tokenizer(scripted_card(tokenizer_json=hf.to_str(), add_bos=False, special_ids=(len(pieces),)))
    ids = [258, 259, 1 + 0xC3, 1 + 0xA9, 257]
    assert b"".join(tokenizer.token(i).bytes for i in ids) == " heyé ".encode()
    assert tokenizer.token(260).bytes == b"<end>"


def test_an_unknown_decoder_is_refused_by_name() -> None:
    hf = HfTokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    hf.decoder = decoders.WordPiece()
    with pytest.raises(ValueError, match="WordPiece"):
        Tokenizer(scripted_card(tokenizer_json=hf.to_str()))


def test_megabytes_are_refused_before_they_are_encoded() -> None:
    with pytest.raises(ContextOverflow, match=r"4096 tokens, but the prompt has at least 3\d{5}") as error:
        TOKENIZER.encode("x" * (4 << 20))
    assert error.value.param == "prompt"
    with pytest.raises(ContextOverflow):
        TOKENIZER.encode_chat("x" * (4 << 20))


def test_an_id_that_no_token_has_says_nothing() -> None:
    assert TOKENIZER.token(100_000).bytes == b""
