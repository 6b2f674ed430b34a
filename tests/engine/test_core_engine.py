"""The engine over a model of pure bookkeeping: phases, chunks, prefix hits, choices, preemption, failures."""

from __future__ import annotations

import pytest
from core_support import (
    GREEDY,
    FakeModel,
    assert_idle,
    copy_kv,
    expected_greedy,
    finishes,
    generate,
    handoff,
    make_core,
    outputs,
    run_until_idle,
    spec_of,
    with_params,
)

from baton.engine.api import Broken, Computed, Evicted, NoRoom, Sampled, Started
from baton.wire.types import FinishReason, FirstToken, Token

PROMPT = tuple(range(10, 31))
SEEDED = with_params(temperature=1.0, seed=11)


@pytest.mark.parametrize("prompt_len", [1, 3, 4, 5, 7, 8, 9, 16, 17])
@pytest.mark.parametrize("max_step_tokens", [1, 3, 4, 512])
def test_generate_equals_the_model_at_every_length_and_chunk(prompt_len: int, max_step_tokens: int) -> None:
    core = make_core(max_step_tokens=max_step_tokens)
    prompt = PROMPT[:1] * prompt_len
    for _ in range(2):  # cold, then with a prefix hit
        assert generate(core, spec_of(prompt)) == {0: expected_greedy(prompt, 16)}
        assert_idle(core)
    assert core.stats().prefix_hit_tokens_total >= (prompt_len - 1) // 4 * 4


def test_the_answer_is_cached_for_the_next_turn() -> None:
    core = make_core()
    answer = generate(core, spec_of(PROMPT))[0]
    longer = (*PROMPT, *answer, 1, 2, 3)
    reservation = core.generate(spec_of(longer))
    assert reservation.num_cached == (len(PROMPT) + len(answer) - 1) // 4 * 4
    assert outputs(run_until_idle(core), reservation.handle) == {0: expected_greedy(longer, 16)}


def test_prefill_reports_chunks_and_one_token_per_choice_and_keeps_its_blocks() -> None:
    core = make_core(max_step_tokens=8)
    reservation = core.prefill(spec_of(PROMPT, choices=(0, 1, 2)))
    events = run_until_idle(core)
    assert isinstance(events[0], Started)
    assert [event.num_tokens for event in events if isinstance(event, Computed)] == [8, 16, 21]
    first = expected_greedy(PROMPT, 1)
    assert outputs(events, reservation.handle) == {0: first, 1: first, 2: first}
    assert core.stats().kv_blocks_used == len(reservation.block_ids) == 6
    core.release(reservation.handle)
    core.release(reservation.handle)
    assert_idle(core)
    assert core.stats().aborted_total == 0


def test_prefill_reports_its_cached_prefix_before_it_computes() -> None:
    core = make_core()
    core.release(core.prefill(spec_of(PROMPT)).handle)
    generate(core, spec_of(PROMPT))
    reservation = core.prefill(spec_of((*PROMPT[:12], 1, 2, 3)))
    assert reservation.num_cached == 12
    events = core.step()
    assert events[0] == Computed(reservation.handle, 12)
    assert isinstance(events[1], Started)
    assert events[1].num_cached == 12
    assert events[2] == Computed(reservation.handle, 15)


@pytest.mark.parametrize("params", [GREEDY, SEEDED, with_params(SEEDED, frequency_penalty=0.7, repetition_penalty=1.2)])
@pytest.mark.parametrize(("source_size", "target_size"), [(4, 4), (4, 16), (16, 4)])
@pytest.mark.parametrize("prompt_len", [3, 4, 5, 15, 16, 17])
def test_handoff_equals_one_engine(params: object, source_size: int, target_size: int, prompt_len: int) -> None:
    spec = spec_of(PROMPT[:prompt_len], params, choices=(0, 1, 2))  # type: ignore[arg-type]
    expected = generate(make_core(), spec)
    source, target = make_core(block_size=source_size), make_core(block_size=target_size)
    for _ in range(2):
        handle, tokens = handoff(source, target, spec)
        assert tokens == expected
        target.release(handle)
        assert_idle(source)
        assert_idle(target)


def test_choices_differ_under_one_seed_and_repeat_under_it() -> None:
    spec = spec_of(PROMPT, SEEDED, choices=(0, 1, 2))
    first, second = generate(make_core(), spec), generate(make_core(max_step_tokens=3), spec)
    assert first == second
    assert len({tuple(tokens) for tokens in first.values()}) == 3


