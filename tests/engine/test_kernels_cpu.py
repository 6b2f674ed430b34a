"""The C++ kernels against plain torch, and against themselves: any batch, chunk, block size, thread count, instruction set."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from baton.engine.errors import KernelsUnavailable
from baton.engine.kernels.cpu import abi, build
from baton.engine.kernels.cpu.decoder import NativeDecoder
from baton.engine.kernels.cpu.pack import pack
from baton.engine.kernels.interface import Dense, Grouped, StepBatch, Weight
from baton.engine.kernels.reference import ReferenceKernels
from baton.engine.models import Decoder, ModelSpec
from baton.engine.models.spec import Rope
from baton.engine.models.tensors import to_dense


@dataclass
class RandomTensors:
    """Seeded weights by name; matrices in 4- or 8-bit groups, or dense (bits 32)."""

    bits: int
    seed: int = 0
    dense: bool = False

    def matrix(self, name: str, rows: int, columns: int) -> Weight:
        rng = np.random.default_rng([self.seed, *name.encode()])
        bits = 8 if "embed" in name and self.bits == 4 else self.bits
        if bits == 32:
            return Dense(torch.from_numpy(rng.standard_normal((rows, columns)).astype(np.float32) * 0.1))
        scale = ((rng.random((rows, columns // 32)) * 0.02 + 0.001) / (1 if bits == 4 else 16)).astype(np.float16)
        shift = (-rng.random(scale.shape) * 0.1).astype(np.float16) if bits == 4 else None
        low, high = (0, 16) if bits == 4 else (-128, 128)
        codes = rng.integers(low, high, (rows, columns)).astype(np.uint8 if bits == 4 else np.int8)
        grouped = Grouped(codes, scale, shift, bits)
        return Dense(to_dense(grouped)) if self.dense else grouped

    def vector(self, name: str, size: int) -> torch.Tensor:
        rng = np.random.default_rng([self.seed, *name.encode()])
        return torch.from_numpy(rng.standard_normal(size).astype(np.float32) * 0.2 + 1)


def spec_of(**changes: object) -> ModelSpec:
    fields: dict[str, object] = {
        "architecture": "llama",
        "vocab_size": 131,
        "hidden": 96,
        "num_layers": 3,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 16,
        "ffn": 160,
        "norm_eps": 1e-5,
        "rope": Rope(10000.0),
        "windows": (None, None, None),
        "tied": True,
        "max_model_len": 512,
    }
    return ModelSpec(**{**fields, **changes})  # type: ignore[arg-type]


def step(sequences: list[tuple[list[int], int, list[int]]], block_size: int) -> StepBatch:
    """A ragged step of (token ids, first position, block table) sequences; every row's logits are wanted."""
    ids = [token for tokens, _, _ in sequences for token in tokens]
    positions = [start + i for tokens, start, _ in sequences for i in range(len(tokens))]
    slots = [
        table[(start + i) // block_size] * block_size + (start + i) % block_size
        for tokens, start, table in sequences
        for i in range(len(tokens))
    ]
    widest = max(len(table) for _, _, table in sequences)
    tables = torch.tensor([table + [0] * (widest - len(table)) for _, _, table in sequences], dtype=torch.int32)
    starts = np.cumsum([0, *(len(tokens) for tokens, _, _ in sequences)])
    lengths = [start + len(tokens) for tokens, start, _ in sequences]
    return StepBatch(
        torch.tensor(ids),
        torch.tensor(positions),
        torch.tensor(slots),
        tables,
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor(lengths, dtype=torch.int32),
        torch.arange(len(ids)),
    )


def pool_of(spec: ModelSpec, blocks: int, block_size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((blocks, spec.num_layers, 2, block_size, spec.num_kv_heads, spec.head_dim), torch.nan, dtype=dtype)


def kv_of(pool: torch.Tensor, table: list[int], length: int) -> torch.Tensor:
    """K and V of one sequence as [layers, 2, length, heads, dim], whatever the block size."""
    return torch.cat([pool[block].float() for block in table], dim=2)[:, :, :length]


def prompt_of(length: int, seed: int = 3) -> list[int]:
    return np.random.default_rng(seed).integers(0, 131, length).tolist()


def run(model: NativeDecoder, prompt: list[int], chunk: int, block_size: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of every position and the sequence's KV, computed `chunk` tokens at a time over a shuffled block table."""
    num_blocks = -(-len(prompt) // block_size)
    table = np.random.default_rng(block_size).permutation(num_blocks + 2)[:num_blocks].tolist()
    pool = pool_of(model.spec, num_blocks + 2, block_size)
    logits = [
        model.forward(step([(prompt[at : at + chunk], at, table)], block_size), pool) for at in range(0, len(prompt), chunk)
    ]
    return torch.cat(logits), kv_of(pool, table, len(prompt))


SHAPES = {
    "grouped queries": {},
    "one head each": {"num_kv_heads": 6},
    "wide heads": {"head_dim": 80, "num_heads": 4, "num_kv_heads": 1, "hidden": 64},
    "biases": {"qkv_bias": True, "out_bias": True, "mlp_bias": True},
    "qk norms": {"qk_norm": True},
    "windows": {"windows": (24, None, 70)},
    "untied": {"tied": False},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("chunk", [1, 50, 200])
def test_float32_is_the_reference_but_for_rounding(shape: str, chunk: int) -> None:
    spec, tensors, prompt = spec_of(**SHAPES[shape]), RandomTensors(32), prompt_of(200)
    ours, kv = run(NativeDecoder(spec, tensors), prompt, chunk)
    reference, table = Decoder(spec, tensors, ReferenceKernels()), list(range(13))
    pool = torch.zeros_like(pool_of(spec, 13, 16))
    expected = reference.forward(step([(prompt, 0, table)], 16), pool)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(kv, kv_of(pool, table, 200), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bits", [4, 8])
def test_integer_products_err_by_the_activations_rounding_only(bits: int) -> None:
    weight = RandomTensors(bits).matrix("product", 70, 96)
    assert isinstance(weight, Grouped)
    x = torch.randn(9, 96, generator=torch.Generator().manual_seed(bits))
    expected = rounded(x) @ to_dense(weight).T
    torch.testing.assert_close(product(weight, x), expected, rtol=1e-4, atol=1e-4)
    exact = x @ to_dense(weight).T
    assert 0 < (expected - exact).norm() / exact.norm() < 0.01


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Activations in 8 bits: each group of 32 in steps of a 127th of its largest."""
    groups = x.view(len(x), -1, 32)
    size = groups.abs().amax(2, keepdim=True) / 127
    return ((groups / size).round() * size).view(x.shape)


def product(weight: Grouped, x: torch.Tensor) -> torch.Tensor:
    library = abi.declare(build.load(build.supported()[0]))
    packed, team = pack(weight), library.baton_team_new(1)
    y, memory = torch.empty(len(x), len(weight.codes)), torch.empty(2 * x.numel() + 256 * x.shape[1], dtype=torch.uint8)
    library.baton_linear(team, ctypes.byref(packed.struct), abi.pointer(x), len(x), abi.pointer(memory), abi.pointer(y))
    library.baton_team_free(team)
    return y


@pytest.fixture(params=[("float32", 32), ("int8", 4), ("int8", 8)], ids=["float32", "4 bits", "8 bits"])
def recipe(request: pytest.FixtureRequest) -> tuple[str, int]:
    return request.param  # type: ignore[no-any-return]


def native(recipe: tuple[str, int], isa: str | None = None, **changes: object) -> NativeDecoder:
    return NativeDecoder(spec_of(**changes), RandomTensors(recipe[1]), recipe[0], isa)


def test_a_position_is_the_same_in_any_chunk_and_block_size(recipe: tuple[str, int]) -> None:
    model, prompt = native(recipe, windows=(None, 40, None)), prompt_of(300)
    expected = run(model, prompt, 300)
    for chunk, block_size in [(1, 16), (7, 8), (64, 128), (299, 64), (128, 32)]:
        logits, kv = run(model, prompt, chunk, block_size)
        assert torch.equal(logits, expected[0]), (chunk, block_size)
        assert torch.equal(kv, expected[1]), (chunk, block_size)


def test_a_row_is_the_same_in_any_batch(recipe: tuple[str, int]) -> None:
    model = native(recipe)
    prompts = [prompt_of(length, seed) for seed, length in enumerate([1, 3, 17, 64, 65, 90, 128, 130] * 8)]
    alone = [run(model, prompt, 200)[0] for prompt in prompts]
    for count in (2, 5, 64):
        pool = pool_of(model.spec, 9 * count, 16)
        sequences = [(prompt, 0, list(range(i * 9, i * 9 + 9))) for i, prompt in enumerate(prompts[:count])]
        assert torch.equal(model.forward(step(sequences, 16), pool), torch.cat(alone[:count]))


def test_decode_rows_in_a_batch_equal_prefill(recipe: tuple[str, int]) -> None:
    model = native(recipe)
    prompts = [prompt_of(40 + 9 * seed, seed) for seed in range(16)]
    expected = [run(model, prompt, 500)[0][-1] for prompt in prompts]
    pool = pool_of(model.spec, 16 * 12, 16)
    tables = [list(range(i * 12, i * 12 + 12)) for i in range(16)]
    model.forward(step([(prompt[:-1], 0, table) for prompt, table in zip(prompts, tables, strict=True)], 16), pool)
    last = [(prompt[-1:], len(prompt) - 1, table) for prompt, table in zip(prompts, tables, strict=True)]
    assert torch.equal(model.forward(step(last, 16), pool), torch.stack(expected))


def test_every_instruction_set_gives_the_same_bits(recipe: tuple[str, int]) -> None:
    prompt = prompt_of(150)
    results = {isa: run(native(recipe, isa), prompt, 33) for isa in build.supported()}
    expected = results.pop("scalar")
    for isa, (logits, kv) in results.items():
        assert torch.equal(logits, expected[0]), isa
        assert torch.equal(kv, expected[1]), isa


def test_threads_change_nothing(recipe: tuple[str, int]) -> None:
    prompt, before = prompt_of(150), torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            model = native(recipe)
            results.append([*run(model, prompt, 150), *run(model, prompt, 1)])
    finally:
        torch.set_num_threads(before)
    for one, *others in zip(*results, strict=True):
        assert all(torch.equal(one, other) for other in others)


def test_kv_of_the_integer_recipe_fits_bfloat16_exactly() -> None:
    model, prompt = native(("int8", 4)), prompt_of(70)
    logits, kv = run(model, prompt, 70)
    assert torch.equal(kv, kv.bfloat16().float())
    pool = pool_of(model.spec, 5, 16, torch.bfloat16)
    assert torch.equal(model.forward(step([(prompt, 0, [4, 1, 0, 2, 3])], 16), pool), logits)


def test_shapes_that_are_not_served_are_refused_by_name() -> None:
    with pytest.raises(KernelsUnavailable, match="head_dim 24"):
        NativeDecoder(spec_of(head_dim=24, num_heads=4, num_kv_heads=2), RandomTensors(32))
    with pytest.raises(KernelsUnavailable, match="no such-isa"):
        build.load("such-isa")


def test_no_compiler_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KernelsUnavailable, match="no C\\+\\+ compiler"):
        build.build("scalar")


def test_a_broken_build_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(build.FLAGS, "scalar", ("--no-such-flag",))
    with pytest.raises(KernelsUnavailable, match="did not compile"):
        build.build("scalar", tmp_path)
    assert not list(tmp_path.iterdir())
