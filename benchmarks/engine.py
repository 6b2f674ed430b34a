"""The int8 engine on one core beside that core's measured limits: `python -m benchmarks.engine [--quick] [--svg FILE]`.

Prints a table; its last line is one JSON object. Every number is the best of several turns in CPU time; a turn that had its
core for less than 97 % of its wall time counts only if all were so. Ratios to other engines are null: not measured here.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from baton.engine.kernels.cpu.decoder import NativeDecoder
from baton.engine.kernels.interface import StepBatch
from baton.engine.weights import bundled, load_model

BLOCK = 64
CHUNK = 512
MIN_SHARE = 0.97


def best(rounds: int, *works: Callable[[], object]) -> list[float]:
    """Shortest CPU seconds of each of `works`, which take turns."""
    found: list[list[tuple[bool, float]]] = [[] for _ in works]
    for _ in range(rounds + 1):
        for work, turns in zip(works, found, strict=True):
            wall, cpu = time.perf_counter(), time.thread_time()
            work()
            cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
            turns.append((cpu < MIN_SHARE * wall, cpu))
    return [min(turns[1:])[1] for turns in found]


def step(count: int, context: int, rows: int = 1) -> StepBatch:
    """`count` sequences that have `context` positions and get `rows` more."""
    blocks = -(-(context + rows) // BLOCK)
    tables = torch.arange(count * blocks, dtype=torch.int32).view(count, blocks)
    at = torch.arange(context, context + rows)
    slots = torch.cat([table[at // BLOCK].long() * BLOCK + at % BLOCK for table in tables])
    starts, ends = torch.arange(0, count * rows + 1, rows, dtype=torch.int32), torch.full((count,), context + rows)
    ids = torch.randint(0, 40_000, (count * rows,), generator=torch.Generator().manual_seed(0))
    return StepBatch(ids, at.repeat(count), slots, tables, starts, ends.int(), starts[1:].long() - 1)


class Bench:
    """One decoder and one pool, big enough for every case."""

    def __init__(self, rounds: int, tokens: int):
        model = load_model(bundled(), dtype="int8").model
        if not isinstance(model, NativeDecoder):
            raise SystemExit("this benchmark is about the CPU kernels, and this machine cannot build them")
        self.model, self.spec, self.rounds = model, model.spec, rounds
        shape = (-(-tokens // BLOCK), self.spec.num_layers, 2, BLOCK, self.spec.num_kv_heads, self.spec.head_dim)
        self.pool = torch.zeros(shape, dtype=torch.bfloat16)
        self.memory = np.ones(256 << 17, np.uint64)

    def bandwidth(self) -> float:
        """Bytes a second that one core reads: numpy finding the largest of 256 MiB of numbers."""
        return self.memory.nbytes / best(self.rounds * 2, self.memory.max)[0]

    def decode(self, count: int, context: int) -> float:
        batch = step(count, context)
        return best(self.rounds, lambda: self.model.forward(batch, self.pool))[0]

    def prefill(self, length: int) -> float:
        chunks = [step(1, at, min(CHUNK, length - at)) for at in range(0, length, CHUNK)]
        return best(max(1, self.rounds // 3), lambda: [self.model.forward(chunk, self.pool) for chunk in chunks])[0]

    def gemm(self, rows: int) -> float:
        """Seconds that torch's 8-bit products (no scales, int32 out) take for the layers' shapes and `rows` rows."""
        spec = self.spec
        total = 0.0
        for n, k in (
            (spec.query_size + 2 * spec.kv_size, spec.hidden),
            (spec.hidden, spec.query_size),
            (2 * spec.ffn, spec.hidden),
            (spec.hidden, spec.ffn),
        ):
            x, w = (torch.randint(-127, 127, shape, dtype=torch.int8) for shape in ((rows, k), (n, k)))
            total += best(self.rounds, lambda x=x, w=w: torch._int_mm(x, w.T))[0]  # type: ignore[misc]
        return total * spec.num_layers

    def kv_bytes(self, count: int, context: int) -> int:
        return count * context * self.spec.num_layers * 2 * self.spec.kv_size * 2


def measure(quick: bool) -> dict[str, object]:
    bench = Bench(6 if quick else 20, 32 * (2048 + BLOCK))
    lengths, batches, contexts = (128, 512, 2048), (1, 4, 16, 32), (64, 512) if quick else (64, 512, 2048)
    read = bench.bandwidth()
    decode = {f"b{count}_c{context}": bench.decode(count, context) for count in batches for context in contexts}
    prefill = {length: bench.prefill(length) for length in (lengths if quick else (*lengths, 7000))}
    short, long = bench.decode(16, 64), bench.decode(16, 2048)
    moved = bench.model.weight_bytes + bench.kv_bytes(1, 64)
    attention = (bench.kv_bytes(16, 2048) - bench.kv_bytes(16, 64)) / (long - short)
    return {
        "weights": "Q4_1 groups of 32, Q8_0 embedding and head",
        "isa": bench.model.isa,
        "read_gb_s": read / 1e9,
        "decode_tokens_s": {name: int(name[1:].split("_")[0]) / seconds for name, seconds in decode.items()},
        "prefill_tokens_s": {str(length): length / seconds for length, seconds in prefill.items()},
        "decode_b1_vs_llamacpp": None,
        "decode_b16_vs_vllm": None,
        "prefill_vs_vllm": None,
        "decode_b1_bandwidth": moved / decode["b1_c64"] / read,
        "prefill_mfu": 2048 / CHUNK * bench.gemm(CHUNK) / prefill[2048],
        "attention_bandwidth": attention / read,
    }


def roofline(results: dict[str, object]) -> str:
    """An SVG of the three fractions of a limit."""
    names = ("decode_b1_bandwidth", "prefill_mfu", "attention_bandwidth")
    bars = []
    for row, name in enumerate(names):
        value, y = float(str(results[name])), 30 + 40 * row
        bars.append(f'<text x="10" y="{y + 14}">{name}</text><rect x="190" y="{y}" width="300" height="20" fill="#e4e4e4"/>')
        bars.append(f'<rect x="190" y="{y}" width="{300 * min(value, 1):.0f}" height="20" fill="#2b6cb0"/>')
        bars.append(f'<text x="500" y="{y + 14}">{value:.0%}</text>')
    head = '<svg xmlns="http://www.w3.org/2000/svg" width="560" height="160" font-family="sans-serif" font-size="13">'
    return f'{head}<text x="190" y="18">fraction of the limit measured in the same run</text>{"".join(bars)}</svg>\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and shapes")
    parser.add_argument("--svg", type=Path, help="write the picture of fractions here")
    flags = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    results = measure(flags.quick)
    for name, value in results.items():
        print(f"{name:24} {value}")
    if flags.svg:
        flags.svg.write_text(roofline(results))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
