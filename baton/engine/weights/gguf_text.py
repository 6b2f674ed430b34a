"""The tokenizer that a GGUF file carries, written out as the text of a Hugging Face `tokenizer.json`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from baton.engine.errors import CorruptModel, UnsupportedModel
from baton.engine.weights.checkpoint import TextSide
from baton.engine.weights.fields import Fields

CONTROL, USER_DEFINED = 3, 4

END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
END_TOKENS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
)
"""Control tokens that end a turn or a text wherever they exist; many files name only one of theirs."""

_LLAMA3 = ("llama-bpe", "llama3", "llama-v3")
_QWEN2 = ("qwen2", "deepseek-r1-qwen")
_DIGITS = ("smollm", "starcoder", "refact")
_GPT2 = ("gpt-2", "default")
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def read_text(fields: Fields) -> TextSide:
    """Raises ModelError for a kind of tokenizer that is not served, and for one that contradicts itself."""
    tokens = _strings(fields, "tokenizer.ggml.tokens")
    types = fields.values.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(types) != len(tokens):
        raise fields.wrong("tokenizer.ggml.token_type", f"one type for each of {len(tokens)} tokens")
    special_ids = tuple(index for index, kind in enumerate(types) if kind == CONTROL)
    bos, add_bos = _bos(fields, tokens)
    eos_ids = _eos_ids(fields, tokens, special_ids)
    return TextSide(
        tokenizer_json=json.dumps(_tokenizer(fields, tokens, types, bos if add_bos else None), ensure_ascii=False),
        chat_template=fields.text("tokenizer.chat_template") if fields.has("tokenizer.chat_template") else None,
        bos_token=None if bos is None else tokens[bos],
        eos_token=tokens[eos_ids[0]] if eos_ids else None,
        eos_ids=eos_ids,
        special_ids=special_ids,
        add_bos=add_bos,
    )


def _bos(fields: Fields, tokens: list[str]) -> tuple[int | None, bool]:
    """The BOS token's id, and whether plain text gets it. Llama 3 files that say nothing mean yes, all others no."""
    if not fields.has("tokenizer.ggml.bos_token_id"):
        return None, False
    bos = fields.integer("tokenizer.ggml.bos_token_id", low=0, high=len(tokens) - 1)
    return bos, fields.flag("tokenizer.ggml.add_bos_token", fields.values.get("tokenizer.ggml.pre") in _LLAMA3)


def _eos_ids(fields: Fields, tokens: list[str], special_ids: Iterable[int]) -> tuple[int, ...]:
    keys = [f"tokenizer.ggml.{key}" for key in END_KEYS]
    named = [fields.integer(key, low=0, high=len(tokens) - 1) for key in keys if fields.has(key)]
    known = [index for index in special_ids if tokens[index] in END_TOKENS]
    return tuple(dict.fromkeys(named + known))


def _tokenizer(fields: Fields, tokens: list[str], types: list[int], bos: int | None) -> dict[str, Any]:
    if (model := fields.text("tokenizer.ggml.model")) != "gpt2":
        raise UnsupportedModel(f"{fields.where}: tokenizer model {model!r} is not served; served is 'gpt2' (byte-level BPE)")
    pre = fields.text("tokenizer.ggml.pre", "default")
    vocab = {token: index for index, token in reversed(list(enumerate(tokens)))}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(tokens, types),
        "normalizer": {"type": "NFC"} if pre in _QWEN2 else None,
        "pre_tokenizer": _pre_tokenizer(fields, pre),
        "post_processor": None if bos is None else _bos_template(tokens[bos], bos),
        "decoder": _byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre in _LLAMA3,
            "vocab": vocab,
            "merges": _merges(fields, vocab),
        },
    }


def _merges(fields: Fields, vocab: dict[str, int]) -> list[list[str]]:
    """Pairs of symbols; a vocabulary of single bytes has none."""
    key = "tokenizer.ggml.merges"
    if not fields.has(key):
        return []
    merges = [merge.split(" ", 1) for merge in _strings(fields, key)]
    for pair in merges:
        if len(pair) != 2 or not (pair[0] in vocab and pair[1] in vocab and pair[0] + pair[1] in vocab):
            raise CorruptModel(f"{fields.where}: {key} has {' '.join(pair)!r}, which joins no two tokens into a third")
    return merges


def _added_tokens(tokens: list[str], types: list[int]) -> list[dict[str, Any]]:
    """Tokens that are matched whole in the text; control tokens are special, and so are never printed."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": index, "content": token, **flags, "special": kind == CONTROL}
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (CONTROL, USER_DEFINED)
    ]


def _pre_tokenizer(fields: Fields, pre: str) -> dict[str, Any]:
    """How text is cut before merging. "default" is what converters write that know no better: GPT-2's cut."""
    if pre in _GPT2:
        return _byte_level(use_regex=True)
    if pre in _DIGITS:
        return _sequence({"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True))
    if pre in _QWEN2:
        return _sequence(_split(_WORDS % r"\p{N}"), _byte_level(use_regex=False))
    if pre in _LLAMA3:
        return _sequence(_split(_WORDS % r"\p{N}{1,3}"), _byte_level(use_regex=False))
    served = ", ".join((*_GPT2, *_DIGITS, *_QWEN2, *_LLAMA3))
    raise UnsupportedModel(f"{fields.where}: pre-tokenizer {pre!r} is not served; served are {served}")


def _sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _bos_template(token: str, index: int) -> dict[str, Any]:
    bos = {"SpecialToken": {"id": token, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": kind}} for kind, name in enumerate("AB"))
    return {
        "type": "TemplateProcessing",
        "single": [bos, first],
        "pair": [bos, first, second],
        "special_tokens": {token: {"id": token, "ids": [index], "tokens": [token]}},
    }


def _strings(fields: Fields, key: str) -> list[str]:
    values = fields.values.get(key)
    if not isinstance(values, list) or not values or not isinstance(values[0], str):
        raise fields.wrong(key, "a list of strings")
    return values
