"""A request and its sequences, as the engine carries them from admission to release."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np

from baton.engine.api import Handle
from baton.engine.blocks import Holding
from baton.engine.penalties import History
from baton.engine.prefix import Digest
from baton.wire.types import FinishReason, RequestSpec, SamplingParams

_NO_BLOCKS = np.zeros(0, np.int32)


class Purpose(Enum):
    """What the engine does for a request."""

    PREFILL = auto()  # compute, sample once per choice, keep the blocks until release
    GENERATE = auto()  # compute and decode; out of blocks, it computes again
    DECODE = auto()  # hold blocks for KV from elsewhere, then decode; out of blocks, it hands the choice back


@dataclass(eq=False, slots=True)
class Sequence:
    """Token ids with KV. The trunk stands for all its choices until their first tokens part them; then each has its own.

    ids             prompt, then output
    num_computed    leading positions whose KV is in the blocks; the rest is this or a later step's work
    holding         its blocks, owned by this sequence alone; None while it waits to compute again
    digests         of the leading full blocks, as far as they have been needed
    num_published   leading blocks that the prefix cache has been told of
    """

    request: Request
    choices: tuple[int, ...]
    ids: list[int]
    history: History
    holding: Holding | None = None
    num_computed: int = 0
    num_cached: int = 0
    num_published: int = 0
    digests: list[Digest] = field(default_factory=list)
    _table: np.ndarray = field(default_factory=lambda: _NO_BLOCKS)

    @classmethod
    def of(cls, request: Request) -> Sequence:
        """The trunk of a new request."""
        trunk = cls(request, request.spec.choices, [], History(()))
        trunk.restart(request.spec)
        return trunk

    def restart(self, spec: RequestSpec) -> None:
        """Takes the ids of `spec`, and with them all that follows from ids."""
        self.ids = [*spec.prompt_ids, *spec.output_ids]
        self.history = History(spec.prompt_ids, spec.output_ids)

    @property
    def choice(self) -> int:
        return self.choices[0]

    @property
    def age(self) -> tuple[Handle, int]:
        """Sorts sequences, the oldest first."""
        return self.request.handle, self.choice

    @property
    def num_output(self) -> int:
        """Output tokens so far: the index of the next."""
        return len(self.ids) - len(self.request.spec.prompt_ids)

    @property
    def num_uncomputed(self) -> int:
        return len(self.ids) - self.num_computed

    @property
    def held(self) -> Holding:
        """The holding, where there must be one."""
        if self.holding is None:
            raise RuntimeError(f"sequence {self.age} holds no blocks")
        return self.holding

    @property
    def block_ids(self) -> list[int]:
        return self.held.block_ids

    @property
    def table(self) -> np.ndarray:
        """The block ids as int32, rebuilt only when the table has changed length: it only ever grows or is replaced whole."""
        if len(self._table) != len(self.block_ids):
            self._table = np.array(self.block_ids, np.int32)
        return self._table

    def append(self, token_id: int) -> None:
        self.ids.append(token_id)
        self.history.append(token_id)

    def forget(self) -> None:
        """The blocks are gone: every position is to be computed again."""
        self.holding = None
        self.num_computed = 0
        self._table = _NO_BLOCKS

    def fork(self, choice: int, holding: Holding) -> Sequence:
        """Another choice of the same ids, on blocks of its own."""
        return Sequence(
            self.request,
            (choice,),
            list(self.ids),
            self.history.fork(),
            holding,
            self.num_computed,
            self.num_cached,
            self.num_published,
            list(self.digests),
        )


@dataclass(eq=False, slots=True)
class Request:
    """One request from admission to release: its trunk until the choices part, then a sequence per unfinished choice."""

    handle: Handle
    purpose: Purpose
    spec: RequestSpec
    root: Digest
    queued_at: float = field(default_factory=time.monotonic)
    is_started: bool = False
    is_broken: bool = False
    is_finished: bool = False
    trunk: Sequence | None = None
    sequences: dict[int, Sequence] = field(default_factory=dict)

    @property
    def live(self) -> Iterable[Sequence]:
        """Sequences that may hold blocks."""
        return (self.trunk,) if self.trunk else tuple(self.sequences.values())

    @property
    def num_slots(self) -> int:
        """Rows that the request takes, or will take, in the running batch."""
        return sum(len(sequence.choices) for sequence in self.live)


def finish_of(
    params: SamplingParams, token_id: int, num_output: int, total_len: int, max_model_len: int
) -> FinishReason | None:
    """Whether a choice ends with `token_id`, its output token number `num_output` (counted from 1) at length `total_len`."""
    if token_id in params.stop_ids or (token_id in params.eos_ids and not params.ignore_eos):
        return FinishReason.STOP
    if num_output >= params.max_tokens or total_len >= max_model_len:
        return FinishReason.LENGTH
    return None
