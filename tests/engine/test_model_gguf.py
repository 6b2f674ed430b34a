"""GGUF: the same model as its safetensors directory, the tokenizer that it carries, and files that may not be trusted."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from baton.engine.errors import CorruptModel, ModelError, UnsupportedModel
from baton.engine.kernels.interface import Grouped
from baton.engine.kernels.reference import ReferenceKernels
from baton.engine.models.tensors import to_dense
from baton.engine.weights import load_model
from baton.engine.weights.gguf import GgufCheckpoint
from baton.engine.weights.gguf_file import GgufFile
from baton.engine.weights.gguf_numbers import read_weight
from tests.support.checkpoints import decode, encode, random_model, scripted
from tests.support.gguf_files import to_gguf
from tests.support.stepping import greedy

PROMPTS = ("The quick brown fox", "x" * 15, "0", "Hello, world!", "a longer prompt, over several blocks of sixteen " * 3)


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scripted(tmp_path_factory.mktemp("scripted"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A whole valid file to spoil."""
    folder = tmp_path_factory.mktemp("small")
    return to_gguf(random_model(folder / "hf", "llama"), folder / "model.gguf").read_bytes()


@pytest.mark.parametrize(
    ("kind", "overrides"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True}),
        ("llama", {"tie_word_embeddings": True}),
        ("qwen2", {}),
        ("qwen3", {}),
    ],
)
def test_c802_a_gguf_file_says_what_its_directory_says(kind: str, overrides: dict[str, bool], tmp_path: Path) -> None:
    directory = random_model(tmp_path / "hf", kind, **overrides)
    file = to_gguf(directory, tmp_path / "model.gguf")
    ours, theirs = load_model(file, kernels=ReferenceKernels()), load_model(directory, kernels=ReferenceKernels())
    assert ours.model.spec == theirs.model.spec
    for prompt in PROMPTS:
        assert greedy(ours.model, encode(prompt), 16) == greedy(theirs.model, encode(prompt), 16)
    if kind == "llama" and not overrides:
        assert decode(greedy(ours.model, encode("The quick brown fox"), 24)) == "k/b!Y5RPL)x>&8*fYdLf)doJ"


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_1"])
def test_stored_numbers_are_read_as_gguf_itself_reads_them(kind: str, tmp_path: Path) -> None:
    file = to_gguf(random_model(tmp_path / "hf", "qwen2"), tmp_path / "model.gguf", kind=kind)
    checkpoint = GgufCheckpoint(file)
    expected = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in gguf.GGUFReader(file).tensors}
    for ours, stored in (("mlp.down_proj", "ffn_down"), ("self_attn.k_proj", "attn_k")):
        weight = checkpoint.read(f"model.layers.1.{ours}.weight")
        values = to_dense(weight) if isinstance(weight, Grouped) else weight.data.float()
        assert np.array_equal(values.numpy(), expected[f"blk.1.{stored}.weight"])
    assert checkpoint.quantisation == "+".join(sorted({"F32", kind}))
    assert load_model(file).identity.quantisation == checkpoint.quantisation


@pytest.mark.parametrize(("bos", "num_tokens"), [(True, 3), (False, 2), (None, 2)])
def test_c631_the_tokenizer_that_a_file_carries(bos: bool | None, num_tokens: int, script: Path, tmp_path: Path) -> None:
    card = load_model(to_gguf(script, tmp_path / "model.gguf", bos=bos)).card
    tokenizer = Tokenizer.from_str(card.tokenizer_json)
    assert card.add_bos is bool(bos)
    assert card.bos_token == (None if bos is None else "<s>")
    assert card.eos_ids == (257, 258)
    assert card.special_ids == tuple(range(256, 263))
    assert len(tokenizer.encode("hi").ids) == num_tokens
    chat = "<s><|user|>\nhi\n<|assistant|>\n"
    assert tokenizer.encode(chat, add_special_tokens=False).ids == [256, 259, 10, 104, 105, 10, 260, 10]
    assert tokenizer.decode(list("🌶辣!".encode())) == "🌶辣!"
    assert card.chat_template is not None
    assert "<|assistant|>" in card.chat_template


