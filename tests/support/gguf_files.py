"""A tiny Hugging Face checkpoint rewritten as GGUF in llama.cpp's layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from tests.support.checkpoints import BOS_ID, CHAT_TEMPLATE, EOS_IDS, SPECIAL, byte_symbols

_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def to_gguf(checkpoint: Path, path: Path, *, bos: bool | None = True, kind: str = "F32", **metadata: Any) -> Path:
    """`bos`: add_bos_token, or None for no BOS key at all. `kind`: the matrices' format. `metadata` comes on top."""
    config = json.loads((checkpoint / "config.json").read_text())
    family = "qwen2" if config["model_type"] == "qwen2" else "qwen3" if config["model_type"] == "qwen3" else "llama"
    writer = gguf.GGUFWriter(path, family)
    _write_sizes(writer, config)
    _write_tokenizer(writer, bos)
    for key, value in metadata.items():
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        _write_tensor(writer, name, _permuted(name, tensor, config) if family == "llama" else tensor, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_sizes(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def _write_tokenizer(writer: gguf.GGUFWriter, bos: bool | None) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*byte_symbols(), *SPECIAL])
    writer.add_token_types([gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL] * len(SPECIAL))
    if bos is not None:
        writer.add_bos_token_id(BOS_ID)
        writer.add_add_bos_token(bos)
    writer.add_eos_token_id(EOS_IDS[0])
    writer.add_eot_token_id(EOS_IDS[1])
    writer.add_chat_template(CHAT_TEMPLATE)


def _permuted(name: str, tensor: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}.get(name.split(".")[-2])
    if heads is None:
        return tensor
    rows = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2).reshape(tensor.shape))


def _write_tensor(writer: gguf.GGUFWriter, name: str, tensor: np.ndarray, kind: str) -> None:
    stem, suffix = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        stem = f"blk.{layer}.{_PARTS[part]}"
    stem = _WHOLE.get(stem, stem)
    stored = gguf.GGMLQuantizationType[kind if tensor.ndim == 2 else "F32"]
    writer.add_tensor(f"{stem}.{suffix}", gguf.quantize(tensor, stored), raw_dtype=stored)
