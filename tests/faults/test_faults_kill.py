"""kill -9 of a worker in mid-request: the text goes on as if nothing had happened."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.faults.trial import run_trial

TRIALS = int(os.environ.get("BATON_TRIALS", "50"))
FIRST_SEED = int(os.environ.get("BATON_SEED", "1"))


@pytest.mark.timeout(60 + 10 * TRIALS)
async def test_a_killed_worker_changes_no_answer(faulty, random_model):
    """F1, F2, F3 and the judges' fifty trials. A seed that fails is run alone by BATON_SEED=seed BATON_TRIALS=1."""
    cluster = faulty(random_model, 2, 2)
    done: Counter[str] = Counter()
    seed = FIRST_SEED
    while done.total() < TRIALS:
        killed = await run_trial(cluster, seed)
        if killed is not None:
            done[killed.rpartition(" ")[0]] += 1
        seed += 1
    print(f"{done.total()} answers unharmed, seeds {FIRST_SEED} to {seed - 1}: {dict(done)}")
