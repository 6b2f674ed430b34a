"""Hugging Face directories: shards, settings, the text side, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton.engine.errors import CorruptModel, ModelError, ModelNotFound, UnsupportedModel
from baton.engine.weights import load_model
from tests.support.checkpoints import CHAT_TEMPLATE, encode, random_llama, random_model
from tests.support.stepping import greedy

INDEX = "model.safetensors.index.json"
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return random_llama(tmp_path / "model")


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_tensors(directory: Path, change: Callable[[Tensors], Tensors]) -> None:
    path = directory / "model.safetensors"
    save_file(change(load_file(path)), path)


def shard(directory: Path) -> dict[str, str]:
    """Splits the weights in two files and returns the index."""
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, directory / file)
    index = {name: file for file, part in parts.items() for name in part}
    (directory / INDEX).write_text(json.dumps({"weight_map": index}))
    return index


def test_shards_hold_the_same_model(directory: Path) -> None:
    whole = greedy(load_model(directory).model, encode("abc"), 8)
    shard(directory)
    assert greedy(load_model(directory).model, encode("abc"), 8) == whole


@pytest.mark.parametrize("name", ["../model-1.safetensors", "/etc/hostname", "sub/model-1.safetensors", "model-1.bin", ".."])
def test_an_index_names_plain_files_beside_it(name: str, directory: Path) -> None:
    index = shard(directory)
    (directory / INDEX).write_text(json.dumps({"weight_map": {**index, "model.norm.weight": name}}))
    with pytest.raises(CorruptModel, match="is not the plain name of a safetensors file"):
        load_model(directory)


def test_a_missing_shard_is_named(directory: Path) -> None:
    shard(directory)
    (directory / "model-2.safetensors").unlink()
    with pytest.raises(ModelNotFound, match=r"shard model-2\.safetensors is missing"):
        load_model(directory)


def test_a_tensor_in_two_shards_is_refused(directory: Path) -> None:
    shard(directory)
    twice = {**load_file(directory / "model-1.safetensors"), **load_file(directory / "model-2.safetensors")}
    save_file(twice, directory / "model-2.safetensors")
    with pytest.raises(CorruptModel, match=r"is in model-1\.safetensors too"):
        load_model(directory)


@pytest.mark.parametrize("length", [0, 7, 100, 20_000])
def test_a_truncated_file_is_refused(length: int, directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CorruptModel, match=r"model\.safetensors"):
        load_model(directory)


def test_pickled_weights_are_not_read(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(ModelNotFound, match="convert them to safetensors"):
        load_model(directory)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_become_float32(dtype: torch.dtype, directory: Path, tmp_path: Path) -> None:
    edit_tensors(directory, lambda tensors: {name: tensor.to(dtype) for name, tensor in tensors.items()})
    rounded = random_llama(tmp_path / "rounded")
    edit_tensors(rounded, lambda tensors: {name: tensor.to(dtype).float() for name, tensor in tensors.items()})
    loaded = load_model(directory)
    assert loaded.identity.quantisation == {torch.bfloat16: "BF16", torch.float16: "F16"}[dtype]
    assert greedy(loaded.model, encode("abc"), 8) == greedy(load_model(rounded).model, encode("abc"), 8)


TENSOR_FAULTS: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "missing": (
        lambda tensors: {name: tensor for name, tensor in tensors.items() if name != "model.layers.1.mlp.up_proj.weight"},
        r"tensor model\.layers\.1\.mlp\.up_proj\.weight is missing",
    ),
    "unexpected": (
        lambda tensors: {**tensors, "model.layers.0.self_attn.sinks": torch.zeros(4)},
        r"tensor model\.layers\.0\.self_attn\.sinks is not part of this architecture",
    ),
    "shape": (
        lambda tensors: {**tensors, "model.norm.weight": torch.ones(63)},
        r"tensor model\.norm\.weight has shape \[63\], not \[64\]",
    ),
    "type": (
        lambda tensors: {**tensors, "model.norm.weight": torch.ones(64, dtype=torch.int8)},
        r"tensor model\.norm\.weight is of type I8",
    ),
}


@pytest.mark.parametrize("fault", TENSOR_FAULTS)
def test_tensors_are_exactly_the_architectures(fault: str, directory: Path) -> None:
    change, message = TENSOR_FAULTS[fault]
    edit_tensors(directory, change)
    with pytest.raises(ModelError, match=message):
        load_model(directory)


def test_a_tied_head_that_is_stored_too_is_left_alone(tmp_path: Path) -> None:
    directory = random_model(tmp_path / "tied", "llama", tie_word_embeddings=True)
    before = greedy(load_model(directory).model, encode("abc"), 8)
    edit_tensors(directory, lambda tensors: {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"] * 2})
    assert greedy(load_model(directory).model, encode("abc"), 8) == before


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3}}, "rope type 'llama3' is not served"),
        ({"rope_scaling": {"type": "llama3", **LLAMA3}}, "rope type 'llama3' is not served"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, **LLAMA3}}, "rope type 'llama3' is not served"),
        ({"rope_scaling": {"rope_type": "banana"}}, "rope type 'banana' is not served"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope type 'yarn' is not served"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "one object for all layers"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling: field factor is missing"),
        ({"architectures": ["GemmaForCausalLM"]}, "architecture 'GemmaForCausalLM' is not served"),
        ({"architectures": None}, "architecture None is not served"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"hidden_size": "many"}, "config.json: field hidden_size is 'many', where an integer"),
        ({"hidden_size": None}, "config.json: field hidden_size is missing"),
        ({"num_hidden_layers": 10**9}, "field num_hidden_layers is 1000000000"),
        ({"max_position_embeddings": 2**31 - 1}, "field max_position_embeddings is 2147483647, where .* to 16777216"),
        ({"rms_norm_eps": -1}, "field rms_norm_eps is -1"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3 KV heads"),
        ({"num_hidden_layers": 3}, r"tensor model\.layers\.2\.\S+ is missing"),
    ],
)
def test_c265_settings_that_are_not_served_are_refused_by_name(changes: dict[str, Any], message: str, directory: Path) -> None:
    edit_json(directory / "config.json", **changes)
    with pytest.raises(ModelError, match=message):
        load_model(directory)


def test_foreign_code_is_neither_run_nor_needed(directory: Path) -> None:
    (directory / "evil.py").write_text("raise SystemExit('ran')")
    edit_json(directory / "config.json", auto_map={"AutoModelForCausalLM": "evil.Model"})
    load_model(directory)


@pytest.mark.parametrize("content", ["", "[1]", "{", "[" * 100_000])
def test_a_config_that_is_no_object_is_refused(content: str, directory: Path) -> None:
    (directory / "config.json").write_text(content)
    with pytest.raises(CorruptModel, match=r"config\.json"):
        load_model(directory)


def test_a_path_without_a_model_says_what_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"config\.json nor a \.gguf file"):
        load_model(tmp_path)


def test_card_and_names(directory: Path) -> None:
    card = load_model(directory).card
    assert card.name == "model"
    assert load_model(directory, served_name="mine").card.name == "mine"
    assert (card.bos_token, card.eos_token, card.eos_ids) == ("<s>", "</s>", (257, 258))
    assert card.special_ids == tuple(range(256, 263))
    assert card.add_bos
    assert card.chat_template == CHAT_TEMPLATE
    assert card.tokenizer_json == (directory / "tokenizer.json").read_text()


def test_a_model_without_a_tokenizer_is_refused(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()
    with pytest.raises(ModelNotFound, match=r"no tokenizer\.json"):
        load_model(directory)


def test_end_tokens_come_from_the_generation_config_then_the_config_then_the_tokenizer(directory: Path) -> None:
    edit_json(directory / "generation_config.json", eos_token_id=258)
    assert load_model(directory).card.eos_ids == (258,)
    (directory / "generation_config.json").unlink()
    assert load_model(directory).card.eos_ids == (257, 258)
    edit_json(directory / "config.json", eos_token_id=None)
    assert load_model(directory).card.eos_ids == (257,)
    edit_json(directory / "config.json", eos_token_id=263)
    with pytest.raises(CorruptModel, match="end token 263 is not within the vocabulary of 263"):
        load_model(directory)


def test_the_template_may_lie_in_a_file_or_among_several(directory: Path) -> None:
    several = [{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}]
    edit_json(directory / "tokenizer_config.json", chat_template=several)
    assert load_model(directory).card.chat_template == "D"
    (directory / "chat_template.jinja").write_text("J")
    assert load_model(directory).card.chat_template == "J"


@pytest.mark.parametrize("said", [True, False])
def test_add_bos_token_wins_over_the_post_processor(said: bool, directory: Path) -> None:
    edit_json(directory / "tokenizer_config.json", add_bos_token=said)
    assert load_model(directory).card.add_bos is said


def test_a_tokenizer_without_a_bos_template_adds_none(directory: Path) -> None:
    edit_json(directory / "tokenizer.json", post_processor={"type": "Sequence", "processors": [{"type": "ByteLevel"}]})
    assert not load_model(directory).card.add_bos
    edit_json(directory / "tokenizer_config.json", bos_token=None, add_bos_token=True)
    assert not load_model(directory).card.add_bos


def test_identity_tells_models_apart_by_field(directory: Path, tmp_path: Path) -> None:
    identity = load_model(directory).identity
    assert load_model(directory).identity == identity
    changes: dict[str, Callable[[Path], None]] = {
        "weights_digest": lambda path: edit_tensors(path, lambda tensors: {**tensors, "model.norm.weight": torch.ones(64) * 2}),
        "rope": lambda path: edit_json(path / "config.json", rope_theta=5e5),
        "architecture": lambda path: edit_json(path / "config.json", rms_norm_eps=1e-5),
        "tokenizer_digest": lambda path: edit_json(path / "tokenizer.json", truncation=None, extra=1),
        "template_digest": lambda path: edit_json(path / "tokenizer_config.json", chat_template="x"),
        "max_model_len": lambda path: edit_json(path / "config.json", max_position_embeddings=128),
    }
    for field, change in changes.items():
        other = random_llama(tmp_path / field)
        change(other)
        found = load_model(other).identity
        differing = [name for name in identity.__slots__ if getattr(found, name) != getattr(identity, name)]
        assert differing == [field]


def test_a_shorter_context_is_part_of_spec_card_and_identity(directory: Path) -> None:
    loaded = load_model(directory, max_model_len=64)
    assert loaded.model.spec.max_model_len == loaded.card.max_model_len == loaded.identity.max_model_len == 64
    with pytest.raises(ModelError, match="max_model_len 5000 is not between 1 and the model's own 4096"):
        load_model(directory, max_model_len=5000)


def test_an_unknown_dtype_is_refused(directory: Path) -> None:
    with pytest.raises(UnsupportedModel, match="dtype 'float8'"):
        load_model(directory, dtype="float8")