def test_a_recovered_choice_goes_on_as_it_would_have() -> None:
    whole = generate(make_core(), spec_of(PROMPT, SEEDED, choices=(0, 1, 2)))
    for choice, tokens in whole.items():
        spec = spec_of(PROMPT, SEEDED, choices=(choice,), output_ids=tuple(tokens[:5]))
        assert generate(make_core(), spec) == {choice: tokens[5:]}
        _, resumed = handoff(make_core(), make_core(block_size=16), spec)
        assert resumed == {choice: tokens[5:]}


def test_activate_takes_more_output_ids_than_were_reserved() -> None:
    source, target = make_core(), make_core()
    reservation = target.reserve(spec_of(PROMPT[:20]))
    fenced = spec_of(PROMPT[:20], output_ids=tuple(expected_greedy(PROMPT[:20], 2)))
    tokens = expected_greedy(PROMPT[:20], 16)
    prefilled = source.prefill(fenced)
    sampled = [event for event in run_until_idle(source) if isinstance(event, Sampled)]
    assert [(event.index, event.token.id) for event in sampled] == [(2, tokens[2])]
    copy_kv(source, prefilled.block_ids, target, reservation.block_ids, reservation.num_cached, fenced.total_len)
    target.activate(reservation.handle, fenced, [FirstToken(0, sampled[0].token)])
    events = run_until_idle(target)
    assert outputs(events, reservation.handle) == {0: tokens[3:]}
    assert next(event.index for event in events if isinstance(event, Sampled)) == 3


def test_reserved_blocks_enter_the_prefix_cache_only_at_activation() -> None:
    core = make_core()
    reservation = core.reserve(spec_of(PROMPT))
    assert core.reserve(spec_of(PROMPT)).num_cached == 0
    core.activate(reservation.handle, spec_of(PROMPT), [FirstToken(0, Token(1), FinishReason.STOP)])
    assert core.reserve(spec_of(PROMPT)).num_cached == 20
    assert core.reserve(spec_of(PROMPT, tenant="other")).num_cached == 0


def test_activation_without_a_matching_reservation_is_refused() -> None:
    core = make_core()
    first = [FirstToken(0, Token(1))]
    with pytest.raises(ValueError, match="not reserved"):
        core.activate(99, spec_of(PROMPT), first)
    handle = core.reserve(spec_of(PROMPT)).handle
    for other in (spec_of(PROMPT[:-1]), spec_of((*PROMPT[:-1], 1)), spec_of(PROMPT, output_ids=(1,) * 40)):
        with pytest.raises(ValueError, match="are not for these"):
            core.activate(handle, other, first)
    with pytest.raises(ValueError, match="choices"):
        core.activate(handle, spec_of(PROMPT), [FirstToken(1, Token(1))])
    core.release(handle)
    assert_idle(core)


def test_reserve_is_all_or_nothing_and_counts_growth() -> None:
    core = make_core(num_blocks=10, growth_reserve=8)
    spec = spec_of(PROMPT[:9], with_params(max_tokens=100))
    handle = core.reserve(spec).handle
    assert core.stats().kv_blocks_used == 4  # 9 + 8 - 1 positions
    other = core.reserve(spec).handle
    with pytest.raises(NoRoom) as refused:
        core.reserve(spec)
    assert refused.value.reason == "no_blocks"
    assert core.stats().kv_blocks_used == 8
    for taken in (handle, other):
        core.release(taken)
    assert_idle(core)
    assert core.stats().aborted_total == 2


def test_busy_when_no_row_is_free() -> None:
    core = make_core(max_num_seqs=3)
    core.reserve(spec_of(PROMPT, choices=(0, 1)))
    for take in (core.reserve, core.generate):
        with pytest.raises(NoRoom) as refused:
            take(spec_of(PROMPT, choices=(0, 1)))
        assert refused.value.reason == "busy"
    for _ in range(3):
        core.prefill(spec_of(PROMPT))
    with pytest.raises(NoRoom, match="3 prompts"):
        core.prefill(spec_of(PROMPT))


