"""What the next step computes: decode rows first, then prefill chunks in order of arrival, under one budget of tokens.

A sequence is in at most one of two lists, both sorted oldest first:

    waiting   has positions to compute before its next token: queued, in the middle of its prompt, or to be recomputed
    running   one token away from the next: a row of every step
    (neither) reserved for KV from elsewhere, or prefilled and pinned until its KV has been sent

The scheduler gives blocks to sequences and takes them back; nothing else in the engine does.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from baton.engine.api import NoRoom
from baton.engine.blocks import BlockManager
from baton.engine.config import EngineConfig
from baton.engine.prefix import block_digest, block_digests
from baton.engine.sequence import Purpose, Request, Sequence

# A fence before activation may add a token per attempt: a reserved table covers this many beyond the prompt.
RETRY_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Work:
    """The next `num_tokens` uncomputed positions of a sequence."""

    sequence: Sequence
    num_tokens: int


@dataclass(slots=True)
class Plan:
    """One step: its work, the sequences that lost their blocks to it, and one that no pool of this size can continue."""

    work: list[Work] = field(default_factory=list)
    evicted: list[Sequence] = field(default_factory=list)
    starved: list[Sequence] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Demand:
    """Blocks that a trunk needs: `held` at once, up to `final` for its first choice, and `per_fork` for each further one."""

    held: int
    final: int
    per_fork: int
    num_forks: int

    @property
    def promised(self) -> int:
        return self.final - self.held + self.num_forks * self.per_fork


class Scheduler:
    """Owns the order of work and every block holding. Called by the engine thread alone."""

    def __init__(self, config: EngineConfig, blocks: BlockManager):
        self.config = config
        self.blocks = blocks
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_preempted = 0

    # --- blocks in and out -----------------------------------------------------------------------------------------

    def admit(self, request: Request) -> None:
        """Gives the trunk its blocks, all or none, and queues it unless its KV comes from elsewhere. Raises NoRoom."""
        if any(sequence.holding is None for sequence in self.waiting):
            raise NoRoom("no_blocks", "a preempted request waits for blocks")
        trunk = request.trunk
        if trunk is None or not self._give_blocks(trunk):
            raise NoRoom("no_blocks", f"{self.blocks.num_available} of {self.blocks.num_blocks} blocks are available")
        if request.purpose is not Purpose.DECODE:
            insort(self.waiting, trunk, key=_age)

    def part(self, trunk: Sequence, choices: Many[int]) -> list[Sequence]:
        """Splits the computed trunk into a sequence for each of `choices` (at least one). The first goes on with the trunk's
        blocks; the others share the full ones and own one for the partial one, whose content the caller copies."""
        num_shared, num_partial = divmod(trunk.num_computed, self.config.block_size)
        num_new = 1 if num_partial else 0
        demand = self._demand(trunk)
        children = []
        for choice in choices[1:]:
            holding = self.blocks.fork(trunk.held, num_shared, num_new, demand.per_fork - num_new)
            children.append(trunk.fork(choice, holding))
        trunk.choices = (choices[0],)
        self.blocks.waive(trunk.held, max(demand.final - len(trunk.block_ids), 0))
        return [trunk, *children]

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out of the lists and frees its blocks."""
        self.unlist(sequence)
        if sequence.holding is not None:
            self.blocks.drop(sequence.holding)
            sequence.forget()

    def unlist(self, sequence: Sequence) -> None:
        """Takes a sequence out of the lists; it keeps its blocks."""
        for sequences in (self.waiting, self.running):
            if sequence in sequences:
                sequences.remove(sequence)

    def run(self, sequence: Sequence) -> None:
        """Makes a computed sequence a row of every step; it may be one already."""
        if self.waiting and sequence in self.waiting:
            self.waiting.remove(sequence)
        if sequence not in self.running:
            insort(self.running, sequence, key=_age)

    def publish(self, sequence: Sequence) -> None:
        """Names the full blocks that are computed by now, so that later prompts find them."""
        size = self.config.block_size
        for index in range(sequence.num_published, sequence.num_computed // size):
            if index == len(sequence.digests):
                parent = sequence.digests[-1] if sequence.digests else sequence.request.root
                sequence.digests.append(block_digest(parent, sequence.ids[index * size : (index + 1) * size]))
            self.blocks.publish(sequence.block_ids[index], sequence.digests[index])
            sequence.num_published = index + 1

    # --- the next step ---------------------------------------------------------------------------------------------

    def schedule(self) -> Plan:
        """Plans a step; takes blocks for it, from the youngest running sequences if need be."""
        plan = Plan()
        self._decode(plan)
        self._readmit()
        self._prefill(plan)
        return plan

    def _decode(self, plan: Plan) -> None:
        for sequence in tuple(self.running):
            if sequence.holding is not None and self._has_room(sequence, plan):
                plan.work.append(Work(sequence, 1))

    def _has_room(self, sequence: Sequence, plan: Plan) -> bool:
        """Whether the next position has a block; evicts the youngest for it, never the oldest."""
        while sequence.num_computed == len(sequence.block_ids) * self.config.block_size:
            if self.blocks.extend(sequence.held):
                return True
            if len(self.running) == 1:
                # the last row waits for blocks that reservations and pins hold; if there are none, it has outgrown the pool
                if self.blocks.num_holdings == 1:
                    plan.starved.append(sequence)
                return False
            victim = self.running[-1]
            self._evict(victim, plan)
            if victim is sequence:
                return False
        return True

    def _evict(self, victim: Sequence, plan: Plan) -> None:
        self.remove(victim)
        self.num_preempted += 1
        plan.evicted.append(victim)
        if victim.request.purpose is Purpose.GENERATE:
            insort(self.waiting, victim, key=_age)

    def _readmit(self) -> None:
        for sequence in self.waiting:
            if sequence.holding is None and not self._give_blocks(sequence):
                return  # first come, first served: a smaller one behind must not overtake for ever

    def _prefill(self, plan: Plan) -> None:
        budget = max(self.config.max_step_tokens - len(plan.work), 1)
        for sequence in self.waiting:
            if sequence.holding is None:
                continue
            num_tokens = min(sequence.num_uncomputed, budget)
            plan.work.append(Work(sequence, num_tokens))
            budget -= num_tokens
            if not budget:
                return

    def _give_blocks(self, sequence: Sequence) -> bool:
        size, total_len = self.config.block_size, len(sequence.ids)
        if not sequence.digests:
            sequence.digests = block_digests(sequence.request.root, sequence.ids, size)
        demand = self._demand(sequence)
        # the last position is always computed: its logits are what the request is for
        cached_ids = self.blocks.lookup(sequence.digests[: (total_len - 1) // size])
        sequence.holding = self.blocks.hold(cached_ids, demand.held - len(cached_ids), demand.promised)
        sequence.num_published = len(cached_ids)
        sequence.num_computed = sequence.num_cached = len(cached_ids) * size
        return sequence.holding is not None

    def _demand(self, sequence: Sequence) -> Demand:
        total_len, size = len(sequence.ids), self.config.block_size
        held = self.config.blocks_for(total_len)
        if sequence.request.purpose is Purpose.PREFILL:
            return Demand(held, held, 0, 0)
        growth = min(sequence.request.spec.params.max_tokens - sequence.num_output, self.config.growth_reserve)
        final_len = total_len + max(growth - 1, 0)  # the last token's KV is never written
        final = self.config.blocks_for(final_len)
        held = self.config.blocks_for(min(final_len, total_len + RETRY_TOKENS))
        return Demand(held, final, final - total_len // size, len(sequence.choices) - 1)


def _age(sequence: Sequence) -> tuple[int, int]:
    return sequence.age
