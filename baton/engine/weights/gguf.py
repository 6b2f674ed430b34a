"""A GGUF file as a checkpoint: its metadata as a ModelSpec, its tensors under their Hugging Face names."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cached_property
from pathlib import Path

import numpy as np
from blake3 import blake3

from baton.engine.errors import UnsupportedModel
from baton.engine.kernels.interface import Weight
from baton.engine.models.spec import ModelSpec, Rope
from baton.engine.weights.checkpoint import TextSide
from baton.engine.weights.fields import MAX_POSITIONS, Fields
from baton.engine.weights.gguf_file import GgufFile, Stored
from baton.engine.weights.gguf_numbers import SERVED, read_weight, take_rows
from baton.engine.weights.gguf_text import read_text
from baton.engine.weights.hf_config import MAX_LAYERS

FAMILIES = ("llama", "qwen2", "qwen3")

_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAME = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>\w+)\.(?P<kind>weight|bias)")


class GgufCheckpoint:
    """Opens and checks the file; tensors are read when they are asked for."""

    def __init__(self, path: Path):
        self.where = str(path)
        self._file = GgufFile(path)
        self._tensors = {_hugging_face_name(name): tensor for name, tensor in self._file.tensors.items()}
        for name, tensor in self._file.tensors.items():
            if tensor.kind not in SERVED:
                served = ", ".join(kind.name for kind in SERVED)
                raise UnsupportedModel(f"{path}: tensor {name} is of type {tensor.kind.name}; served are {served}")
        self._fields = Fields(str(path), self._file.metadata)
        self.spec = _read_spec(self._fields, self._tensors)

    @cached_property
    def text(self) -> TextSide:
        return read_text(self._fields)

    @property
    def quantisation(self) -> str:
        return "+".join(sorted({tensor.kind.name for tensor in self._tensors.values()}))

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def num_bytes(self, name: str) -> int:
        return self._tensors[name].num_bytes

    def read(self, name: str) -> Weight:
        tensor = self._tensors[name]
        weight = read_weight(tensor.kind, tensor.shape, self._file.data(tensor))
        if self.spec.architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            return take_rows(weight, _half_split_rows(tensor.shape[0], self.spec.head_dim))
        return weight

    def digest(self) -> str:
        return blake3(max_threads=blake3.AUTO).update_mmap(self._file.path).hexdigest()


def _half_split_rows(num_rows: int, head_dim: int) -> np.ndarray:
    """Llama files store each head's query and key rows as pairs that turn together, (0, D/2), (1, D/2 + 1), ...: undo that."""
    return np.arange(num_rows).reshape(-1, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)


def _hugging_face_name(name: str) -> str:
    """A name that is not known stays as it is, and so is refused by it if nothing asks for it."""
    match = _NAME.fullmatch(name)
    parts = _WHOLE if match and match["layer"] is None else _IN_LAYER
    if match is None or match["part"] not in parts:
        return name
    prefix = "" if match["layer"] is None else f"model.layers.{match['layer']}."
    return f"{prefix}{parts[match['part']]}.{match['kind']}"


def _read_spec(fields: Fields, tensors: dict[str, Stored]) -> ModelSpec:
    family = fields.text("general.architecture")
    if family not in FAMILIES:
        raise UnsupportedModel(f"{fields.where}: architecture {family!r} is not served; served are {', '.join(FAMILIES)}")
    hidden, num_heads = fields.integer(f"{family}.embedding_length"), fields.integer(f"{family}.attention.head_count")
    head_dim = fields.integer(f"{family}.attention.key_length", hidden // num_heads)
    num_layers = fields.integer(f"{family}.block_count", high=MAX_LAYERS)
    _refuse_extras(fields, family, head_dim)
    window = f"{family}.attention.sliding_window"
    layer = "model.layers.0"
    embedding = tensors.get("model.embed_tokens.weight")
    return ModelSpec(
        architecture=family,
        vocab_size=embedding.shape[0] if embedding else len(fields.values.get("tokenizer.ggml.tokens") or ()),
        hidden=hidden,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.integer(f"{family}.attention.head_count_kv", num_heads),
        head_dim=head_dim,
        ffn=fields.integer(f"{family}.feed_forward_length"),
        norm_eps=_decimal(fields.number(f"{family}.attention.layer_norm_rms_epsilon")),
        rope=_rope(fields, family, tensors),
        windows=(fields.integer(window) if fields.has(window) else None,) * num_layers,
        tied="lm_head.weight" not in tensors,
        max_model_len=fields.integer(f"{family}.context_length", high=MAX_POSITIONS),
        qkv_bias=f"{layer}.self_attn.q_proj.bias" in tensors,
        out_bias=f"{layer}.self_attn.o_proj.bias" in tensors,
        mlp_bias=f"{layer}.mlp.down_proj.bias" in tensors,
        qk_norm=f"{layer}.self_attn.q_norm.weight" in tensors,
    )


def _refuse_extras(fields: Fields, family: str, head_dim: int) -> None:
    for key, served in (("attention.value_length", head_dim), ("rope.dimension_count", head_dim), ("expert_count", 0)):
        name = f"{family}.{key}"
        if (found := fields.integer(name, served, low=0)) != served:
            raise UnsupportedModel(f"{fields.where}: {name} {found} is not served, only {served}")


def _rope(fields: Fields, family: str, tensors: dict[str, Stored]) -> Rope:
    theta = _decimal(fields.number(f"{family}.rope.freq_base", 10000.0))
    if "rope_freqs.weight" in tensors:
        raise UnsupportedModel(f"{fields.where}: rope type 'llama3' (tensor rope_freqs.weight) is not served")
    kind = fields.text(f"{family}.rope.scaling.type", "none")
    if kind == "none":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, _decimal(fields.number(f"{family}.rope.scaling.factor")))
    raise UnsupportedModel(f"{fields.where}: rope type {kind!r} is not served; served are none, linear")


def _decimal(stored: float) -> float:
    """The decimal that a float32 was written from: 1e-06 where the file has 9.99999997e-07."""
    return float(str(np.float32(stored)))
