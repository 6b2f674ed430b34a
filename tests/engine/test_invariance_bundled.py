"""The bundled model through the engine: the same bits of KV and logits and the same text however a request is run or moved."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import pytest
import torch

from baton.engine.config import EngineConfig
from baton.engine.core import EngineCore
from baton.engine.kernels.cpu import build
from baton.engine.kernels.cpu.decoder import NativeDecoder
from baton.engine.kernels.interface import StepBatch
from baton.engine.weights import LoadedModel, bundled, load_model
from baton.engine.weights.backend import KV_DTYPES, AnyDecoder
from baton.engine.weights.checkpoint import CheckedTensors
from baton.engine.weights.gguf import GgufCheckpoint
from baton.wire.types import SamplingParams
from tests.engine.core_support import generate, handoff, outputs, run_until_idle, spec_of

TEXT = torch.randint(100, 40_000, (2000,), generator=torch.Generator().manual_seed(11)).tolist()
TRIALS = int(os.environ.get("BATON_TRIALS", "3"))
POOL_TOKENS = 4096
WIDEST = {"int8": 33, "float32": 6}
"""Sequences in the largest batch: float32 is slow, and tests of smaller models try wider ones."""


@dataclass
class Recorder:
    """A decoder that keeps the logits of each step's rows by the length of their sequences, which callers keep distinct."""

    model: AnyDecoder
    logits: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def spec(self) -> object:
        return self.model.spec

    def forward(self, batch: StepBatch, pool: torch.Tensor) -> torch.Tensor:
        logits = self.model.forward(batch, pool)
        self.logits |= {int(batch.positions[row]) + 1: logits[i] for i, row in enumerate(batch.logit_rows.tolist())}
        return logits


@dataclass(frozen=True)
class Result:
    kv: bytes
    logits: torch.Tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Result) and self.kv == other.kv and torch.equal(self.logits, other.logits)


@cache
def loaded(dtype: str) -> LoadedModel:
    return load_model(bundled(), dtype=dtype)