def test_promised_blocks_are_there_when_others_take_the_rest() -> None:
    core = make_core(num_blocks=14, growth_reserve=16)
    expected = expected_greedy(PROMPT[:9], 16)
    first = core.generate(spec_of(PROMPT[:9], choices=(0, 1)))
    with pytest.raises(NoRoom):
        core.prefill(spec_of(PROMPT))
    core.prefill(spec_of(PROMPT[:16]))
    assert outputs(run_until_idle(core), first.handle) == {0: expected, 1: expected}
    assert core.stats().preemptions_total == 0


@pytest.mark.parametrize("params", [with_params(max_tokens=40), with_params(SEEDED, max_tokens=40)])
def test_preempted_generation_gives_the_same_text(params: object) -> None:
    prompts = [(*PROMPT[:8], index) for index in range(4)]
    alone = [generate(make_core(), spec_of(prompt, params))[0] for prompt in prompts]  # type: ignore[arg-type]
    core = make_core(num_blocks=20, growth_reserve=1)
    handles = [core.generate(spec_of(prompt, params)).handle for prompt in prompts]  # type: ignore[arg-type]
    events = run_until_idle(core)
    assert [outputs(events, handle)[0] for handle in handles] == alone
    assert core.stats().preemptions_total > 0
    assert not any(isinstance(event, Evicted | Broken) for event in events)
    ends = [next(i for i, e in enumerate(events) if isinstance(e, Sampled) and e.handle == h and e.finish) for h in handles]
    assert ends[0] == min(ends), "the oldest is never preempted"


def test_preempted_choices_of_one_request_finish() -> None:
    params = with_params(SEEDED, max_tokens=40)
    expected = generate(make_core(), spec_of(PROMPT, params, choices=(0, 1, 2)))
    core = make_core(num_blocks=20, growth_reserve=1)
    assert generate(core, spec_of(PROMPT, params, choices=(0, 1, 2))) == expected
    assert core.stats().preemptions_total > 0
    assert_idle(core)


def test_a_decode_engine_hands_the_youngest_back() -> None:
    source, target = make_core(), make_core(num_blocks=16, growth_reserve=1)
    params = with_params(max_tokens=40)
    handles = []
    for index in range(3):
        spec = spec_of((*PROMPT[:8], index), params)
        reservation, prefilled = target.reserve(spec), source.prefill(spec)
        token = next(event.token for event in run_until_idle(source) if isinstance(event, Sampled))
        payload = source.pool.gather
        for start, end in ((0, 4), (4, 8), (8, 9)):
            target.pool.scatter(reservation.block_ids, start, end, 0, 2, payload(prefilled.block_ids, start, end, 0, 2))
        source.release(prefilled.handle)
        target.activate(reservation.handle, spec, [FirstToken(0, token)])
        handles.append(reservation.handle)
    events = run_until_idle(target)
    evicted = [event.handle for event in events if isinstance(event, Evicted)]
    assert evicted[0] == handles[-1]
    assert handles[0] not in evicted
    assert set(finishes(events, handles[0])) == {0}
    for handle in handles:
        target.release(handle)
    assert_idle(target)
    assert target.stats().preemptions_total == len(evicted)


def test_a_request_that_outgrows_the_pool_breaks_and_the_engine_lives() -> None:
    core = make_core(num_blocks=6, growth_reserve=1)
    handle = core.generate(spec_of(PROMPT[:9], with_params(max_tokens=100))).handle
    events = run_until_idle(core)
    assert isinstance(events[-1], Broken)
    assert events[-1].request_fault
    core.release(handle)
    assert generate(core, spec_of(PROMPT[:4])) == {0: expected_greedy(PROMPT[:4], 16)}


def test_a_lone_row_waits_for_blocks_that_a_reservation_holds() -> None:
    core = make_core(num_blocks=8, growth_reserve=1)
    running = core.generate(spec_of(PROMPT[:9], with_params(max_tokens=20)))
    core.step()
    reserved = core.reserve(spec_of(PROMPT[:13])).handle
    early = run_until_idle(core)
    assert not core.has_work
    assert not finishes(early, running.handle)
    core.release(reserved)
    late = run_until_idle(core)
    assert finishes(late, running.handle) == {0: FinishReason.LENGTH}


