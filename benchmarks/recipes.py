"""The int8 recipe's error beside float32 on the bundled model: `python -m benchmarks.recipes`. Prints a table, then JSON.

Over every position of recipes.txt: logit error, agreement of the most likely token, perplexity; and of greedy continuations.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from tokenizers import Tokenizer

from baton.engine.kernels.interface import StepBatch
from baton.engine.weights import bundled, load_model
from baton.engine.weights.backend import AnyDecoder

TEXT = Path(__file__).with_suffix(".txt").read_text()
STARTS, CONTINUED = 8, 48


def logits_of(model: AnyDecoder, ids: list[int], dtype: str) -> torch.Tensor:
    """Logits of every position of one prefill."""
    spec, count = model.spec, len(ids)
    kv = torch.bfloat16 if dtype == "int8" else torch.float32
    pool = torch.zeros(1, spec.num_layers, 2, count, spec.num_kv_heads, spec.head_dim, dtype=kv)
    rows, one = torch.arange(count), torch.tensor([count], dtype=torch.int32)
    table, start = torch.zeros(1, 1, dtype=torch.int32), torch.tensor([0, count], dtype=torch.int32)
    return model.forward(StepBatch(torch.tensor(ids), rows, rows, table, start, one, rows), pool)


def continuation(model: AnyDecoder, ids: list[int], dtype: str) -> list[int]:
    """Greedy tokens after `ids`, each by a decode step over one block."""
    spec, size = model.spec, len(ids) + CONTINUED
    kv = torch.bfloat16 if dtype == "int8" else torch.float32
    pool = torch.zeros(1, spec.num_layers, 2, size, spec.num_kv_heads, spec.head_dim, dtype=kv)
    table, chosen, fed = torch.zeros(1, 1, dtype=torch.int32), list(ids), 0
    while len(chosen) < size:
        at, new = torch.arange(fed, len(chosen)), torch.tensor(chosen[fed:])
        start, lens = torch.tensor([0, len(new)], dtype=torch.int32), torch.tensor([len(chosen)], dtype=torch.int32)
        row = model.forward(StepBatch(new, at, at, table, start, lens, torch.tensor([len(new) - 1])), pool)
        fed = len(chosen)
        chosen.append(int(row[0].argmax()))
    return chosen[len(ids) :]


def perplexity(logits: torch.Tensor, ids: list[int]) -> float:
    return math.exp(float(torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]))))


def agreed(ours: list[int], exact: list[int]) -> int:
    """Tokens before the first that differs."""
    return next((i for i, (a, b) in enumerate(zip(ours, exact, strict=True)) if a != b), len(exact))


def measure() -> dict[str, float]:
    exact, ours = (load_model(bundled(), dtype=dtype) for dtype in ("float32", "int8"))
    ids = Tokenizer.from_str(exact.card.tokenizer_json).encode(TEXT).ids
    expected, found = logits_of(exact.model, ids, "float32"), logits_of(ours.model, ids, "int8")
    starts = [ids[at : at + 32] for at in range(0, len(ids) - 32, (len(ids) - 32) // STARTS)][:STARTS]
    shared = [agreed(continuation(ours.model, s, "int8"), continuation(exact.model, s, "float32")) for s in starts]
    off = found - expected
    return {
        "positions": len(ids),
        "logit_rms_error": float(off.square().mean().sqrt()),
        "logit_relative_error": float(off.norm() / (expected - expected.mean(1, keepdim=True)).norm()),
        "logit_max_error": float(off.abs().max()),
        "top1_agreement": float((found.argmax(1) == expected.argmax(1)).float().mean()),
        "greedy_identical": sum(count == CONTINUED for count in shared) / STARTS,
        "greedy_tokens_before_a_difference": sum(shared) / STARTS,
        "perplexity_float32": perplexity(expected, ids),
        "perplexity_int8": perplexity(found, ids),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    results = measure()
    for name, value in results.items():
        print(f"{name:36} {value:.4f}")
    print(json.dumps(results))
