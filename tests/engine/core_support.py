"""A model that is all bookkeeping: what it says next depends on every KV byte it can see, and plain Python says the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from baton.engine.api import EngineEvent, Sampled
from baton.engine.config import EngineConfig
from baton.engine.core import EngineCore
from baton.engine.kernels.interface import StepBatch
from baton.wire.types import FinishReason, FirstToken, Identity, RequestSpec, SamplingParams

VOCAB = 64
IDENTITY = Identity("fake", "digest", "none", "exact", "none", "tokenizer", "template", 4096)
GREEDY = SamplingParams(max_tokens=16, temperature=0)


@dataclass(frozen=True)
class FakeShape:
    num_layers: int = 2
    num_kv_heads: int = 2
    head_dim: int = 4
    vocab_size: int = VOCAB
    max_model_len: int = 4096


def hash_of(ids: Sequence[int]) -> int:
    state = 7
    for token_id in ids:
        state = (state * 31 + token_id + 1) % 1_000_003
    return state


def logits_of(state: int) -> torch.Tensor:
    """A few likely ids, all set by `state`, so that sampling has a choice."""
    row = torch.zeros(VOCAB)
    for rank in range(8):
        row[(state // 7**rank) % VOCAB] += 6.0 - 0.5 * rank
    return row


@dataclass
class FakeModel:
    """Writes each token id into every layer, head and dim of its slot; reads the whole sequence back through the table."""

    spec: FakeShape = field(default_factory=FakeShape)
    before_step: Callable[[StepBatch], None] = lambda batch: None
    num_steps: int = 0
    num_rows: int = 0

    def forward(self, batch: StepBatch, pool: torch.Tensor) -> torch.Tensor:
        self.before_step(batch)
        self.num_steps += 1
        self.num_rows += len(batch.token_ids)
        size = pool.shape[3]
        for token_id, slot in zip(batch.token_ids.tolist(), batch.slots.tolist(), strict=True):
            pool[slot // size, :, :, slot % size] = token_id
        rows = {}
        for index, seq_len in enumerate(batch.seq_lens.tolist()):
            rows[int(batch.query_start[index + 1]) - 1] = self.read(pool, batch.block_tables[index].tolist(), seq_len)
        return torch.stack([rows[row] for row in batch.logit_rows.tolist()] or [torch.zeros(VOCAB)])[: len(batch.logit_rows)]

    def read(self, pool: torch.Tensor, table: Sequence[int], seq_len: int) -> torch.Tensor:
        size = pool.shape[3]
        kept = torch.cat([pool[block_id] for block_id in table], dim=2)[:, :, :seq_len].flatten(start_dim=3)
        assert (kept == kept[:1, :1, :, :1]).all(), "layers, K and V, heads or dims disagree"
        assert len(table) * size >= seq_len
        return logits_of(hash_of(kept[0, 0, :, 0].int().tolist()))


def expected_greedy(prompt_ids: Sequence[int], num_tokens: int) -> list[int]:
    ids = list(prompt_ids)
    for _ in range(num_tokens):
        ids.append(int(logits_of(hash_of(ids)).argmax()))
    return ids[len(prompt_ids) :]


def make_core(num_blocks: int = 64, block_size: int = 4, model: FakeModel | None = None, **config: object) -> EngineCore:
    return EngineCore(model or FakeModel(), IDENTITY, EngineConfig(num_blocks, block_size, **config))  # type: ignore[arg-type]


def spec_of(prompt_ids: Sequence[int], params: SamplingParams = GREEDY, **fields: object) -> RequestSpec:
    return RequestSpec(tuple(prompt_ids), params, **fields)  # type: ignore[arg-type]


def run_until_idle(core: EngineCore, max_steps: int = 2000) -> list[EngineEvent]:
    events: list[EngineEvent] = []
    for _ in range(max_steps):
        if not core.has_work:
            return events
        events += core.step()
        core.check_integrity()
    raise AssertionError(f"still working after {max_steps} steps")


def outputs(events: Sequence[EngineEvent], handle: int) -> dict[int, list[int]]:
    """Token ids by choice; indices must be consecutive."""
    found: dict[int, list[Sampled]] = {}
    for event in events:
        if isinstance(event, Sampled) and event.handle == handle:
            found.setdefault(event.choice, []).append(event)
    for tokens in found.values():
        assert [token.index for token in tokens] == list(range(tokens[0].index, tokens[0].index + len(tokens)))
    return {choice: [token.token.id for token in tokens] for choice, tokens in found.items()}


def finishes(events: Sequence[EngineEvent], handle: int) -> dict[int, FinishReason]:
    return {e.choice: e.finish for e in events if isinstance(e, Sampled) and e.handle == handle and e.finish is not None}


def assert_idle(core: EngineCore) -> None:
    core.check_integrity()
    stats = core.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_blocks_used, stats.queued_prefill_tokens) == (0, 0, 0, 0)


def handoff(source: EngineCore, target: EngineCore, spec: RequestSpec) -> tuple[int, dict[int, list[int]]]:
    """Prefill on `source`, copy KV block by block to `target`, activate there: the decode handle and every choice's tokens."""
    reservation = target.reserve(spec)
    prefilled = source.prefill(spec)
    events = run_until_idle(source)
    first = [
        FirstToken(event.choice, event.token, event.finish)
        for event in events
        if isinstance(event, Sampled) and event.handle == prefilled.handle
    ]
    copy_kv(source, prefilled.block_ids, target, reservation.block_ids, reservation.num_cached, spec.total_len)
    source.release(prefilled.handle)
    target.activate(reservation.handle, spec, first)
    decoded = outputs(run_until_idle(target), reservation.handle)
    return reservation.handle, {token.choice: [token.token.id, *decoded.get(token.choice, [])] for token in first}


def copy_kv(
    source: EngineCore, source_ids: Sequence[int], target: EngineCore, target_ids: Sequence[int], start: int, end: int
) -> None:
    size, num_layers = source.pool.layout.block_size, source.pool.layout.num_layers
    while start < end:
        until = min(end, (start // size + 1) * size)
        for layer in range(num_layers):
            payload = source.pool.gather(source_ids, start, until, layer, layer + 1)
            target.pool.scatter(target_ids, start, until, layer, layer + 1, payload)
        start = until


def generate(core: EngineCore, spec: RequestSpec) -> dict[int, list[int]]:
    """Every choice's tokens from one engine that does both phases."""
    handle = core.generate(spec).handle
    tokens = outputs(run_until_idle(core), handle)
    core.release(handle)
    return tokens


def with_params(params: SamplingParams = GREEDY, **changes: object) -> SamplingParams:
    return replace(params, **changes)  # type: ignore[arg-type]
