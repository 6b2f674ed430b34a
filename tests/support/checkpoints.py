"""Two tiny checkpoints with literal answers, and their variants, written as Hugging Face directories.

Token id == byte value for 0..255; 256..262 are control tokens, of which 257 and 258 end a generation. The tokenizer adds
`<s>`, and so does the chat template. `transformers` loads every directory, and is not needed to write one.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

SPECIAL = ("<s>", "</s>", "<|eot|>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>")
VOCAB_SIZE = 256 + len(SPECIAL)
BOS_ID, EOS_IDS = 256, (257, 258)
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SCRIPTS = ("Abcdefghij", "#🌶辣!")
"""What `scripted` says after the first letter of each, before it ends."""

_ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", {}),
    "mistral": ("MistralForCausalLM", {"sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", {"use_sliding_window": False}),
    "qwen3": ("Qwen3ForCausalLM", {"use_sliding_window": False, "head_dim": 16}),
}


def scripted(path: Path, **overrides: Any) -> Path:
    """The next token depends on the last one only: logit 20 against 0. Shows faults of logic, text and counting, not of KV."""
    hidden = 512
    config = _config("llama", hidden_size=hidden, intermediate_size=64, num_attention_heads=8, **overrides)
    tensors = {name: torch.ones(shape) if len(shape) == 1 else torch.zeros(shape) for name, shape in _shapes(config)}
    torch.manual_seed(0)
    directions = torch.linalg.qr(torch.randn(hidden, hidden))[0][:VOCAB_SIZE]
    head = torch.zeros(VOCAB_SIZE, hidden)
    for token, following in _successors().items():
        head[following] += directions[token]
    tensors["model.embed_tokens.weight"] = directions.contiguous()
    tensors["lm_head.weight"] = head * 20 / hidden**0.5
    return _save(path, config, tensors)


def random_llama(path: Path, **overrides: Any) -> Path:
    """Random weights, real attention; greedy output is printable ASCII and never ends. Shows faults of KV and position."""
    return random_model(path, "llama", **overrides)


def random_model(path: Path, kind: str, **overrides: Any) -> Path:
    """`random_llama` as another architecture: "llama", "mistral", "qwen2" (with biases) or "qwen3"."""
    config = _config(kind, hidden_size=64, intermediate_size=128, num_attention_heads=4, **overrides)
    generator = torch.Generator().manual_seed(2)
    tensors = {}
    for name, shape in _shapes(config):
        if len(shape) == 2:
            tensors[name] = torch.randn(shape, generator=generator) * 0.35
        elif name.endswith("bias"):
            tensors[name] = torch.randn(shape, generator=generator)
        else:
            tensors[name] = torch.ones(shape)
    if "lm_head.weight" in tensors:
        printable = torch.zeros(VOCAB_SIZE, 1)
        printable[32:127] = 1
        tensors["lm_head.weight"] *= printable
    return _save(path, config, tensors)


def encode(text: str, add_bos: bool = True) -> list[int]:
    """The ids of plain text: its bytes, after `<s>`."""
    return [BOS_ID] * add_bos + list(text.encode())


def decode(ids: list[int]) -> str:
    """The text of byte tokens; control tokens say nothing."""
    return bytes(i for i in ids if i < 256).decode(errors="replace")


def _config(kind: str, **overrides: Any) -> dict[str, Any]:
    architecture, own = _ARCHITECTURES[kind]
    return {
        "architectures": [architecture],
        "model_type": kind,
        "vocab_size": VOCAB_SIZE,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": BOS_ID,
        "eos_token_id": list(EOS_IDS),
        "pad_token_id": EOS_IDS[0],
        **own,
        **overrides,
    }


def _shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor's name and shape, in the order in which the architecture's class declares them (random draws follow it)."""
    kind, hidden, ffn = config["model_type"], config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    yield "model.embed_tokens.weight", (VOCAB_SIZE, hidden)
    for layer in (f"model.layers.{i}" for i in range(config["num_hidden_layers"])):
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            yield f"{layer}.self_attn.{name}_proj.weight", (rows, hidden)
            if kind == "qwen2" or config.get("attention_bias"):
                yield f"{layer}.self_attn.{name}_proj.bias", (rows,)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, queries)
        if config.get("attention_bias"):
            yield f"{layer}.self_attn.o_proj.bias", (hidden,)
        if kind == "qwen3":
            yield f"{layer}.self_attn.q_norm.weight", (head_dim,)
            yield f"{layer}.self_attn.k_norm.weight", (head_dim,)
        for name, shape in (("gate", (ffn, hidden)), ("up", (ffn, hidden)), ("down", (hidden, ffn))):
            yield f"{layer}.mlp.{name}_proj.weight", shape
            if config.get("mlp_bias"):
                yield f"{layer}.mlp.{name}_proj.bias", shape[:1]
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (VOCAB_SIZE, hidden)


def _successors() -> dict[int, int]:
    end, second_end = EOS_IDS
    following = dict.fromkeys(range(VOCAB_SIZE), ord("."))
    chains = [[*script.encode(), end] for script in (*SCRIPTS, "\nOK.")]
    chains += [[*b"01234567890"], [ord("$"), end], [ord("%"), second_end]]
    for chain in chains:
        following.update(itertools.pairwise(chain))
    return following


def _save(path: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    generation = {"bos_token_id": BOS_ID, "eos_token_id": list(EOS_IDS), "pad_token_id": EOS_IDS[0]}
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    files = {
        "config.json": config,
        "generation_config.json": generation,
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": tokenizer_config,
    }
    for name, content in files.items():
        (path / name).write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
    return path


def byte_symbols() -> list[str]:
    """Byte-level BPE's printable stand-in for each byte value."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(hidden)) for byte in range(256)]


def _tokenizer() -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB"))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 256 + i, "content": content, **flags} for i, content in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, first],
            "pair": [bos, first, second],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS_ID], "tokens": ["<s>"]}},
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {symbol: byte for byte, symbol in enumerate(byte_symbols())},
            "merges": [],
        },
    }
