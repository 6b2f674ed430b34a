"""An engine that fails inside a living process: the process ends, and the answer is another worker's, unharmed."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.faults.talk import counted, owner, reference, stopped_at, talking, words
from tests.support.answers import assert_same
from tests.support.processes import Cluster


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_an_engine_that_fails_ends_its_process_and_no_answer(faulty, random_model, role: str) -> None:
    cluster: Cluster = faulty(random_model, 2, 2)
    fields = {
        "model": cluster.model,
        "prompt": words(random.Random(role), 200),
        "max_tokens": 12,
        "seed": 3,
        "ignore_eos": True,
    }
    workers = getattr(cluster, role)
    accepted = counted(cluster, "baton_generation_tokens_total")
    async with talking(cluster, fields) as task:
        with workers[0].gate.limited(1), workers[1].gate.limited(1):
            gate = await stopped_at([worker.gate for worker in workers], task)
            assert gate is not None
            gate.fail()
        victim = owner(workers, gate)
        assert await asyncio.to_thread(victim.process.wait) == 1
        answer = await task
    assert_same(answer, await reference(cluster, fields), role)
    assert counted(cluster, "baton_generation_tokens_total") == accepted + 12
    assert "error: the engine failed: RuntimeError: the test breaks the engine" in victim.process.log.read_text()
    victim.restart()
