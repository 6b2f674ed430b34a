"""The engine over the tiny checkpoints: literal answers, and whatever transformers says in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from core_support import assert_idle, finishes, generate, handoff, outputs, run_until_idle, spec_of, with_params

from baton.engine.api import Sampled
from baton.engine.config import EngineConfig
from baton.engine.core import EngineCore
from baton.engine.weights import LoadedModel, load_model
from baton.wire.types import FinishReason, SamplingParams
from tests.support import checkpoints

FOX = "The quick brown fox"
X = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ-="
GREEDY = SamplingParams(max_tokens=16, temperature=0, eos_ids=checkpoints.EOS_IDS)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.random_llama(tmp_path_factory.mktemp("random"))


@pytest.fixture(scope="module")
def random_model(directory: Path) -> LoadedModel:
    return load_model(directory)


@pytest.fixture(scope="module")
def scripted_model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(checkpoints.scripted(tmp_path_factory.mktemp("scripted")))


@pytest.fixture(scope="module")
def reference(directory: Path) -> torch.nn.Module:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def make_core(loaded: LoadedModel, num_blocks: int = 64, block_size: int = 16, **config: object) -> EngineCore:
    return EngineCore(loaded.model, loaded.identity, EngineConfig(num_blocks, block_size, **config))  # type: ignore[arg-type]


def answer(core: EngineCore, prompt: str, params: SamplingParams = GREEDY) -> str:
    return text_of(generate(core, spec_of(checkpoints.encode(prompt), params)))[0]


def text_of(tokens: dict[int, list[int]]) -> dict[int, str]:
    return {choice: checkpoints.decode(ids) for choice, ids in tokens.items()}


def expected(reference: torch.nn.Module, prompt: str, num_tokens: int) -> str:
    ids = torch.tensor([checkpoints.encode(prompt)])
    made = reference.generate(ids, max_new_tokens=num_tokens, do_sample=False, attention_mask=torch.ones_like(ids))  # type: ignore[operator]
    return checkpoints.decode(made[0, ids.shape[1] :].tolist())


@pytest.mark.parametrize("max_step_tokens", [7, 512])
def test_greedy_equals_transformers(random_model: LoadedModel, reference: torch.nn.Module, max_step_tokens: int) -> None:
    core = make_core(random_model, max_step_tokens=max_step_tokens)
    prompts = [FOX, "a", X * 3, "x" * 63, "x" * 64, "The quick brown fix"]
    handles = [
        core.generate(spec_of(checkpoints.encode(prompt), with_params(GREEDY, max_tokens=24))).handle for prompt in prompts
    ]
    events = run_until_idle(core)
    answers = [checkpoints.decode(outputs(events, handle)[0]) for handle in handles]
    assert answers == [expected(reference, prompt, 24) for prompt in prompts]
    assert answers[0] == "k/b!Y5RPL)x>&8*fYdLf)doJ"
    assert_idle(core)


C770 = {
    14: ')))))w=25"g}~1>}',
    15: "))))fM]io>bWQO6'",
    16: ")))fM!bx]{bWLMoJ",
    30: "Y ce$*8}Q~QJ'&&A",
    31: "Y ce$*8}Q1C:AiE+",
    32: ')Yb3 ")>{>{Y}:Z1',
}


def test_c770_block_boundaries(random_model: LoadedModel, reference: torch.nn.Module) -> None:
    core, cold = make_core(random_model), make_core(random_model)
    for length, literal in C770.items():
        prompt = "x" * length
        assert [answer(core, prompt), answer(core, prompt)] == [literal, literal]
        assert answer(core, prompt + literal) == expected(reference, prompt + literal, 16)
        _, tokens = handoff(cold, make_core(random_model, block_size=64), spec_of(checkpoints.encode(prompt), GREEDY))
        assert text_of(tokens) == {0: literal}
    assert core.stats().prefix_hit_tokens_total > 0
    assert_idle(core)


def test_c713_prefix_hits_on_either_side(random_model: LoadedModel) -> None:
    prefill, decode = make_core(random_model), make_core(random_model)
    steps = [
        ("1", "'wZ1y'o&vOUhowAx", ""),
        ("2", "3Z\"]'0f15YoA-#u-", ""),
        ("1", "'wZ1y'o&vOUhowAx", ""),
        ("3", "$)~'Ot^qo@qJ<y,'", "decode"),
        ("4", "cf)Zx)Yf+['yA~+y", "prefill"),
    ]
    for suffix, literal, restarted in steps:
        prefill = make_core(random_model) if restarted == "prefill" else prefill
        decode = make_core(random_model) if restarted == "decode" else decode
        _, tokens = handoff(prefill, decode, spec_of(checkpoints.encode(X + suffix), GREEDY))
        assert text_of(tokens) == {0: literal}
        assert decode.stats().kv_blocks_used == prefill.stats().kv_blocks_used == 0


def test_c607_penalties_count_generated_tokens_and_all_of_them(random_model: LoadedModel) -> None:
    params = with_params(GREEDY, presence_penalty=2.0)
    for prompt, literal in (("x" * 14, ")YQ{Q{C%F>:d \\=8"), (FOX, "k/b!Y5RPL)x>&8*f")):
        assert answer(make_core(random_model), prompt, params) == literal
        _, tokens = handoff(make_core(random_model), make_core(random_model), spec_of(checkpoints.encode(prompt), params))
        assert text_of(tokens) == {0: literal}


def test_repetition_penalty_equals_transformers(random_model: LoadedModel, reference: torch.nn.Module) -> None:
    ids = torch.tensor([checkpoints.encode(FOX)])
    made = reference.generate(  # type: ignore[operator]
        ids, max_new_tokens=24, do_sample=False, repetition_penalty=1.3, attention_mask=torch.ones_like(ids)
    )
    params = with_params(GREEDY, max_tokens=24, repetition_penalty=1.3)
    assert answer(make_core(random_model), FOX, params) == checkpoints.decode(made[0, ids.shape[1] :].tolist())


def test_c792_end_tokens_do_not_count_towards_the_minimum(scripted_model: LoadedModel) -> None:
    core = make_core(scripted_model)
    text = answer(core, "A", with_params(GREEDY, min_tokens=12, max_tokens=20))
    assert text.startswith("bcdefghij")
    assert 12 <= len(text) <= 20
    handle = core.generate(spec_of(checkpoints.encode("$"), with_params(GREEDY, min_tokens=3, max_tokens=8))).handle
    events = run_until_idle(core)
    ids = outputs(events, handle)[0]
    assert not set(ids[:3]) & set(checkpoints.EOS_IDS)


def test_scripts_end_at_either_end_token(scripted_model: LoadedModel) -> None:
    core = make_core(scripted_model)
    for prompt, literal in (("A", "bcdefghij"), ("#", "🌶辣!"), ("$", ""), ("%", ""), ("\n", "OK.")):
        handle = core.generate(spec_of(checkpoints.encode(prompt), with_params(GREEDY, max_tokens=50))).handle
        events = run_until_idle(core)
        assert checkpoints.decode(outputs(events, handle)[0]) == literal
        assert finishes(events, handle) == {0: FinishReason.STOP}
        core.release(handle)
    assert_idle(core)


def test_c207_choices(random_model: LoadedModel, scripted_model: LoadedModel) -> None:
    spec = spec_of(checkpoints.encode("A"), with_params(GREEDY, max_tokens=20), choices=(0, 1, 2))
    assert text_of(generate(make_core(scripted_model), spec)) == dict.fromkeys(range(3), "bcdefghij")
    spec = spec_of(checkpoints.encode(FOX), with_params(GREEDY, max_tokens=24, temperature=1.0, seed=7), choices=(0, 1, 2))
    alone = generate(make_core(random_model), spec)
    assert len(set(text_of(alone).values())) == 3
    assert generate(make_core(random_model), spec) == alone
    assert handoff(make_core(random_model), make_core(random_model, block_size=64), spec)[1] == alone


def test_c242_logprobs_are_of_the_raw_distribution(random_model: LoadedModel) -> None:
    core = make_core(random_model)
    for params in (GREEDY, with_params(GREEDY, temperature=1e-4, frequency_penalty=1e-6)):
        handle = core.generate(spec_of(checkpoints.encode(FOX), with_params(params, max_tokens=5, num_logprobs=2))).handle
        tokens = [event.token for event in run_until_idle(core) if isinstance(event, Sampled) and event.handle == handle]
        assert [chr(token.id) for token in tokens] == list("k/b!Y")
        assert [token.logprob for token in tokens] == pytest.approx([-0.8354, -1.4065, -1.7884, -1.2785, -0.3385], abs=0.01)
        assert [chr(token.top[1][0]) for token in tokens] == list("73D&5")
        runners_up = [-2.0154, -1.5849, -1.9427, -2.3239, -2.8849]
        assert [token.top[1][1] for token in tokens] == pytest.approx(runners_up, abs=0.01)
        assert all(token.top[0] == (token.id, token.logprob) for token in tokens)


def test_c794_seeds(random_model: LoadedModel, reference: torch.nn.Module) -> None:
    params = with_params(GREEDY, max_tokens=48, temperature=1.0, seed=1234)
    fox = spec_of(checkpoints.encode(FOX), params)
    alone = text_of(generate(make_core(random_model), fox))[0]
    assert len(set(alone)) > 8
    core = make_core(random_model, num_blocks=200, max_step_tokens=40)
    others = [spec_of(checkpoints.encode(X[i:]), with_params(params, seed=i)) for i in range(15)]
    handles = [core.generate(spec).handle for spec in [*others[:7], fox, *others[7:]]]
    events = run_until_idle(core)
    assert checkpoints.decode(outputs(events, handles[7])[0]) == alone
    assert text_of(handoff(make_core(random_model), make_core(random_model, block_size=64), fox)[1])[0] == alone
    assert answer(make_core(random_model), FOX, with_params(params, seed=1235)) != alone
    greedy = expected(reference, FOX, 48)
    assert {answer(core, FOX, with_params(params, temperature=0, seed=seed)) for seed in range(5)} == {greedy}


def test_preemption_keeps_the_text(random_model: LoadedModel) -> None:
    prompts = [FOX, "a", X, "x" * 33]
    params = with_params(GREEDY, max_tokens=60)
    alone = [answer(make_core(random_model), prompt, params) for prompt in prompts]
    core = make_core(random_model, num_blocks=15, growth_reserve=1)
    handles = [core.generate(spec_of(checkpoints.encode(prompt), params)).handle for prompt in prompts]
    events = run_until_idle(core)
    assert [checkpoints.decode(outputs(events, handle)[0]) for handle in handles] == alone
    assert core.stats().preemptions_total > 0
    assert_idle(core)


def test_recovery_at_every_index_keeps_the_text(random_model: LoadedModel) -> None:
    whole = generate(make_core(random_model), spec_of(checkpoints.encode(FOX), GREEDY))[0]
    source, target = make_core(random_model), make_core(random_model)
    for accepted in range(1, 16):
        spec = spec_of(checkpoints.encode(FOX), GREEDY, output_ids=tuple(whole[:accepted]))
        handle, tokens = handoff(source, target, spec)
        assert tokens == {0: whole[accepted:]}
        target.release(handle)
    assert_idle(target)


def test_bfloat16_pool_serves(random_model: LoadedModel) -> None:
    core = make_core(random_model, kv_dtype="bfloat16")
    assert core.pool.tensor.dtype is torch.bfloat16
    assert answer(core, FOX) == answer(core, FOX)
