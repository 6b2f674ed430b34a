"""A Hugging Face `config.json` as a ModelSpec."""

from __future__ import annotations

from typing import Any

from baton.engine.errors import UnsupportedModel
from baton.engine.models.spec import ModelSpec, Rope
from baton.engine.weights.fields import MAX_POSITIONS, Fields

MAX_LAYERS = 10_000

FAMILIES: dict[str, str] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}

# What transformers assumes where config.json is silent, as far as it differs between families.
_SILENT: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28},
    "qwen3": {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28, "head_dim": 128},
}


def read_spec(where: str, config: dict[str, Any]) -> ModelSpec:
    """Raises ModelError naming what is missing, wrong or not served."""
    family = _family(where, config)
    fields = Fields(where, {**_SILENT[family], **config})
    _refuse_extras(fields)
    hidden, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    num_layers = fields.integer("num_hidden_layers", high=MAX_LAYERS)
    biased = family != "mistral" and fields.flag("attention_bias", False)
    return ModelSpec(
        architecture=family,
        vocab_size=fields.integer("vocab_size"),
        hidden=hidden,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_dim=fields.integer("head_dim", hidden // num_heads),
        ffn=fields.integer("intermediate_size"),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=_rope(fields),
        windows=_windows(fields, family, num_layers),
        tied=fields.flag("tie_word_embeddings", False),
        max_model_len=fields.integer("max_position_embeddings", high=MAX_POSITIONS),
        qkv_bias=family == "qwen2" or biased,
        out_bias=family != "qwen2" and biased,
        mlp_bias=family == "llama" and fields.flag("mlp_bias", False),
        qk_norm=family == "qwen3",
    )


def _family(where: str, config: dict[str, Any]) -> str:
    named = config.get("architectures")
    architecture = named[0] if isinstance(named, list) and named else named
    family = FAMILIES.get(architecture) if isinstance(architecture, str) else None
    if family is None:
        raise UnsupportedModel(f"{where}: architecture {architecture!r} is not served; served are {', '.join(FAMILIES)}")
    return family


def _refuse_extras(fields: Fields) -> None:
    if fields.has("quantization_config"):
        raise UnsupportedModel(f"{fields.where}: quantization_config is not served; GGUF files may be quantised")
    if (activation := fields.text("hidden_act", "silu")) != "silu":
        raise UnsupportedModel(f"{fields.where}: hidden_act {activation!r} is not served; only 'silu' is")


def _rope(fields: Fields) -> Rope:
    """`rope_parameters` is transformers 5's name, `rope_scaling` the older; the type goes by `rope_type` or `type`."""
    theta, factor = fields.number("rope_theta", 10000.0), 1.0
    for key in ("rope_scaling", "rope_parameters"):
        if not fields.has(key):
            continue
        given = fields.values[key]
        if not isinstance(given, dict) or any(isinstance(value, dict) for value in given.values()):
            raise UnsupportedModel(f"{fields.where}: {key} {given!r} is not served: one object for all layers is needed")
        inner = Fields(f"{fields.where}: {key}", given)
        kind = inner.text("rope_type", inner.text("type", "default"))
        if kind not in ("default", "linear"):
            raise UnsupportedModel(f"{fields.where}: rope type {kind!r} is not served; served are default, linear")
        factor = inner.number("factor") if kind == "linear" else factor
        theta = inner.number("rope_theta", theta)
        _refuse_partial(inner)
    _refuse_partial(fields)
    return Rope(theta, factor)


def _refuse_partial(fields: Fields) -> None:
    if (part := fields.number("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedModel(f"{fields.where}: partial_rotary_factor {part} is not served")


def _windows(fields: Fields, family: str, num_layers: int) -> tuple[int | None, ...]:
    off = family == "llama" or (family != "mistral" and not fields.flag("use_sliding_window", False))
    if off or not fields.has("sliding_window"):
        return (None,) * num_layers
    window = fields.integer("sliding_window")
    if family == "mistral":
        return (window,) * num_layers
    kinds = fields.values.get("layer_types")
    if kinds is None:
        first = fields.integer("max_window_layers", low=0)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    if not isinstance(kinds, list) or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise UnsupportedModel(f"{fields.where}: layer_types {kinds!r} is not served")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
