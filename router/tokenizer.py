"""A model's tokenizer, from the tokenizer.json of its card: text to ids once, ids to exact bytes."""

from __future__ import annotations

import re
from functools import cached_property

import orjson
from tokenizers import Tokenizer as HfTokenizer

from baton.wire.errors import ContextOverflow, InvalidRequest
from baton.wire.types import ModelCard
from router.request import Alternative, TokenText

NONCHARACTERS = tuple(map(chr, range(0xFDD0, 0xFDF0)))
"""Code points that Unicode keeps free for private marks; no text that means anything has them."""

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


class Tokenizer:
    """Encodes plain text and rendered chats; says what bytes an id stands for.

    Decoding is by bytes and loses nothing: the bytes of a run of ids are the run of their bytes. Raises ValueError for a
    tokenizer.json that cannot be read, or whose decoder is neither byte-level nor byte-fallback.
    """

    def __init__(self, card: ModelCard):
        self._json = card.tokenizer_json
        self._hf = _load(card.tokenizer_json)
        self._bos_id = self._hf.token_to_id(card.bos_token) if card.add_bos and card.bos_token else None
        self.special_ids = frozenset(card.special_ids)
        self._added = {i: str(token.content) for i, token in self._hf.get_added_tokens_decoder().items()}
        self._byte_level = _is_byte_level(card.tokenizer_json)
        self._max_model_len = card.max_model_len
        self._longest = max(map(len, self._hf.get_vocab(with_added_tokens=True)))
        self._texts: dict[int, TokenText] = {}
        names = sorted(filter(None, map(self._hf.id_to_token, card.special_ids)), key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, names)) or r"(?!)")

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, with one BOS in front if the model wants one. A control token's name stands for the token."""
        ids = self._ids(text, "prompt")
        if self._bos_id is not None and ids[:1] != [self._bos_id]:
            ids.insert(0, self._bos_id)
        return ids

    def encode_chat(self, rendered: str, mark: str | None = None) -> list[int]:
        """Ids of a rendered chat, which wrote its own BOS. What stands between two `mark`s is text, whatever it names."""
        if mark is None:
            return self._ids(rendered, "messages")
        ids: list[int] = []
        for i, part in enumerate(rendered.split(mark)):
            ids += (self._literal if i % 2 else self._hf).encode(part, add_special_tokens=False).ids
        return ids

    def mark_for(self, texts: list[str]) -> str | None:
        """A character to fence control tokens' names in `texts` with, or None if they have none."""
        if not any(self._control.search(text) for text in texts):
            return None
        free = (c for c in NONCHARACTERS if not any(c in text for text in texts))
        mark = next(free, None)
        if mark is None:
            raise InvalidRequest("The messages use every Unicode noncharacter; remove U+FDD0 to U+FDEF.", param="messages")
        return mark

    def fence(self, text: str, mark: str) -> str:
        """`text` with every control token's name between two `mark`s."""
        return self._control.sub(lambda match: f"{mark}{match[0]}{mark}", text)

    def token(self, token_id: int) -> TokenText:
        """How `token_id` looks to a client."""
        known = self._texts.get(token_id)
        if known is None:
            data = self._bytes(token_id)
            known = self._texts[token_id] = TokenText(token_id, data.decode("utf-8", "backslashreplace"), data)
        return known

    def alternatives(self, top: tuple[tuple[int, float], ...]) -> tuple[Alternative, ...]:
        """A position's likeliest tokens as a client sees them."""
        named = ((self.token(token_id), logprob) for token_id, logprob in top)
        return tuple(Alternative(token.id, token.text, token.bytes, logprob) for token, logprob in named)

    def _ids(self, text: str, param: str) -> list[int]:
        self._check_len(text, param)
        return list(self._hf.encode(text, add_special_tokens=False).ids)

    def _check_len(self, text: str, param: str) -> None:
        """Refuses text so long that its tokens need no counting: encoding megabytes takes seconds. A normaliser may shorten
        text, so this holds for tokenizers without one."""
        if not self._byte_level or self._hf.normalizer is not None:
            return
        least = len(text) // self._longest
        if least >= self._max_model_len:
            known = f"This model's maximum context length is {self._max_model_len} tokens"
            raise ContextOverflow(f"{known}, but the prompt has at least {least}; shorten it.", param=param)

    @cached_property
    def _literal(self) -> HfTokenizer:
        """The same tokenizer, blind to control tokens."""
        literal = _load(self._json)
        literal.encode_special_tokens = True
        return literal

    def _bytes(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode()
        name = self._hf.id_to_token(token_id) or ""
        if self._byte_level:
            return bytes(map(_BYTE_OF.__getitem__, name)) if all(c in _BYTE_OF for c in name) else name.encode()
        byte = BYTE_TOKEN.fullmatch(name)
        return bytes.fromhex(byte[1]) if byte else name.replace(SPACE, " ").encode()


def _load(tokenizer_json: str) -> HfTokenizer:
    try:
        return HfTokenizer.from_str(tokenizer_json)
    except Exception as error:  # the library raises nothing more specific
        raise ValueError(f"tokenizer.json: {error}") from error


def _is_byte_level(tokenizer_json: str) -> bool:
    """Whether token names spell bytes as byte-level BPE does; False: as SentencePiece with byte fallback does."""
    kinds = set(_kinds(orjson.loads(tokenizer_json).get("decoder")))
    if "ByteLevel" in kinds:
        return True
    if kinds <= {"Sequence", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"} and kinds:
        return False
    raise ValueError(f"tokenizer.json: decoder {sorted(kinds)} is not supported, only ByteLevel, ByteFallback and Metaspace")


def _kinds(decoder: object) -> list[str]:
    if not isinstance(decoder, dict):
        return []
    inner = decoder.get("decoders", [])
    return [str(decoder.get("type")), *(kind for part in inner for kind in _kinds(part))]


def _byte_symbols() -> dict[str, int]:
    """Byte-level BPE's printable stand-in for each byte: itself where printable, else the next free code point from 256."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


_BYTE_OF = _byte_symbols()