@pytest.fixture(params=["int8", "float32"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


float32_when_slow = pytest.mark.parametrize("dtype", ["int8", pytest.param("float32", marks=pytest.mark.slow)])


def core_of(dtype: str, model: AnyDecoder | None = None, *, block_size: int = 64, chunk: int = 512) -> EngineCore:
    whole = loaded(dtype)
    config = EngineConfig(POOL_TOKENS // block_size, block_size, max_step_tokens=chunk, kv_dtype=KV_DTYPES[dtype])
    return EngineCore(Recorder(model or whole.model), whole.identity, config)  # type: ignore[arg-type]


def prefill(core: EngineCore, *prompts: Sequence[int]) -> list[Result]:
    """KV bytes in wire order and last logits of each prompt, prefilled together."""
    recorder = core.model
    assert isinstance(recorder, Recorder)
    reservations = [core.prefill(spec_of(prompt)) for prompt in prompts]
    run_until_idle(core)
    results = [
        Result(kv_of(core, reservation.block_ids, len(prompt)), recorder.logits[len(prompt)])
        for reservation, prompt in zip(reservations, prompts, strict=True)
    ]
    for reservation in reservations:
        core.release(reservation.handle)
    return results


def kv_of(core: EngineCore, block_ids: Sequence[int], length: int) -> bytes:
    """Layer by layer, so that the block size leaves no trace."""
    size, layers = core.config.block_size, core.pool.layout.num_layers
    runs = [(start, min(length, start + size)) for start in range(0, length, size)]
    parts = []
    for layer in range(layers):
        both = [bytes(core.pool.gather(block_ids, start, end, layer, layer + 1)) for start, end in runs]
        parts += [run[: len(run) // 2] for run in both] + [run[len(run) // 2 :] for run in both]
    return b"".join(parts)


def test_any_chunk_and_block_size(dtype: str) -> None:
    prompt = TEXT[:80]
    [expected] = prefill(core_of(dtype, chunk=512), prompt)
    for chunk, block_size in [(7, 16), (64, 128), (33, 64)]:
        assert prefill(core_of(dtype, chunk=chunk, block_size=block_size), prompt) == [expected], (chunk, block_size)


@float32_when_slow
def test_token_by_token(dtype: str) -> None:
    prompt = TEXT[:40]
    assert prefill(core_of(dtype, chunk=1), prompt) == prefill(core_of(dtype), prompt)


@float32_when_slow
@pytest.mark.parametrize("block_size", [16, 64])
def test_after_a_prefix_hit(dtype: str, block_size: int) -> None:
    prompt = TEXT[:80]
    core = core_of(dtype, block_size=block_size)
    prefill(core, prompt[:70])
    assert prefill(core, prompt) == prefill(core_of(dtype), prompt)
    assert core.stats().prefix_hit_tokens_total >= 64


def test_any_batch(dtype: str) -> None:
    prompts = [TEXT[at : at + 3 + at] for at in range(WIDEST[dtype])]
    alone = [prefill(core_of(dtype), prompt)[0] for prompt in prompts]
    assert prefill(core_of(dtype), *prompts) == alone
    assert prefill(core_of(dtype), *prompts[:5]) == alone[:5]


def test_decode_in_a_batch_alone_and_as_prefill(dtype: str) -> None:
    prompts = [TEXT[at : at + 10 + 4 * at] for at in range(min(16, WIDEST[dtype]))]
    together, alone = core_of(dtype), core_of(dtype)
    params = SamplingParams(max_tokens=4, temperature=0, min_tokens=4)
    handles = [together.generate(spec_of(prompt, params)).handle for prompt in prompts]
    events = run_until_idle(together)
    texts = [outputs(events, handle)[0] for handle in handles]
    assert texts[::5] == [generate(alone, spec_of(prompt, params))[0] for prompt in prompts[::5]]
    for prompt, text in zip(prompts[::5], texts[::5], strict=True):
        whole = [*prompt, *text[:-1]]
        assert torch.equal(prefill(core_of(dtype), whole)[0].logits, together.model.logits[len(whole)])  # type: ignore[attr-defined]


@float32_when_slow
def test_prefilled_here_and_decoded_there(dtype: str) -> None:
    spec = spec_of(TEXT[:70], SamplingParams(max_tokens=5, temperature=0))
    assert handoff(core_of(dtype), core_of(dtype), spec)[1] == generate(core_of(dtype), spec)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def decoder(dtype: str, isa: str | None = None) -> NativeDecoder:
    checkpoint = GgufCheckpoint(bundled())
    return NativeDecoder(checkpoint.spec, CheckedTensors(checkpoint, None), dtype, isa)


@float32_when_slow
def test_two_threads(dtype: str, two_threads: None) -> None:
    prompts = [TEXT[:40], TEXT[40:41]]
    assert prefill(core_of(dtype, decoder(dtype)), *prompts) == prefill(core_of(dtype), *prompts)


def check_instruction_set(dtype: str, isa: str) -> None:
    prompt = TEXT[: 2 if isa == "scalar" else 36]
    assert prefill(core_of(dtype, decoder(dtype, isa)), prompt) == prefill(core_of(dtype), prompt)


@pytest.mark.parametrize("isa", build.supported()[1:])
def test_any_instruction_set(isa: str) -> None:
    check_instruction_set("int8", isa)


@pytest.mark.slow
@pytest.mark.parametrize("isa", build.supported()[1:])
def test_any_instruction_set_in_float32(isa: str) -> None:
    check_instruction_set("float32", isa)


def check_migration(dtype: str, trial: int, max_tokens: int) -> None:
    """The text goes on as it would have, wherever it is taken up again from prompt and accepted tokens."""
    prompt, params = (
        TEXT[trial * 31 : trial * 31 + 20 + trial],
        SamplingParams(max_tokens=max_tokens, temperature=0.8, seed=trial),
    )
    text = generate(core_of(dtype), spec_of(prompt, params))[0]
    core = core_of(dtype)
    for moved in range(1, len(text)):
        assert generate(core, spec_of(prompt, params, output_ids=tuple(text[:moved])))[0] == text[moved:], (trial, moved)


@pytest.mark.parametrize("trial", range(TRIALS))
def test_text_after_a_migration_at_every_token(trial: int) -> None:
    check_migration("int8", trial, 8)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "trial"), [*(("int8", trial) for trial in range(20)), ("float32", 0), ("float32", 1)])
def test_long_text_after_a_migration_at_every_token(dtype: str, trial: int) -> None:
    check_migration(dtype, trial, 32)
