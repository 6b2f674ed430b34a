"""What the router knows of one worker: its link, whether it is in rotation, and what runs there for this router."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol, Self

from baton.wire.link_client import Inbox
from baton.wire.types import Command, LeaseId, LoadReport, WorkerInfo
from router.placement import Snapshot


class Link(Protocol):
    """The part of `baton.wire.link_client.WorkerLink` that the router uses."""

    address: str
    info: WorkerInfo | None
    load: LoadReport
    up: bool
    error: str | None

    async def run(self) -> None: ...

    def attach(self, lease: LeaseId, inbox: Inbox) -> None: ...

    def detach(self, lease: LeaseId) -> None: ...

    def send(self, command: Command) -> None: ...


@dataclass(slots=True, eq=False)
class Worker:
    """One worker by address, over all its lives.

    `left_out` says why it is not used though it is up; `listed`: the registry still names it. `used`: it was in rotation when
    its link changed last. `full`: it refused a reservation and has not reported room since. `leases`: those whose record this
    router keeps there; `prefilling` and `decoding` hold the positions of those that it works for.
    """

    link: Link
    left_out: str | None = None
    listed: bool = True
    used: bool = False
    full: bool = False
    turn: int = 0
    leases: set[LeaseId] = field(default_factory=set)
    prefilling: dict[LeaseId, int] = field(default_factory=dict)
    decoding: dict[LeaseId, int] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return self.link.address

    @property
    def in_rotation(self) -> bool:
        """It may get new work."""
        known = self.link.up and self.link.info is not None and self.left_out is None
        return known and self.listed and not self.link.load.draining

    @property
    def idle(self) -> bool:
        """This router has nothing there."""
        return not (self.leases or self.prefilling or self.decoding)

    def attach(self, lease: LeaseId, inbox: Inbox) -> None:
        """The lease's events go to `inbox` until `detach`."""
        self.leases.add(lease)
        self.link.attach(lease, inbox)

    def detach(self, lease: LeaseId) -> None:
        """No more events of the lease. Idempotent."""
        self.leases.discard(lease)
        self.link.detach(lease)

    def refuse(self, asked_with: LoadReport) -> None:
        """It refused a reservation that was asked for when `asked_with` was its last report. A later one may say otherwise."""
        self.full = self.link.load is asked_with

    def note_load(self) -> None:
        """A report came: a worker that has a free block and a free place may be asked again."""
        load, info = self.link.load, self.link.info
        if info is not None and load.kv_blocks_used < load.kv_blocks_total and load.num_running < info.max_num_seqs:
            self.full = False

    def snapshot(self) -> Snapshot:
        """What placement needs to know now. Only for a worker in rotation."""
        info = self.link.info
        if info is None:
            raise ValueError(f"{self.address} has not said who it is")
        return Snapshot(
            address=self.address,
            role=info.role,
            load=self.link.load,
            capacity_tokens=info.capacity_tokens,
            max_num_seqs=info.max_num_seqs,
            num_prefills=len(self.prefilling),
            prefill_tokens=sum(self.prefilling.values()),
            num_decodes=len(self.decoding),
            decode_tokens=sum(self.decoding.values()),
            full=self.full,
            turn=self.turn,
        )


@dataclass(frozen=True, slots=True)
class Rotation:
    """The workers that may get new work, and who those are that prefill and that decode: some do both."""

    workers: tuple[Worker, ...]
    prefills: tuple[WorkerInfo, ...]
    decodes: tuple[WorkerInfo, ...]

    @classmethod
    def of(cls, workers: Iterable[Worker]) -> Self:
        found = tuple(workers)
        infos = [worker.link.info for worker in found if worker.link.info is not None]
        prefills = tuple(info for info in infos if info.role.prefills)
        return cls(found, prefills, tuple(info for info in infos if info.role.decodes))