def test_the_card_equals_the_directorys(script: Path, tmp_path: Path) -> None:
    ours = load_model(to_gguf(script, tmp_path / "m.gguf"), served_name="m").card
    theirs = load_model(script, served_name="m").card
    same = (
        "name",
        "chat_template",
        "bos_token",
        "eos_token",
        "eos_ids",
        "special_ids",
        "add_bos",
        "vocab_size",
        "max_model_len",
    )
    assert {field: getattr(ours, field) for field in same} == {field: getattr(theirs, field) for field in same}


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "I'll pay 1234 now", ["I", "'ll", "Ġpay", "Ġ1234", "Ġnow"]),
        ("smollm", "I'll pay 1234 now", ["I", "'ll", "Ġpay", "Ġ", "1", "2", "3", "4", "Ġnow"]),
        ("qwen2", "I'LL pay 1234 now", ["I", "'LL", "Ġpay", "Ġ", "1", "2", "3", "4", "Ġnow"]),
        ("llama-bpe", "I'LL pay 1234 now", ["I", "'LL", "Ġpay", "Ġ", "123", "4", "Ġnow"]),
    ],
)
def test_text_is_cut_as_the_file_says(pre: str, text: str, pieces: list[str], script: Path, tmp_path: Path) -> None:
    card = load_model(to_gguf(script, tmp_path / "model.gguf", **{"tokenizer.ggml.pre": pre})).card
    cutter = Tokenizer.from_str(card.tokenizer_json).pre_tokenizer
    assert cutter is not None
    assert [piece for piece, _ in cutter.pre_tokenize_str(text)] == pieces


def test_merges_join_tokens(script: Path, tmp_path: Path) -> None:
    with pytest.raises(CorruptModel, match="merges has 'h i'"):
        load_model(to_gguf(script, tmp_path / "model.gguf", **{"tokenizer.ggml.merges": ["h i"]}))


