"""F28: a request whose numbers break inside the engine fails alone."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.faults.talk import counted, reference, status_and_body, until, words
from tests.support import checkpoints
from tests.support.asking import streamed

POISON = 7
"""The token whose embedding is not a number: so is every logit of a sequence that has it."""


@pytest.fixture(scope="session")
def poisoned(tmp_path_factory):
    path = checkpoints.random_llama(tmp_path_factory.mktemp("checkpoints") / "poisoned")
    tensors = load_file(path / "model.safetensors")
    tensors["model.embed_tokens.weight"][POISON] = torch.nan
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


@pytest.mark.parametrize("where", ["prefill", "decode"])
async def test_f28_sampling_fails_for_one(faulty, poisoned, where):
    cluster = faulty(poisoned, 1, 1, worker={"kv_blocks": 128})
    rng = random.Random(where)
    mates = [{"model": cluster.model, "prompt": words(rng, 40), "max_tokens": 300, "temperature": 0} for _ in range(3)]
    expected = [await streamed(cluster, fields) for fields in mates]
    bad = mates[0] | {"prompt": words(rng, 30) + chr(POISON) * (where == "prefill"), "max_tokens": 20}
    if where == "decode":
        bad["logit_bias"] = {str(POISON): 100}
    tokens = counted(cluster, "baton_generation_tokens_total")
    with cluster.decode[0].gate.slowed(0.005):
        asked = [asyncio.create_task(streamed(cluster, fields)) for fields in mates]
        await until(lambda: counted(cluster, "baton_generation_tokens_total") > tokens + 30, "the others run")
        status, _, body = await status_and_body(cluster, bad)
        assert not any(task.done() for task in asked)
    assert status == 500
    assert body["error"]["type"] == "internal_error"
    assert await asyncio.gather(*asked) == expected
    await _blocks_are_clean(cluster, rng)


async def _blocks_are_clean(cluster, rng) -> None:
    """Requests that fill the pool several times over, and with it the blocks that held what is not a number."""
    for _ in range(24):
        fields = {"model": cluster.model, "prompt": words(rng, 100), "max_tokens": 30, "temperature": 0}
        assert await streamed(cluster, fields) == await reference(cluster, fields)
