"""The structs of csrc/abi.h, field by field, and typed calls into a library."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_float, c_int, c_int32, c_int64, c_void_p

import torch


class Linear(Structure):
    _fields_ = [
        ("codes", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
        ("n", c_int32),
        ("k", c_int32),
        ("bits", c_int32),
        ("has_shift", c_int32),
    ]


class Layer(Structure):
    _fields_ = [
        ("attn_norm", c_void_p),
        ("ffn_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("qkv", Linear),
        ("out", Linear),
        ("gate_up", Linear),
        ("down", Linear),
        ("window", c_int32),
    ]


class Model(Structure):
    _fields_ = [
        ("num_layers", c_int32),
        ("hidden", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("ffn", c_int32),
        ("eps", c_float),
        ("attn_scale", c_float),
        ("layers", POINTER(Layer)),
        ("final_norm", c_void_p),
        ("embedding", Linear),
        ("head", Linear),
        ("cos", c_void_p),
        ("sin", c_void_p),
    ]


class Pool(Structure):
    _fields_ = [("data", c_void_p), ("is_bf16", c_int32), ("round_kv", c_int32), ("block_size", c_int32)]


class Batch(Structure):
    _fields_ = [
        ("num_tokens", c_int32),
        ("num_seqs", c_int32),
        ("max_blocks", c_int32),
        ("num_logits", c_int32),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("logit_rows", c_void_p),
        ("block_tables", c_void_p),
        ("query_start", c_void_p),
        ("seq_lens", c_void_p),
    ]


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Gives every exported function its argument and result types."""
    signatures: dict[str, tuple[object, list[object]]] = {
        "baton_team_new": (c_void_p, [c_int]),
        "baton_team_free": (None, [c_void_p]),
        "baton_memory_bytes": (c_int64, [POINTER(Model), c_int64, c_int64, c_int]),
        "baton_forward": (None, [c_void_p, POINTER(Model), POINTER(Batch), POINTER(Pool), c_void_p, c_void_p]),
        "baton_linear": (None, [c_void_p, POINTER(Linear), c_void_p, c_int64, c_void_p, c_void_p]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def pointer(tensor: torch.Tensor | None) -> int | None:
    """Address of a contiguous tensor's data. The caller keeps the tensor alive."""
    if tensor is None:
        return None
    if not tensor.is_contiguous():
        raise ValueError("a kernel was given a tensor that is not contiguous")
    return tensor.data_ptr()


__all__ = ["Batch", "Layer", "Linear", "Model", "Pool", "c_char_p", "declare", "pointer"]
