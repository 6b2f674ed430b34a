"""What the engine counts, and the snapshot that others read."""

from __future__ import annotations

from dataclasses import dataclass

from baton.engine.api import EngineStats
from baton.engine.scheduler import Scheduler


@dataclass(slots=True)
class Counters:
    """Sums since the start of the process."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_hit_tokens: int = 0
    prefix_query_tokens: int = 0
    aborted: int = 0
    last_step_s: float = 0.0

    def snapshot(self, scheduler: Scheduler) -> EngineStats:
        """Promised blocks count as used: what is left is what the next request can get."""
        blocks, waiting = scheduler.blocks, scheduler.waiting
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=len(waiting),
            kv_blocks_used=blocks.num_used,
            kv_blocks_total=blocks.num_blocks,
            kv_blocks_cached=blocks.num_kept,
            queued_prefill_tokens=sum(sequence.num_uncomputed for sequence in waiting),
            prompt_tokens_total=self.prompt_tokens,
            generated_tokens_total=self.generated_tokens,
            prefix_hit_tokens_total=self.prefix_hit_tokens,
            prefix_query_tokens_total=self.prefix_query_tokens,
            preemptions_total=scheduler.num_preempted,
            aborted_total=self.aborted,
            last_step_s=self.last_step_s,
        )
