"""The decoder in float32 against transformers, for every architecture that is served, and against itself in pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from baton.engine.kernels.reference import ReferenceKernels
from baton.engine.weights import load_model
from baton.engine.weights.backend import AnyDecoder
from tests.support.checkpoints import decode, encode, random_llama, random_model, scripted
from tests.support.stepping import Piece, greedy, logits, new_pool, step

PROMPT = encode("The quick brown fox jumps over the lazy dog. " * 7)
SLIDING = {"sliding_window": 32, "use_sliding_window": True}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": ("llama", {"head_dim": 32}),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1}),
    "llama-rope-linear": ("llama", {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    "llama-rope-parameters": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}}),
    "mistral": ("mistral", {}),
    "mistral-window": ("mistral", {"sliding_window": 32}),
    "qwen2": ("qwen2", {}),
    "qwen2-window-off": ("qwen2", {"sliding_window": 32, "use_sliding_window": False, "max_window_layers": 0}),
    "qwen2-window": ("qwen2", {**SLIDING, "max_window_layers": 0}),
    "qwen2-window-from-layer-1": ("qwen2", {**SLIDING, "max_window_layers": 1}),
    "qwen3": ("qwen3", {}),
    "qwen3-window": ("qwen3", {**SLIDING, "layer_types": ["sliding_attention", "full_attention"]}),
}


def load(path: Path) -> AnyDecoder:
    return load_model(path, kernels=ReferenceKernels()).model


def reference_logits(path: Path, ids: list[int]) -> torch.Tensor:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        found: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return found


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> AnyDecoder:
    return load(random_llama(tmp_path_factory.mktemp("llama")))


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> AnyDecoder:
    return load(random_model(tmp_path_factory.mktemp("mistral"), "mistral", sliding_window=32))


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers(variant: str, tmp_path: Path) -> None:
    kind, overrides = VARIANTS[variant]
    path = random_model(tmp_path / variant, kind, **overrides)
    expected = reference_logits(path, PROMPT)
    found = logits(load(path), PROMPT)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


def test_transformers_own_saved_config_is_read(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    path = random_model(tmp_path / "qwen2", "qwen2", **SLIDING, max_window_layers=1)
    transformers.AutoModelForCausalLM.from_pretrained(path).save_pretrained(tmp_path / "saved")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "saved" / name).write_text((path / name).read_text())
    assert load(tmp_path / "saved").spec == load(path).spec


def test_literal_answers(llama: AnyDecoder, tmp_path: Path) -> None:
    assert decode(greedy(llama, encode("The quick brown fox"), 24)) == "k/b!Y5RPL)x>&8*fYdLf)doJ"
    assert decode(greedy(llama, encode("x" * 15), 24)) == "))))fM]io>bWQO6')V;)&o>{"
    script = load(scripted(tmp_path))
    assert greedy(script, encode("A"), 10) == [*b"bcdefghij", 257]
    assert decode(greedy(script, encode("#"), 8)) == "🌶辣!"
    assert greedy(script, encode("%"), 1) == [258]


def test_a_window_shows_on_a_long_prompt_only(llama: AnyDecoder, tmp_path: Path) -> None:
    """C541: beyond the window the texts differ, within it they are the same."""
    open_model = load(random_model(tmp_path / "null", "mistral", sliding_window=None))
    windowed = load(random_model(tmp_path / "32", "mistral", sliding_window=32))
    short, long = encode("x" * 7), PROMPT
    assert greedy(open_model, short, 16) == greedy(windowed, short, 16)
    assert greedy(open_model, long, 24) != greedy(windowed, long, 24)


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("block_size", [16, 64])
@pytest.mark.parametrize("name", ["llama", "windowed"])
def test_chunks_give_the_whole_prompts_logits(name: str, chunk: int, block_size: int, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(name)
    whole = logits(model, PROMPT)
    torch.testing.assert_close(logits(model, PROMPT, chunk, block_size), whole, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "windowed"])
def test_a_mixed_step_gives_each_sequence_its_own_logits(name: str, request: pytest.FixtureRequest) -> None:
    """Two decode rows of different length and a chunk in the middle of a prompt, whose blocks interleave."""
    model = request.getfixturevalue(name)
    short, long, chunked = PROMPT[:20], PROMPT[:200], PROMPT[5:105]
    blocks = {"short": [0, 3], "long": list(range(5, 31, 2)), "chunked": list(range(30, 2, -4))}
    pool = new_pool(model, 31)
    step(model, pool, Piece(blocks["short"], 0, short[:-1]), Piece(blocks["long"], 0, long[:-1]))
    step(model, pool, Piece(blocks["chunked"], 0, chunked[:60]))
    found = step(
        model,
        pool,
        Piece(blocks["short"], 19, short[-1:]),
        Piece(blocks["chunked"], 60, chunked[60:]),
        Piece(blocks["long"], 199, long[-1:]),
    )
    expected = [logits(model, short)[-1:], logits(model, chunked)[60:], logits(model, long)[-1:]]
    for ours, alone in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, alone, atol=1e-4, rtol=1e-4)


def test_a_step_without_logits_still_writes_the_pool(llama: AnyDecoder) -> None:
    pool = new_pool(llama, 2)
    step(llama, pool, Piece([1, 0], 0, PROMPT[:20]))
    written = pool[1].isnan().logical_not().all(), pool[0, :, :, :4].isnan().logical_not().all()
    assert all(written)
    assert pool[0, :, :, 4:].isnan().all()


def test_a_bfloat16_pool_is_served_near_the_float32_one(llama: AnyDecoder) -> None:
    exact = logits(llama, PROMPT[:40])
    blocks = [2, 1, 0]
    pool = new_pool(llama, 3).to(torch.bfloat16)
    rounded = step(llama, pool, Piece(blocks, 0, PROMPT[:40]))[0]
    assert not torch.equal(rounded, exact)
    assert torch.nn.functional.cosine_similarity(rounded, exact).min() > 0.98
