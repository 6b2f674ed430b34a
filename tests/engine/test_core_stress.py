"""Random lives on a pool that is too small for them: whatever happens, every token is right and every block comes back."""

from __future__ import annotations

import random

import pytest
from core_support import assert_idle, copy_kv, expected_greedy, make_core, spec_of, with_params

from baton.engine.api import Broken, EngineEvent, NoRoom, Sampled
from baton.engine.core import EngineCore
from baton.wire.types import FirstToken, RequestSpec

NUM_ACTIONS = 120


class Lives:
    """Requests on one engine that prefills and decodes; some hand themselves over to themselves through a reservation."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.core: EngineCore = make_core(
            num_blocks=self.random.choice([12, 24]),
            block_size=self.random.choice([3, 4, 5]),
            growth_reserve=self.random.choice([0, 1, 6]),
            max_step_tokens=self.random.choice([3, 9, 64]),
            max_num_seqs=8,
        )
        self.specs: dict[int, RequestSpec] = {}
        self.tokens: dict[int, dict[int, list[int]]] = {}
        self.first: dict[int, list[FirstToken]] = {}
        self.reserved_for: dict[int, tuple[int, tuple[int, ...], tuple[int, ...], int]] = {}
        self.generated: set[int] = set()

    def spec(self) -> RequestSpec:
        prompt = [self.random.randrange(4) for _ in range(self.random.randint(1, 20))]
        choices = tuple(range(self.random.choice([1, 1, 2, 3])))
        return spec_of(prompt, with_params(max_tokens=self.random.randint(1, 12)), choices=choices)

    def start(self) -> None:
        spec = self.spec()
        try:
            if self.random.random() < 0.5:
                handle = self.core.generate(spec).handle
                self.generated.add(handle)
                self.follow(handle, spec)
                return
            reservation = self.core.reserve(spec)
            self.follow(reservation.handle, spec)
            prefilled = self.core.prefill(spec)
        except NoRoom:
            return
        self.first[prefilled.handle] = []
        self.reserved_for[prefilled.handle] = (
            reservation.handle,
            prefilled.block_ids,
            reservation.block_ids,
            reservation.num_cached,
        )

    def follow(self, handle: int, spec: RequestSpec) -> None:
        self.specs[handle] = spec
        self.tokens[handle] = {choice: [] for choice in spec.choices}

    def step(self) -> None:
        for event in self.core.step():
            self.take(event)
        self.core.check_integrity()
        for prefilled, first in list(self.first.items()):
            reserved = self.reserved_for[prefilled][0]
            if reserved in self.specs and len(first) == len(self.specs[reserved].choices):
                self.hand_over(prefilled, first)

    def take(self, event: EngineEvent) -> None:
        assert not isinstance(event, Broken), event
        if isinstance(event, Sampled) and event.handle in self.first:
            self.first[event.handle].append(FirstToken(event.choice, event.token, event.finish))
        elif isinstance(event, Sampled) and event.handle in self.tokens:
            tokens = self.tokens[event.handle][event.choice]
            assert event.index == len(tokens)
            tokens.append(event.token.id)

    def hand_over(self, prefilled: int, first: list[FirstToken]) -> None:
        reserved, source_ids, target_ids, num_cached = self.reserved_for.pop(prefilled)
        spec = self.specs[reserved]
        if num_cached < spec.total_len:
            copy_kv(self.core, source_ids, self.core, target_ids, num_cached, spec.total_len)
        self.core.activate(reserved, spec, first)
        for token in first:
            self.tokens[reserved][token.choice].append(token.token.id)
        del self.first[prefilled]
        self.core.release(prefilled)

    def leave_one(self) -> None:
        if self.specs:
            self.leave(self.random.choice(list(self.specs)))

    def leave(self, handle: int) -> None:
        self.check(handle)
        self.core.release(handle)
        del self.specs[handle]
        for prefilled in [p for p, (reserved, *_) in self.reserved_for.items() if reserved == handle]:
            self.core.release(prefilled)
            del self.reserved_for[prefilled], self.first[prefilled]

    def check(self, handle: int) -> None:
        spec = self.specs[handle]
        expected = expected_greedy(spec.prompt_ids, spec.params.max_tokens)
        for tokens in self.tokens[handle].values():
            assert tokens == expected[: len(tokens)]

    def end(self) -> None:
        self.run_dry()
        for handle in set(self.specs) - self.generated:
            self.leave(handle)
        self.run_dry()
        for handle in list(self.specs):
            assert all(len(tokens) == self.specs[handle].params.max_tokens for tokens in self.tokens[handle].values())
            self.leave(handle)

    def run_dry(self) -> None:
        for _ in range(3000):
            if not self.core.has_work:
                return
            self.step()
        raise AssertionError("the engine works for ever")


@pytest.mark.parametrize("seed", range(30))
def test_random_lives(seed: int) -> None:
    lives = Lives(seed)
    for _ in range(NUM_ACTIONS):
        lives.random.choices([lives.start, lives.step, lives.leave_one], [3, 6, 1])[0]()
    lives.end()
    assert_idle(lives.core)
    assert lives.core.stats().generated_tokens_total > 0


def test_the_lives_do_meet_preemption_and_prefix_hits() -> None:
    preemptions = hits = 0
    for seed in range(30, 40):
        lives = Lives(seed)
        for _ in range(NUM_ACTIONS):
            lives.random.choices([lives.start, lives.step, lives.leave_one], [3, 6, 1])[0]()
        lives.end()
        preemptions += lives.core.stats().preemptions_total
        hits += lives.core.stats().prefix_hit_tokens_total
    assert preemptions > 0
    assert hits > 0
