"""The engine without its thread: requests in, one step at a time, events out.

Life of a request, by purpose (who holds the blocks is in `scheduler.py`):

    prefill    waiting --chunks--> sampled --> pinned ------------------------------> release
    generate   waiting --chunks--> sampled --> running --> finished; evicted: waiting again
    reserve    reserved --activate-----------> running --> finished; evicted: handed back, its record stays until release
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from collections.abc import Sequence as Many
from typing import Any

import torch

from baton.engine import runner
from baton.engine.api import Broken, Computed, EngineEvent, EngineStats, Evicted, Handle, NoRoom, Reservation, Sampled, Started
from baton.engine.blocks import BlockManager
from baton.engine.config import EngineConfig
from baton.engine.counters import Counters
from baton.engine.kv_pool import KvPool
from baton.engine.prefix import root_digest
from baton.engine.runner import Model
from baton.engine.sampler import Draw, SamplingError, sample
from baton.engine.scheduler import Plan, Scheduler, Work
from baton.engine.sequence import Purpose, Request, Sequence, finish_of
from baton.wire.types import FirstToken, Identity, KvLayout, RequestSpec, Token

_log = logging.getLogger(__name__)


class EngineCore:
    """Synchronous and single-threaded. Nothing that one request brings along may harm another: its failure is its own."""

    def __init__(self, model: Model, identity: Identity, config: EngineConfig, buffer: Any | None = None):
        """`buffer`: memory for the KV pool (see KvPool)."""
        self.model = model
        self.identity = identity
        self.config = config
        shape = model.spec
        layout = KvLayout(shape.num_layers, config.block_size, shape.num_kv_heads, shape.head_dim, config.kv_dtype)
        self.pool = KvPool(layout, config.num_blocks, buffer)
        self.blocks = BlockManager(config.num_blocks, config.block_size)
        self.scheduler = Scheduler(config, self.blocks)
        self.counters = Counters()
        self._requests: dict[Handle, Request] = {}
        self._next_handle = 1
        self._events: list[EngineEvent] = []
        self._is_stalled = False

    # --- one step ----------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything before the next command."""
        can_run = not self._is_stalled and bool(self.scheduler.running or self.scheduler.waiting)
        return can_run or bool(self._events)

    def step(self) -> list[EngineEvent]:
        """Schedules, runs, samples and publishes once; returns what happened, in order."""
        started_at = time.perf_counter()
        plan = self._schedule()
        if plan.work:
            logits = self._run(plan)
            if logits is not None:
                self._publish(self._sample(logits, plan))
            self.counters.last_step_s = time.perf_counter() - started_at
        events, self._events = self._events, []
        return events

    def _schedule(self) -> Plan:
        plan = self.scheduler.schedule()
        for sequence in plan.evicted:
            if sequence.request.purpose is Purpose.DECODE:
                self._forget_choice(sequence)
                self._events.append(Evicted(sequence.request.handle, sequence.choice))
        for sequence in plan.starved:
            self._break(sequence.request, "the request has outgrown the KV pool", request_fault=True)
        for work in plan.work:
            self._start(work.sequence)
        self._is_stalled = not plan.work
        return plan

    def _start(self, sequence: Sequence) -> None:
        request = sequence.request
        if not request.is_started:
            request.is_started = True
            self._events.append(Started(request.handle, time.monotonic() - request.queued_at, sequence.num_cached))

    def _run(self, plan: Plan) -> torch.Tensor | None:
        """The model over the plan's work; None if it failed, which ends the batch's requests and nothing else."""
        try:
            logits = runner.run(self.model, plan.work, self.pool)
        except Exception as error:  # the edge between our process and whatever a kernel may raise
            _log.exception("a model step failed")
            for work in plan.work:
                self._break(work.sequence.request, f"the model step failed: {error}")
            return None
        for work in plan.work:
            self._advance(work)
        return logits

    def _advance(self, work: Work) -> None:
        sequence = work.sequence
        sequence.num_computed += work.num_tokens
        self.scheduler.publish(sequence)
        if sequence.request.purpose is Purpose.PREFILL:
            self._events.append(Computed(sequence.request.handle, sequence.num_computed))

    def _sample(self, logits: torch.Tensor, plan: Plan) -> Iterator[tuple[Sequence, list[Token | SamplingError]]]:
        """Each sequence whose next token is due, with one outcome per choice."""
        due = [work.sequence for work in plan.work if not work.sequence.num_uncomputed]
        draws = [
            Draw(row, choice, sequence.num_output, sequence.request.spec.params, sequence.history)
            for row, sequence in enumerate(due)
            for choice in sequence.choices
        ]
        outcomes = iter(sample(logits, draws) if draws else ())
        return ((sequence, [next(outcomes) for _ in sequence.choices]) for sequence in due)

    def _publish(self, sampled: Iterator[tuple[Sequence, list[Token | SamplingError]]]) -> None:
        for sequence, outcomes in sampled:
            errors = [outcome for outcome in outcomes if isinstance(outcome, SamplingError)]
            if errors:
                self._break(sequence.request, str(errors[0]), request_fault=True)
            elif not sequence.request.is_broken:
                self._accept(sequence, [outcome for outcome in outcomes if isinstance(outcome, Token)])

    def _accept(self, sequence: Sequence, tokens: list[Token]) -> None:
        """Takes the next token of each of the sequence's choices: those that it does not end go on decoding."""
        request, index = sequence.request, sequence.num_output
        going_on = []
        for choice, token in zip(sequence.choices, tokens, strict=True):
            finish = finish_of(request.spec.params, token.id, index + 1, len(sequence.ids) + 1, self.model.spec.max_model_len)
            self._events.append(Sampled(request.handle, choice, index, token, finish))
            if finish is None:
                going_on.append((choice, token.id))
        self.counters.generated_tokens += len(tokens)
        if request.purpose is Purpose.PREFILL:
            self.scheduler.unlist(sequence)
            request.is_finished = True
        elif request.trunk is sequence:
            self._part(sequence, going_on)
        elif going_on:
            sequence.append(going_on[0][1])
            self.scheduler.run(sequence)
        else:
            self._end_choice(sequence)

    # --- commands ----------------------------------------------------------------------------------------------------

    def prefill(self, spec: RequestSpec) -> Reservation:
        """See Engine.prefill. Raises NoRoom; ValueError for ids or lengths that this model cannot take."""
        if sum(request.purpose is Purpose.PREFILL for request in self._requests.values()) >= self.config.max_num_seqs:
            raise NoRoom("busy", f"{self.config.max_num_seqs} prompts are being prefilled or sent")
        reservation = self._admit(Purpose.PREFILL, spec)
        if reservation.num_cached:
            self._events.append(Computed(reservation.handle, reservation.num_cached))
        return reservation

    def generate(self, spec: RequestSpec) -> Reservation:
        """See Engine.generate. Raises as `prefill`."""
        self._check_slots(spec)
        return self._admit(Purpose.GENERATE, spec)

    def reserve(self, spec: RequestSpec) -> Reservation:
        """See Engine.reserve. Raises as `prefill`."""
        self._check_slots(spec)
        return self._admit(Purpose.DECODE, spec)

    def activate(self, handle: Handle, spec: RequestSpec, first: Many[FirstToken]) -> None:
        """See Engine.activate. ValueError if `handle` is not a reservation, or its table does not cover `spec`."""
        request = self._requests.get(handle)
        if request is None or request.purpose is not Purpose.DECODE or request.trunk is None:
            raise ValueError(f"request {handle} is not reserved")
        trunk = request.trunk
        ids = [*spec.prompt_ids, *spec.output_ids]
        if ids[: len(trunk.ids)] != trunk.ids or self.config.blocks_for(len(ids)) > len(trunk.block_ids):
            raise ValueError(
                f"the {len(trunk.block_ids)} blocks reserved by request {handle} are not for these {len(ids)} tokens"
            )
        if not {token.choice for token in first} <= set(trunk.choices):
            raise ValueError(f"request {handle} reserved for the choices {trunk.choices} only")
        self._check_spec(spec)
        request.spec = spec
        request.queued_at = time.monotonic()
        trunk.restart(spec)
        trunk.num_computed = spec.total_len
        self.scheduler.publish(trunk)
        self._part(trunk, [(token.choice, token.token.id) for token in first if token.finish is None])

    def finish(self, handle: Handle, choice: int) -> None:
        """See Engine.finish."""
        request = self._requests.get(handle)
        if request is not None and choice in request.sequences:
            self._end_choice(request.sequences[choice])

    def release(self, handle: Handle) -> None:
        """See Engine.release."""
        request = self._requests.pop(handle, None)
        if request is None:
            return
        for sequence in request.live:
            self.scheduler.remove(sequence)
        self._is_stalled = False
        self.counters.aborted += not request.is_finished

    def break_all(self, message: str) -> list[EngineEvent]:
        """Fails every request: the engine itself cannot go on."""
        for request in self._requests.values():
            self._break(request, message)
        events, self._events = self._events, []
        return events

    # --- requests ----------------------------------------------------------------------------------------------------

    def _admit(self, purpose: Purpose, spec: RequestSpec) -> Reservation:
        self._check_spec(spec)
        request = Request(self._next_handle, purpose, spec, root_digest(self.identity, spec.tenant))
        trunk = request.trunk = Sequence.of(request)
        self.scheduler.admit(request)
        self._requests[request.handle] = request
        self._next_handle += 1
        self._is_stalled = False
        if purpose is not Purpose.DECODE:  # what another engine computes counts there
            self.counters.prompt_tokens += spec.total_len
        self.counters.prefix_query_tokens += spec.total_len
        self.counters.prefix_hit_tokens += trunk.num_cached
        return Reservation(request.handle, tuple(trunk.block_ids), trunk.num_cached)

    def _check_slots(self, spec: RequestSpec) -> None:
        num_taken = sum(request.num_slots for request in self._requests.values() if request.purpose is not Purpose.PREFILL)
        if num_taken + len(spec.choices) > self.config.max_num_seqs:
            raise NoRoom("busy", f"{num_taken} of {self.config.max_num_seqs} rows are taken")

    def _check_spec(self, spec: RequestSpec) -> None:
        """What would fail a whole step is refused before it joins one."""
        shape, params = self.model.spec, spec.params
        if not 0 < spec.total_len <= shape.max_model_len:
            raise ValueError(f"{spec.total_len} tokens do not fit a context of 1 to {shape.max_model_len}")
        if spec.output_ids and len(spec.choices) != 1:
            raise ValueError("only a single choice may have output ids")
        biased_ids = [token_id for token_id, _ in params.logit_bias]
        for ids in (spec.prompt_ids, spec.output_ids, biased_ids):
            if ids and (min(ids) < 0 or max(ids) >= shape.vocab_size):
                raise ValueError(f"token ids must be in 0..{shape.vocab_size - 1}")

    def _part(self, trunk: Sequence, first: Many[tuple[int, int]]) -> None:
        """Sends each (choice, token id) of `first` on its own way from the computed trunk."""
        request, request.trunk = trunk.request, None
        self._is_stalled = False
        if not first:
            self.scheduler.remove(trunk)
            request.is_finished = True
            return
        index, num_partial = divmod(trunk.num_computed, self.config.block_size)
        sequences = self.scheduler.part(trunk, [choice for choice, _ in first])
        for sequence, (choice, token_id) in zip(sequences, first, strict=True):
            if num_partial and sequence is not trunk:
                self.pool.copy_block(trunk.block_ids[index], sequence.block_ids[index])
            request.sequences[choice] = sequence
            sequence.append(token_id)
            self.scheduler.run(sequence)

    def _end_choice(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        self._forget_choice(sequence)
        self._is_stalled = False

    def _forget_choice(self, sequence: Sequence) -> None:
        request = sequence.request
        del request.sequences[sequence.choice]
        request.is_finished = not request.sequences

    def _break(self, request: Request, message: str, *, request_fault: bool = False) -> None:
        """Fails one request. Its blocks stay with it until `release`: somebody may still be reading them."""
        if request.is_broken:
            return
        request.is_broken = request.is_finished = True
        for sequence in request.live:
            self.scheduler.unlist(sequence)
        self._events.append(Broken(request.handle, message, request_fault))

    # --- state -------------------------------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """Gauges and counters as of now."""
        return self.counters.snapshot(self.scheduler)

    def check_integrity(self) -> None:
        """RuntimeError if blocks are lost, or held by nobody that the engine knows."""
        self.blocks.check_integrity()
        known = {id(sequence.holding) for request in self._requests.values() for sequence in request.live if sequence.holding}
        if len(known) != self.blocks.num_holdings:
            raise RuntimeError(f"{self.blocks.num_holdings} holdings, {len(known)} of them owned by a request")