@pytest.mark.parametrize(
    ("key", "value", "error", "message"),
    [
        ("general.architecture", "gemma9", UnsupportedModel, "architecture 'gemma9' is not served"),
        ("tokenizer.ggml.model", "llama", UnsupportedModel, "tokenizer model 'llama'"),
        ("tokenizer.ggml.pre", "banana", UnsupportedModel, "pre-tokenizer 'banana'"),
        ("llama.rope.scaling.type", "yarn", UnsupportedModel, "rope type 'yarn'"),
        ("llama.rope.dimension_count", 8, UnsupportedModel, "rope.dimension_count 8"),
        ("llama.expert_count", 8, UnsupportedModel, "expert_count 8"),
        ("llama.block_count", 3, CorruptModel, r"tensor model\.layers\.2\.\S+ is missing"),
        ("llama.block_count", 1, UnsupportedModel, r"tensor model\.layers\.1\.\S+ \(and \d+ more\)"),
        ("llama.embedding_length", 32, CorruptModel, r"shape \[263, 64\], not \[263, 32\]"),
        ("llama.context_length", "long", CorruptModel, "field llama.context_length is 'long'"),
        ("llama.context_length", 2**31 - 1, CorruptModel, "field llama.context_length is 2147483647"),
        ("tokenizer.ggml.eos_token_id", 9999, CorruptModel, "field tokenizer.ggml.eos_token_id is 9999"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    key: str, value: object, error: type[ModelError], message: str, tmp_path: Path
) -> None:
    directory = random_model(tmp_path / "hf", "llama")
    with pytest.raises(error, match=message):
        load_model(to_gguf(directory, tmp_path / "model.gguf", **{key: value}))


def test_llama3_rope_factors_are_refused(tmp_path: Path) -> None:
    """C265: they travel as a tensor."""
    directory = random_model(tmp_path / "hf", "llama")
    tensors = load_file(directory / "model.safetensors")
    save_file({**tensors, "rope_freqs.weight": torch.ones(8)}, directory / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"rope type 'llama3' \(tensor rope_freqs.weight\)"):
        load_model(to_gguf(directory, tmp_path / "model.gguf"))


HEADER = b"GGUF" + struct.pack("<I", 3)


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value


def tensor(num_dims: int = 1, extents: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    shape = struct.pack(f"<{len(extents)}Q", *extents)
    return struct.pack("<Q", 1) + b"t" + struct.pack("<I", num_dims) + shape + struct.pack("<IQ", kind, offset)


ABSURD = {
    "empty": (b"", "file is empty"),
    "magic": (b"GGML" + bytes(40), "magic is not GGUF"),
    "version": (b"GGUF" + struct.pack(">I", 3) + bytes(40), "version is 50331648"),
    "n_kv": (HEADER + struct.pack("<QQ", 0, 2**63) + bytes(64), "n_kv is 9223372036854775808"),
    "n_tensors": (HEADER + struct.pack("<QQ", 2**62, 0) + bytes(64), "n_tensors is 4611686018427387904"),
    "key length": (HEADER + struct.pack("<QQQ", 0, 1, 2**40) + bytes(64), "key 0 needs 1099511627776 bytes"),
    "value type": (HEADER + struct.pack("<QQ", 0, 1) + key(b"k", 77, b"") + bytes(64), "k is of value type 77"),
    "strings": (HEADER + struct.pack("<QQ", 0, 1) + key(b"k", 9, struct.pack("<IQ", 8, 2**60)) + bytes(64), "k names 115"),
    "numbers": (HEADER + struct.pack("<QQ", 0, 1) + key(b"k", 9, struct.pack("<IQ", 4, 2**60)) + bytes(64), "k needs 461"),
    "nested": (HEADER + struct.pack("<QQ", 0, 1) + key(b"k", 9, struct.pack("<IQ", 9, 1)) + bytes(64), "k is of value type 9"),
    "utf-8": (HEADER + struct.pack("<QQ", 0, 1) + key(b"\xff", 4, bytes(4)) + bytes(64), "key 0 is not UTF-8"),
    "twice": (HEADER + struct.pack("<QQ", 0, 2) + key(b"k", 4, bytes(4)) * 2, "k is there twice"),
    "alignment": (
        HEADER + struct.pack("<QQ", 0, 1) + key(b"general.alignment", 4, struct.pack("<I", 2**31)),
        "general.alignment is 2147483648",
    ),
    "n_dims": (HEADER + struct.pack("<QQ", 1, 0) + tensor(num_dims=2**32 - 1) + bytes(64), "tensor t n_dims is 4294967295"),
    "type": (HEADER + struct.pack("<QQ", 1, 0) + tensor(kind=999) + bytes(64), "tensor t type is 999"),
    "extent": (HEADER + struct.pack("<QQ", 1, 0) + tensor(extents=(2**62,)) + bytes(64), "tensor t ends at byte 18446"),
    "group": (HEADER + struct.pack("<QQ", 1, 0) + tensor(extents=(33,), kind=3) + bytes(64), "no whole groups of 32"),
    "offset": (HEADER + struct.pack("<QQ", 1, 0) + tensor(offset=7) + bytes(256), "offset 7 is not a multiple"),
    "outside": (HEADER + struct.pack("<QQ", 1, 0) + tensor(offset=2**40) + bytes(256), "tensor t ends at byte 1099511627"),
    "same": (HEADER + struct.pack("<QQ", 2, 0) + tensor() * 2 + bytes(512), "tensor t is there twice"),
}


@pytest.mark.parametrize("fault", ABSURD)
def test_absurd_files_are_refused_by_field(fault: str, tmp_path: Path) -> None:
    content, message = ABSURD[fault]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(CorruptModel, match=f"model.gguf: {message}|{message}"):
        GgufFile(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_spoiled_file_is_loaded_or_refused_and_nothing_else(data: st.DataObject, small: bytes, tmp_path: Path) -> None:
    spoiled = bytearray(small)
    for _ in range(data.draw(st.integers(1, 3))):
        spoiled[data.draw(st.integers(0, 12_000))] = data.draw(st.integers(0, 255))
    path = tmp_path / "model.gguf"
    path.write_bytes(spoiled[: data.draw(st.sampled_from((len(small), len(small) // 2, 9000)))])
    with contextlib.suppress(ModelError):
        load_model(path, kernels=ReferenceKernels())


def test_reading_gives_memory_of_its_own() -> None:
    data = np.arange(64, dtype=np.float32).view(np.uint8)
    weight = read_weight(gguf.GGMLQuantizationType.F32, (2, 32), data)
    data[:] = 0
    assert not isinstance(weight, Grouped)
    assert torch.equal(weight.data, torch.arange(64.0).reshape(2, 32))
