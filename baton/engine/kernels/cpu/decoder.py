"""A decoder whose whole forward pass is one call into C++. It takes the place of models.Decoder on a CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from baton.engine.errors import KernelsUnavailable
from baton.engine.kernels.cpu import abi, build
from baton.engine.kernels.cpu.pack import GROUP, LANES, Packed, pack
from baton.engine.kernels.interface import Grouped, StepBatch, Weight
from baton.engine.models.rotary import frequencies
from baton.engine.models.spec import ModelSpec
from baton.engine.models.tensors import Dense, TensorSource, stack, to_dense

MAX_HEAD_DIM = 256
MAX_GROUP = 16
FIRST_POSITIONS = 4096

RECIPES = {"float32": "float32-ordered", "int8": "a8-g32-kv-bf16"}
"""Arithmetic by dtype: float32 throughout, or the file's own codes times int8 activations (groups of 32) and KV in bfloat16."""


class NativeDecoder:
    """Runs ragged steps over a paged pool, bit for bit the same whatever shares the step. Holds no state of a request.

    `dtype` "int8" keeps the file's 4- and 8-bit groups; "float32" turns every weight into float32. Threads: torch's
    number at the first step.
    """

    def __init__(self, spec: ModelSpec, tensors: TensorSource, dtype: str = "float32", isa: str | None = None):
        _check(spec)
        self.spec = spec
        self.isa = isa or build.supported()[0]
        self.recipe = RECIPES[dtype]
        self._library = abi.declare(build.load(self.isa))
        self._quantised = dtype == "int8"
        self._held: list[Packed | torch.Tensor] = []
        self._layers = (abi.Layer * spec.num_layers)(*(self._layer(index, tensors) for index in range(spec.num_layers)))
        self._model = self._build(tensors)
        self._rope = (torch.empty(0), torch.empty(0))
        self._team: int | None = None
        self._threads = 1
        self._memory = torch.empty(0, dtype=torch.uint8)

    def __del__(self) -> None:
        if getattr(self, "_team", None):
            self._library.baton_team_free(self._team)

    @property
    def weight_bytes(self) -> int:
        """Bytes of packed weights that one decode step reads."""
        return sum(held.num_bytes for held in self._held if isinstance(held, Packed))

    def forward(self, batch: StepBatch, pool: torch.Tensor) -> torch.Tensor:
        """Writes K and V of every row to its slot in `pool`; returns logits float32 `[len(batch.logit_rows), vocab_size]`."""
        num_tokens, num_logits = len(batch.token_ids), len(batch.logit_rows)
        self._reserve(num_tokens, num_logits)
        self._turn_up_to(int(batch.seq_lens.max()))
        logits = torch.empty(num_logits, self.spec.vocab_size)
        tensors = (
            batch.token_ids,
            batch.positions,
            batch.slots,
            batch.logit_rows,
            batch.block_tables,
            batch.query_start,
            batch.seq_lens,
        )
        shape = (num_tokens, len(batch.seq_lens), batch.block_tables.shape[1], num_logits)
        self._library.baton_forward(
            self._team,
            ctypes.byref(self._model),
            ctypes.byref(abi.Batch(*shape, *(abi.pointer(tensor) for tensor in tensors))),
            ctypes.byref(abi.Pool(abi.pointer(pool), pool.dtype is torch.bfloat16, self._quantised, pool.shape[3])),
            abi.pointer(self._memory),
            abi.pointer(logits),
        )
        return logits

    def _reserve(self, num_tokens: int, num_logits: int) -> None:
        if self._team is None:
            self._threads = torch.get_num_threads()
            self._team = self._library.baton_team_new(self._threads)
        needed = self._library.baton_memory_bytes(ctypes.byref(self._model), num_tokens, num_logits, self._threads)
        if needed > len(self._memory):
            self._memory = torch.empty(needed, dtype=torch.uint8)

    def _turn_up_to(self, num_positions: int) -> None:
        """Makes the rotary table long enough: it grows with the longest sequence seen, for a model may allow millions."""
        known = len(self._rope[0])
        if num_positions <= known:
            return
        length = min(max(num_positions, 2 * known, FIRST_POSITIONS), self.spec.max_model_len)
        angles = torch.arange(length)[:, None].float() * frequencies(self.spec)
        self._rope = angles.cos(), angles.sin()
        self._model.cos, self._model.sin = map(abi.pointer, self._rope)

    def _build(self, tensors: TensorSource) -> abi.Model:
        spec = self.spec
        embedding = self._pack(tensors.matrix("model.embed_tokens.weight", spec.vocab_size, spec.hidden))
        head = embedding if spec.tied else self._pack(tensors.matrix("lm_head.weight", spec.vocab_size, spec.hidden))
        sizes = (spec.num_layers, spec.hidden, spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.ffn)
        norm = self._keep(tensors.vector("model.norm.weight", spec.hidden))
        return abi.Model(*sizes, spec.norm_eps, spec.head_dim**-0.5, self._layers, norm, embedding, head)

    def _layer(self, index: int, tensors: TensorSource) -> abi.Layer:
        spec, prefix = self.spec, f"model.layers.{index}"

        def norm(name: str, size: int) -> int | None:
            return self._keep(tensors.vector(f"{prefix}.{name}.weight", size))

        def linear(names: dict[str, int], columns: int, biased: bool) -> abi.Linear:
            weights = [tensors.matrix(f"{prefix}.{name}.weight", rows, columns) for name, rows in names.items()]
            biases = [tensors.vector(f"{prefix}.{name}.bias", rows) for name, rows in names.items()] if biased else []
            return self._pack(_stack_all(weights, self._quantised), torch.cat(biases) if biases else None)

        qkv = {"self_attn.q_proj": spec.query_size, "self_attn.k_proj": spec.kv_size, "self_attn.v_proj": spec.kv_size}
        return abi.Layer(
            norm("input_layernorm", spec.hidden),
            norm("post_attention_layernorm", spec.hidden),
            norm("self_attn.q_norm", spec.head_dim) if spec.qk_norm else None,
            norm("self_attn.k_norm", spec.head_dim) if spec.qk_norm else None,
            linear(qkv, spec.hidden, spec.qkv_bias),
            linear({"self_attn.o_proj": spec.hidden}, spec.query_size, spec.out_bias),
            linear({"mlp.gate_proj": spec.ffn, "mlp.up_proj": spec.ffn}, spec.hidden, spec.mlp_bias),
            linear({"mlp.down_proj": spec.hidden}, spec.ffn, spec.mlp_bias),
            spec.windows[index] or 0,
        )

    def _pack(self, weight: Weight, bias: torch.Tensor | None = None) -> abi.Linear:
        if isinstance(weight, Grouped) and not self._quantised:
            weight = Dense(to_dense(weight))
        packed = pack(weight, bias)
        self._held.append(packed)
        return packed.struct

    def _keep(self, tensor: torch.Tensor) -> int | None:
        tensor = tensor.float().contiguous()
        self._held.append(tensor)
        return abi.pointer(tensor)


def _stack_all(weights: Sequence[Weight], quantised: bool) -> Weight:
    if quantised:
        return stack(weights)
    return stack([Dense(to_dense(weight)) if isinstance(weight, Grouped) else weight for weight in weights])


def _check(spec: ModelSpec) -> None:
    """Raises KernelsUnavailable for a shape that these kernels do not serve."""
    sizes = {"hidden": spec.hidden, "ffn": spec.ffn, "query size": spec.query_size}
    uneven = [f"{name} {size}" for name, size in sizes.items() if size % GROUP]
    if spec.head_dim % LANES or spec.head_dim > MAX_HEAD_DIM:
        uneven.append(f"head_dim {spec.head_dim}")
    if spec.num_heads // spec.num_kv_heads > MAX_GROUP:
        uneven.append(f"{spec.num_heads // spec.num_kv_heads} query heads to a KV head")
    if uneven:
        raise KernelsUnavailable(f"the CPU kernels do not serve {', '.join(uneven)}")
