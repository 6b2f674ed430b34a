"""The workers that this router dials: one owned link per endpoint, paired before any of them is used."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

from baton.cluster.registry import Registry
from baton.wire.types import Endpoint, Incarnation, ModelCard, WorkerInfo
from router.pairing import mismatch, unspoken
from router.workers import Link, Rotation, Worker

log = logging.getLogger(__name__)

SILENT = "it has not said who it is"

Dial = Callable[[str, Callable[[Link], None]], Link]
"""Makes the link to an address; the second argument is called after each change of the link."""


class WorkerPool:
    """Every worker of a registry, by address. `on_change` is called after every change of a link or a load report.

    A worker is in rotation while its link is up and it pairs with all others of its model. One that the registry dropped gets
    no new work and is let go when this router has nothing left there.
    """

    def __init__(self, dial: Dial, served_name: str | None = None) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.on_restart: Callable[[str], None] = lambda address: None
        self._dial = dial
        self._served_name = served_name
        self._registry: Registry | None = None
        self._workers: dict[str, Worker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._lives: dict[str, Incarnation | None] = {}
        self._models: dict[str, ModelCard] = {}
        self._unlisted: set[str] = set()
        self._rotations: dict[str, Rotation] = {}  # by model, until a worker comes or goes

    async def run(self, registry: Registry) -> None:
        """Follows `registry` until cancelled; the links end with it. A link that breaks by a fault of ours ends the pool."""
        self._registry = registry
        async with asyncio.TaskGroup() as links:
            async for endpoints in registry.watch():
                self._sync(endpoints, links)

    def worker(self, address: str) -> Worker:
        """The worker at `address`; it is kept while this router has a lease there."""
        return self._workers[address]

    def workers(self) -> tuple[Worker, ...]:
        """All that are dialled, in rotation or not."""
        return tuple(self._workers.values())

    def rotation(self, model: str) -> tuple[Worker, ...]:
        """The workers of `model` that may get new work."""
        return self._rotation(model).workers

    def models(self) -> Mapping[str, ModelCard]:
        """Cards by served name. A model stays known when its workers are down; its length is what the pools can hold."""
        return self._models

    def prefills(self, model: str) -> tuple[WorkerInfo, ...]:
        """Who the prefill workers of `model` in rotation are."""
        return self._rotation(model).prefills

    def decodes(self, model: str) -> tuple[WorkerInfo, ...]:
        """Who the decode workers of `model` in rotation are."""
        return self._rotation(model).decodes

    def capacity_tokens(self, model: str) -> int:
        """KV tokens of the largest decode pool in rotation, or of the largest prefill pool if that is less."""
        prefill = max((info.capacity_tokens for info in self.prefills(model)), default=0)
        decode = max((info.capacity_tokens for info in self.decodes(model)), default=0)
        return min(prefill, decode)

    def shortage(self, model: str, *, decodes: bool = True) -> str | None:
        """Why no request of `model` can be placed now; None: a prefill and, unless not `decodes`, a decode worker are there."""
        missing = [] if self.prefills(model) else ["prefill"]
        if decodes and not self.decodes(model):
            missing.append("decode")
        if not missing:
            return None
        return "; ".join([f"no {' and no '.join(missing)} worker is ready", *self._excuses()])

    def ready(self) -> str | None:
        """None if some model can be served, else the reason."""
        shortages = [self.shortage(model) for model in self._models] or [self.shortage("")]
        return None if None in shortages else shortages[0]

    @property
    def registry_error(self) -> str | None:
        """Why the list of workers may be old; None: it is current."""
        return self._registry.error if self._registry else None

    def let_go(self) -> None:
        """Drops workers that left the registry and have nothing of this router left."""
        for address in [address for address in self._unlisted if self._workers[address].idle]:
            self._tasks.pop(address).cancel()
            self._unlisted.discard(address)
            del self._workers[address], self._lives[address]
            self.on_restart(address)

    # --- the registry --------------------------------------------------------------------------------------------

    def _sync(self, endpoints: Iterable[Endpoint], links: asyncio.TaskGroup) -> None:
        listed = {endpoint.address for endpoint in endpoints}
        for address in sorted(listed - self._workers.keys()):
            link = self._dial(address, self._changed)
            self._workers[address], self._lives[address] = Worker(link, SILENT), None
            self._tasks[address] = links.create_task(_follow(link), name=f"link {address}")
        for address, worker in self._workers.items():
            worker.listed = address in listed
        self._unlisted = self._workers.keys() - listed
        self._rotations.clear()
        self.let_go()
        self.on_change()

    # --- pairing -------------------------------------------------------------------------------------------------

    def _changed(self, link: Link) -> None:
        worker = self._workers.get(link.address)
        if worker is None:
            return
        life = link.info.incarnation if link.up and link.info else None
        if life != self._lives[link.address]:
            self._lives[link.address] = life
            self._pair_again(worker)
        if worker.used != worker.in_rotation:
            worker.used = worker.in_rotation
            self._rotations.clear()
        worker.note_load()
        self.on_change()

    def _pair_again(self, worker: Worker) -> None:
        """`worker` came, went or was restarted: it is judged, and with it those that were left out because of another."""
        worker.full, worker.left_out = False, SILENT
        self.on_restart(worker.address)
        waiting = [other for other in self._workers.values() if other.left_out is not None and other is not worker]
        for candidate in (worker, *waiting):
            self._judge(candidate)
        self._rotations.clear()
        for name in {self._name(candidate.link.info) for candidate in self._workers.values() if candidate.in_rotation}:
            self._models[name] = self._card(name)

    def _judge(self, worker: Worker) -> None:
        info = worker.link.info
        if not worker.link.up or info is None:
            return
        reason = unspoken(info) or self._disagreement(worker, info)
        if reason and reason != worker.left_out:
            log.error("worker %s is left out: %s", worker.address, reason)
        elif not reason:
            log.info("worker %s (%s) is in rotation for %s", worker.address, info.role, self._name(info))
        worker.left_out = reason

    def _disagreement(self, worker: Worker, info: WorkerInfo) -> str | None:
        for peer in self._in_rotation(self._name(info)):
            if peer is not worker and peer.link.info is not None:
                reason = mismatch(info, peer.link.info)
                if reason:
                    return f"{reason} ({peer.address})"
        return None

    def _rotation(self, model: str) -> Rotation:
        known = self._rotations.get(model)
        if known is None:
            known = self._rotations[model] = Rotation.of(self._in_rotation(model))
        return known

    def _in_rotation(self, model: str) -> Iterator[Worker]:
        for worker in self._workers.values():
            if worker.in_rotation and self._name(worker.link.info) == model:
                yield worker

    def _name(self, info: WorkerInfo | None) -> str:
        if self._served_name is not None:
            return self._served_name
        return info.card.name if info else ""

    def _card(self, name: str) -> ModelCard:
        """The card of the model's first worker, with the length that both pools can hold once both are known."""
        card = next(worker.link.info.card for worker in self._in_rotation(name) if worker.link.info)
        room = self.capacity_tokens(name) or card.max_model_len
        return dataclasses.replace(card, name=name, max_model_len=min(card.max_model_len, room))

    def _excuses(self) -> list[str]:
        """One sentence for a registry that cannot be read, and one for each worker that is not in rotation."""
        idle = [worker for worker in self._workers.values() if not worker.in_rotation]
        excuses = [f"{worker.address}: {worker.left_out or worker.link.error or SILENT}" for worker in idle]
        return [self.registry_error, *excuses] if self.registry_error else excuses


async def _follow(link: Link) -> None:
    """A worker that is let go cancels its link alone, not the group."""
    with suppress(asyncio.CancelledError):
        await link.run()
