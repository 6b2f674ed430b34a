"""What a run sends: requests with their prompts, and in an open loop when each is due. All is made before the run starts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from baton.loadtest.errors import BenchError
from baton.loadtest.filler import filler, joined
from baton.loadtest.record import Request
from baton.loadtest.traces import Entry, Replay


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens, evenly drawn from `low` to `high`, both included; equal ones are a fixed length."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> Lengths:
        """`512` or `256:1024`. Raises BenchError."""
        low, colon, high = text.partition(":")
        high = high if colon else low
        if not (low.isdecimal() and high.isdecimal() and 1 <= int(low) <= int(high)):
            raise BenchError(f"a length is a number such as 512 or a range such as 256:1024, not {text!r}")
        return cls(int(low), int(high))

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low} to {self.high}, evenly drawn"


@dataclass(frozen=True, slots=True)
class Drawn:
    """Requests of fixed or random lengths. The first `prefix_len` tokens of every prompt are the same."""

    inputs: Lengths
    outputs: Lengths
    prefix_len: int = 0
    as_ids: bool = False

    def requests(self, num: int, seed: int) -> tuple[Request, ...]:
        return tuple(islice(self._endless(seed), num))

    def facts(self) -> Mapping[str, str]:
        shared = {"shared prefix (tokens)": str(self.prefix_len)} if self.prefix_len else {}
        return {"input length (tokens)": str(self.inputs), "output length (tokens)": str(self.outputs)} | shared

    def _endless(self, seed: int) -> Iterator[Request]:
        rng = random.Random(f"lengths/{seed}")
        prefix = filler(f"{seed}/prefix", self.prefix_len, self.as_ids)
        number = 0
        while True:
            input_len = max(rng.randint(self.inputs.low, self.inputs.high), self.prefix_len)
            own = filler(f"{seed}/{number}", input_len - self.prefix_len, self.as_ids)
            yield Request(number, joined((prefix, own), input_len), input_len, rng.randint(self.outputs.low, self.outputs.high))
            number += 1


@dataclass(frozen=True, slots=True)
class Replayed:
    """Requests with a trace's lengths, and its shared prefixes where it has them."""

    replay: Replay
    name: str
    as_ids: bool = False

    def requests(self, num: int, seed: int) -> tuple[Request, ...]:
        return tuple(self._request(number, entry, seed) for number, entry in enumerate(self.replay.entries[:num]))

    def due_s(self) -> tuple[float, ...]:
        """When each request is due, as the stretched trace says."""
        return tuple(entry.at_s for entry in self.replay.entries)

    def facts(self) -> Mapping[str, str]:
        replay = self.replay
        dropped = {"too long, left out": str(replay.num_dropped)} if replay.num_dropped else {}
        block = {"tokens of a shared block": str(replay.block_len)} if any(e.hash_ids for e in replay.entries) else {}
        return {"trace": self.name, "lengths": f"divided by {replay.shrink:g}"} | block | dropped

    def _request(self, number: int, entry: Entry, seed: int) -> Request:
        blocks = [filler(f"{seed}/block/{i}", self.replay.block_len, self.as_ids) for i in entry.hash_ids]
        own = filler(f"{seed}/{number}", entry.input_len, self.as_ids)  # the rest, where the blocks are too few or none
        return Request(number, joined((*blocks, own), entry.input_len), entry.input_len, entry.output_len)


Workload = Drawn | Replayed


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. `due_s` is None in a closed loop, where `concurrency` requests are always under way.

    `facts` describe it for a reader. `duration_s` ends the sending (0: never); what is under way still finishes.
    """

    label: str
    requests: tuple[Request, ...]
    due_s: tuple[float, ...] | None
    concurrency: int
    rate: float | None
    duration_s: float = 0.0
    facts: Mapping[str, str] = field(default_factory=dict)
