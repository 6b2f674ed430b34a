"""One decoder for every architecture that `ModelSpec` can describe: it calls kernels and owns the packed weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from baton.engine.kernels.interface import Kernels, StepBatch
from baton.engine.models.rotary import frequencies
from baton.engine.models.spec import ModelSpec
from baton.engine.models.tensors import TensorSource, stack


@dataclass(frozen=True, slots=True)
class _Linear:
    weight: Any
    bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: torch.Tensor
    qkv: _Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: _Linear
    ffn_norm: torch.Tensor
    gate_up: _Linear
    down: _Linear
    window: int | None


class Decoder:
    """Runs ragged steps over a paged pool. Holds weights and no state of any request."""

    def __init__(self, spec: ModelSpec, tensors: TensorSource, kernels: Kernels):
        self.spec = spec
        self.kernels = kernels
        self._embedding = kernels.pack(tensors.matrix("model.embed_tokens.weight", spec.vocab_size, spec.hidden))
        self._layers = [_load_layer(spec, index, tensors, kernels) for index in range(spec.num_layers)]
        self._norm = tensors.vector("model.norm.weight", spec.hidden)
        self._head = self._embedding
        if not spec.tied:
            self._head = kernels.pack(tensors.matrix("lm_head.weight", spec.vocab_size, spec.hidden))
        self._frequencies = frequencies(spec)

    @property
    def recipe(self) -> str:
        """The arithmetic, as the identity names it."""
        return self.kernels.recipe

    @torch.no_grad()
    def forward(self, batch: StepBatch, pool: torch.Tensor) -> torch.Tensor:
        """Writes K and V of every row to its slot in `pool`; returns logits float32 `[len(batch.logit_rows), vocab_size]`."""
        angles = batch.positions[:, None].float() * self._frequencies
        cos, sin = angles.cos(), angles.sin()
        x = self.kernels.embed(batch.token_ids, self._embedding)
        for index, layer in enumerate(self._layers):
            normed = self.kernels.rms_norm(x, layer.attention_norm, self.spec.norm_eps)
            x = x + self._attend(normed, index, layer, cos, sin, batch, pool)
            normed = self.kernels.rms_norm(x, layer.ffn_norm, self.spec.norm_eps)
            x = x + self._feed_forward(normed, layer)
        last = self.kernels.rms_norm(x[batch.logit_rows], self._norm, self.spec.norm_eps)
        return self.kernels.linear(last, self._head)

    def _attend(
        self,
        x: torch.Tensor,
        index: int,
        layer: _Layer,
        cos: torch.Tensor,
        sin: torch.Tensor,
        batch: StepBatch,
        pool: torch.Tensor,
    ) -> torch.Tensor:
        spec, kernels = self.spec, self.kernels
        heads = kernels.linear(x, layer.qkv.weight, layer.qkv.bias).view(len(x), -1, spec.head_dim)
        q, k, v = torch.split(heads, [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm_heads(q, layer.q_norm), self._norm_heads(k, layer.k_norm)
        q = kernels.rotary_write(q, k, v, cos, sin, batch.slots, pool, index)
        mixed = kernels.attention(q, pool, index, batch, spec.head_dim**-0.5, layer.window)
        return kernels.linear(mixed.reshape(len(x), spec.query_size), layer.out.weight, layer.out.bias)

    def _norm_heads(self, heads: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows = heads.reshape(-1, self.spec.head_dim)
        return self.kernels.rms_norm(rows, weight, self.spec.norm_eps).view(heads.shape)

    def _feed_forward(self, x: torch.Tensor, layer: _Layer) -> torch.Tensor:
        gate_up = self.kernels.linear(x, layer.gate_up.weight, layer.gate_up.bias)
        return self.kernels.linear(self.kernels.silu_gate(gate_up), layer.down.weight, layer.down.bias)


def _load_layer(spec: ModelSpec, index: int, tensors: TensorSource, kernels: Kernels) -> _Layer:
    prefix = f"model.layers.{index}"

    def linear(names: dict[str, int], columns: int, biased: bool) -> _Linear:
        weight = stack([tensors.matrix(f"{prefix}.{name}.weight", rows, columns) for name, rows in names.items()])
        biases = [tensors.vector(f"{prefix}.{name}.bias", rows) for name, rows in names.items()] if biased else []
        return _Linear(kernels.pack(weight), torch.cat(biases) if biases else None)

    def norm(name: str, size: int) -> torch.Tensor:
        return tensors.vector(f"{prefix}.{name}.weight", size)

    qkv = {"self_attn.q_proj": spec.query_size, "self_attn.k_proj": spec.kv_size, "self_attn.v_proj": spec.kv_size}
    gate_up = {"mlp.gate_proj": spec.ffn, "mlp.up_proj": spec.ffn}
    return _Layer(
        attention_norm=norm("input_layernorm", spec.hidden),
        qkv=linear(qkv, spec.hidden, spec.qkv_bias),
        q_norm=norm("self_attn.q_norm", spec.head_dim) if spec.qk_norm else None,
        k_norm=norm("self_attn.k_norm", spec.head_dim) if spec.qk_norm else None,
        out=linear({"self_attn.o_proj": spec.hidden}, spec.query_size, spec.out_bias),
        ffn_norm=norm("post_attention_layernorm", spec.hidden),
        gate_up=linear(gate_up, spec.hidden, spec.mlp_bias),
        down=linear({"mlp.down_proj": spec.hidden}, spec.ffn, spec.mlp_bias),
        window=spec.windows[index],
    )