def test_end_tokens_end_a_choice() -> None:
    tokens = expected_greedy(PROMPT, 16)
    end = next(token for index, token in enumerate(tokens) if index >= 4 and token not in tokens[:index])
    at = tokens.index(end)
    core = make_core()
    handle = core.generate(spec_of(PROMPT, with_params(eos_ids=(end,)))).handle
    events = run_until_idle(core)
    assert outputs(events, handle) == {0: tokens[: at + 1]}
    assert finishes(events, handle) == {0: FinishReason.STOP}
    assert_idle(core)
    assert generate(core, spec_of(PROMPT, with_params(eos_ids=(end,), ignore_eos=True))) == {0: tokens}
    assert generate(core, spec_of(PROMPT, with_params(stop_ids=(end,), ignore_eos=True))) == {0: tokens[: at + 1]}
    least = generate(core, spec_of(PROMPT, with_params(eos_ids=(end,), min_tokens=at + 1)))[0]
    assert end not in least[: at + 1]
    assert len(least) > at + 1


def test_the_context_limit_ends_a_choice() -> None:
    core = make_core(num_blocks=2000)
    prompt = (1,) * 4090
    handle = core.generate(spec_of(prompt)).handle
    events = run_until_idle(core)
    assert len(outputs(events, handle)[0]) == 6
    assert finishes(events, handle) == {0: FinishReason.LENGTH}


def test_finish_stops_one_choice() -> None:
    core = make_core()
    handle = core.generate(spec_of(PROMPT, choices=(0, 1))).handle
    for _ in range(4):
        core.step()
    core.finish(handle, 0)
    core.finish(handle, 0)
    rest = outputs(run_until_idle(core), handle)
    assert list(rest) == [1]
    assert_idle(core)


@pytest.mark.parametrize("num_steps", [0, 1, 2, 5])
def test_release_in_any_state_frees_everything(num_steps: int) -> None:
    core = make_core(max_step_tokens=8)
    handles = [take(spec_of(PROMPT, choices=(0, 1))).handle for take in (core.prefill, core.generate, core.reserve)]
    for _ in range(num_steps):
        core.step()
        core.check_integrity()
    for handle in handles:
        core.release(handle)
    assert_idle(core)
    assert not core.has_work or core.step() is not None


def test_a_failing_step_fails_its_requests_only() -> None:
    def fail(batch: object) -> None:
        raise RuntimeError("kernel said no")

    core = make_core(model=FakeModel())
    doomed = [core.generate(spec_of(PROMPT)).handle, core.prefill(spec_of(PROMPT)).handle]
    core.model.before_step = fail  # type: ignore[attr-defined]
    broken = [event for event in core.step() if isinstance(event, Broken)]
    assert [event.handle for event in broken] == doomed
    assert "kernel said no" in broken[0].message
    assert not any(event.request_fault for event in broken), "another engine may manage"
    core.model.before_step = lambda batch: None  # type: ignore[attr-defined]
    assert core.stats().kv_blocks_used > 0, "blocks stay until release"
    for handle in doomed:
        core.release(handle)
    assert_idle(core)
    assert generate(core, spec_of(PROMPT)) == {0: expected_greedy(PROMPT, 16)}


def test_a_failing_draw_fails_its_request_only() -> None:
    core = make_core()
    bad = core.generate(spec_of(PROMPT[:5], with_params(temperature=1.0, top_k="many"))).handle
    good = core.generate(spec_of(PROMPT)).handle
    events = run_until_idle(core)
    assert [(event.handle, event.request_fault) for event in events if isinstance(event, Broken)] == [(bad, True)]
    assert outputs(events, good) == {0: expected_greedy(PROMPT, 16)}
    core.release(bad)
    assert_idle(core)


def test_what_would_fail_a_step_is_refused_at_the_door() -> None:
    core = make_core()
    for spec in (
        spec_of(()),
        spec_of((1, 64)),
        spec_of((-1,)),
        spec_of(PROMPT, with_params(logit_bias=((64, 1.0),))),
        spec_of((1,) * 4097),
        spec_of(PROMPT, choices=(0, 1), output_ids=(1,)),
    ):
        for take in (core.prefill, core.generate, core.reserve):
            with pytest.raises(ValueError, match=r"token ids must|do not fit|single choice"):
                take(spec)
    assert_idle(core)


def test_decode_rows_and_prefill_chunks_share_a_step() -> None:
    core = make_core(max_step_tokens=6)
    running = core.generate(spec_of(PROMPT[:4])).handle
    core.step()
    core.generate(spec_of(PROMPT))
    before = core.model.num_rows  # type: ignore[attr-defined]
    events = core.step()
    assert core.model.num_rows - before == 6  # type: ignore[attr-defined]
    assert [event.handle for event in events if isinstance(event, Sampled)] == [running]
