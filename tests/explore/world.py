"""The explored world: a router, its links, prefill and decode workers, and the KV channels between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from baton.wire.types import Command, Commit, Event, FrameHeader, KvAnswer, LeaseId, Position, RequestSpec, SamplingParams
from kvtransfer.protocol.actions import Place
from kvtransfer.protocol.coordinator import Coordinator
from kvtransfer.protocol.receiver import ReceiveLease
from kvtransfer.protocol.sender import SendAttempt
from tests.explore.snapshot import Keys, Part, clone


class Violation(AssertionError):
    """A promise was broken; the search adds the steps that led to it."""


FAULTS = (
    "kill",
    "pause",
    "break_link",
    "break_kv",
    "cut_kv",
    "corrupt",
    "stall",
    "reserve_timeout",
    "router_dies",
    "cancel",
)


@dataclass(frozen=True)
class Scenario:
    """What runs, and what may go wrong. Tokens are counted, a frame carries one token of one layer."""

    name: str
    faults: tuple[str, ...] = FAULTS
    num_faults: int = 2
    num_requests: int = 1
    num_choices: int = 1
    prompt_len: int = 3
    max_tokens: int = 3
    stop_at: int | None = None  # output tokens after which the router's text ends a choice
    finish_first: bool = False  # prefill, too, sees that the first token ends each choice
    preempts: bool = False  # decode may give a choice back, once
    slow_writes: bool = True  # a write to a block takes a step of its own
    chunk: int = 1  # positions that prefill computes in a step
    reduced: bool = True  # leave out orders that differ in cleaning up alone (see steps.urgent)
    num_workers: int = 2  # of each role
    num_blocks: int = 1  # leases that a decode worker holds at once
    max_attempts: int = 2
    trusts_hello: bool = False  # broken: takes what a hello named for what the router still follows
    coordinator: type[Coordinator] = Coordinator
    sender: type[SendAttempt] = SendAttempt
    receiver: type[ReceiveLease] = ReceiveLease

    @property
    def prefills(self) -> tuple[str, ...]:
        return tuple(f"P{n}" for n in range(self.num_workers))

    @property
    def decodes(self) -> tuple[str, ...]:
        return tuple(f"D{n}" for n in range(self.num_workers))

    @property
    def workers(self) -> tuple[str, ...]:
        return (*self.prefills, *self.decodes)

    @property
    def spec(self) -> RequestSpec:
        return RequestSpec(
            tuple(range(self.prompt_len)), SamplingParams(max_tokens=self.max_tokens), choices=tuple(range(self.num_choices))
        )


Stamp = tuple[LeaseId, int, int]
"""What KV a cell holds: written for (lease, epoch), at this position."""


@dataclass(frozen=True)
class KvItem:
    """A frame with its one cell's content, or a commit, on its way to decode."""

    message: FrameHeader | Commit
    content: Stamp | None = None
    intact: bool = True


@dataclass(frozen=True)
class InFlight:
    """A write that decode has begun: it lands in `block` whoever owns that by then."""

    item: KvItem
    block: int


@dataclass
class Attachment(Part):
    flow: str
    pending: list[Command] = field(default_factory=list)
    answered: bool = False


@dataclass
class Link(Part):
    """Both ends of a router-worker link. What was sent before a break can be read until a new stream replaces the old."""

    number: int = 1  # link id, drawn by the router
    worker_number: int | None = 1  # link id that the worker serves
    incarnation: int = 0  # the worker's, as the router knows it
    open: bool = True
    up: bool = True
    hello: tuple[Position, ...] | None = None  # named by a dial that is under way
    attached: dict[LeaseId, Attachment] = field(default_factory=dict)
    to_worker: list[Command] = field(default_factory=list)
    to_router: list[Event] = field(default_factory=list)


@dataclass
class Channel(Part):
    """A KV channel between two process lives. What was sent before a break may still arrive at decode."""

    source: str
    target: str
    open: bool = True
    to_target: list[KvItem] = field(default_factory=list)
    to_source: list[KvAnswer] = field(default_factory=list)


@dataclass
class Channels(Part):
    by_number: dict[int, Channel] = field(default_factory=dict)
    opened: int = 0


@dataclass
class Router(Part):
    flows: dict[str, Coordinator] = field(default_factory=dict)
    placing: dict[str, Place] = field(default_factory=dict)
    waiting_for: dict[str, str] = field(default_factory=dict)  # after a refusal: the worker whose load report is awaited
    tokens: dict[tuple[str, int], list[int]] = field(default_factory=dict)  # what the client has
    done: set[tuple[str, int]] = field(default_factory=set)
    endings: dict[str, str] = field(default_factory=dict)  # by flow
    losses: list[tuple[str, str, LeaseId]] = field(default_factory=list)  # (flow, worker, lease) in inboxes
    num_leases: int = 0
    dead: bool = False
    cancelled: bool = False


@dataclass
class Faults(Part):
    left: int = 0
    harmful: int = 0  # of those that happened, the ones that may cost an attempt
    preempted: bool = False


Step = tuple[Callable[..., None], tuple[Any, ...]]
"""What is done to a world, and its arguments."""


class World:
    """Named parts. A fork shares them with its origin until `own` copies one."""

    def __init__(self, scenario: Scenario, keys: Keys, parts: dict[str, Part], numbers: dict[str, int]):
        self.scenario = scenario
        self._keys = keys
        self._parts = parts
        self._numbers = numbers
        self._owned: set[str] = set()

    def fork(self) -> World:
        return World(self.scenario, self._keys, dict(self._parts), dict(self._numbers))

    def look(self, name: str) -> Any:
        """To read only."""
        return self._parts[name]

    def own(self, name: str) -> Any:
        """To change."""
        if name not in self._owned:
            self._owned.add(name)
            self._parts[name] = clone(self._parts[name])
            self._numbers.pop(name, None)
        return self._parts[name]

    def key(self) -> tuple[int, ...]:
        for name, part in self._parts.items():
            if name not in self._numbers:
                self._numbers[name] = self._keys.of(part)
        self._owned.clear()
        return tuple([self._numbers[name] for name in self._parts])
