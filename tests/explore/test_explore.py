"""The protocol's promises hold in every reachable state, and the search would notice if they did not."""

from __future__ import annotations

import pytest

from tests.explore.mutants import MUTANTS
from tests.explore.scenarios import QUICK, WANDERED
from tests.explore.search import explore, wander
from tests.explore.world import Scenario, Violation


@pytest.mark.parametrize("scenario", QUICK, ids=lambda scenario: scenario.name)
def test_every_order_keeps_the_promises(scenario, capsys):
    found = explore(scenario, max_states=200_000)
    with capsys.disabled():
        print(f"\n{scenario.name}: {found.num_states} states, no violation")
    assert found.num_endings > 0


@pytest.mark.parametrize("seed", [1, 2])
def test_two_faults_in_any_order_keep_the_promises_on_random_walks(seed, capsys):
    num_steps = wander(WANDERED, 800, seed)
    with capsys.disabled():
        print(f"\n{WANDERED.name}: {num_steps} steps of random walks from seed {seed}, no violation")


def test_random_walks_find_a_broken_machine():
    broken = next(mutant for mutant in MUTANTS if mutant.machine.__name__ == "IgnoresEpochs")
    with pytest.raises(Violation, match="IgnoresEpochs"):
        wander(broken.scenario, 400, seed=1)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.machine.__name__)
def test_a_broken_machine_is_found_out(mutant):
    with pytest.raises(Violation, match=mutant.machine.__name__):
        explore(mutant.scenario, max_states=100_000, shortest=True)


def test_a_link_that_trusts_an_old_hello_is_found_out():
    trusting = Scenario("trusting", faults=("break_link",), num_faults=1, prompt_len=1, slow_writes=False, trusts_hello=True)
    with pytest.raises(Violation, match="P0 still holds a lease"):
        explore(trusting, max_states=100_000, shortest=True)
