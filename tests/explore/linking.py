"""Both ends of the links between the router and its workers: streams, hellos, resumptions and deaths."""

from __future__ import annotations

from collections.abc import Iterator

from baton.wire.types import (
    Committed,
    End,
    Event,
    Failed,
    Fence,
    Fenced,
    Gone,
    HandedOff,
    Position,
    Refused,
    Reserved,
    StartDecode,
    Tokens,
)
from tests.explore import nodes, routing
from tests.explore.world import Attachment, Link, Step, World

_ANSWERS: dict[type, tuple[type, ...]] = {
    StartDecode: (Reserved, Refused, Failed),
    Fence: (Fenced, Committed, Gone),
}


def steps(world: World, name: str) -> Iterator[Step]:
    link: Link = world.look("link:" + name)
    worker, router = world.look(name), world.look("router")
    if link.to_worker and not worker.paused:
        yield to_worker, (name,)
    if not router.dead:
        yield from _router_steps(link, worker.paused, name)
    if not link.open and link.worker_number is not None and worker.records and not worker.paused:
        yield worker_grace, (name,)  # last, for in cleaning up it would hide what a resumption leaves behind


def _router_steps(link: Link, paused: bool, name: str) -> Iterator[Step]:
    if link.to_router:
        yield to_router, (name,)
    if not link.open and not paused:
        if link.hello is not None:
            yield welcome, (name,)
        else:
            yield (dial if link.attached else reconnect), (name,)
    if link.up and (paused or not link.open):
        yield declare_dead, (name,)


def to_worker(world: World, name: str) -> None:
    nodes.command(world, name, world.own("link:" + name).to_worker.pop(0))


def to_router(world: World, name: str) -> None:
    link: Link = world.own("link:" + name)
    event = link.to_router.pop(0)
    attachment = link.attached.get(event.lease)
    if attachment is not None:
        _settle(attachment, event)
        routing.received(world, name, attachment.flow, event)


def dial(world: World, name: str) -> None:
    """The hello names what the router follows now; it may follow less when the answer comes."""
    link: Link = world.own("link:" + name)
    link.hello = tuple(position for lease in link.attached for position in routing.positions(world, name, lease))


def welcome(world: World, name: str) -> None:
    link: Link = world.own("link:" + name)
    named, link.hello = link.hello or (), None
    link.to_worker.clear()
    link.to_router.clear()
    link.open = True
    lacking = _resume(world, name, named)
    _reconcile(world, name, named, lacking)


def reconnect(world: World, name: str) -> None:
    dial(world, name)
    welcome(world, name)


def declare_dead(world: World, name: str) -> None:
    link: Link = world.own("link:" + name)
    link.up = link.open = False
    link.hello = None
    link.number += 1
    link.to_router.clear()
    _bury(world, name)


def worker_grace(world: World, name: str) -> None:
    nodes.end_all(world, name)
    world.own("link:" + name).worker_number = None


def _resume(world: World, name: str, named: tuple[Position, ...]) -> set[bytes]:
    """The worker's part: ends what is not named, says again what the router lacks; returns what it does not know."""
    link: Link = world.own("link:" + name)
    leases = {position.lease for position in named}
    if link.worker_number != link.number:
        nodes.end_all(world, name)
        link.worker_number = link.number
        return leases
    for lease in list(world.look(name).records):
        if lease not in leases:
            nodes.end(world, name, lease)
    known = set(world.look(name).records)
    for lease in sorted(leases & known):
        nodes.again(world, name, lease, tuple(position for position in named if position.lease == lease))
    return leases - known


def _reconcile(world: World, name: str, named: tuple[Position, ...], lacking: set[bytes]) -> None:
    """The router's part: another process life is the old one's death; what may be lost is sent again."""
    link: Link = world.own("link:" + name)
    if link.incarnation != world.look(name).incarnation:
        link.incarnation = world.look(name).incarnation
        _bury(world, name)
    link.up = True
    for lease in dict.fromkeys(position.lease for position in named):
        if lease not in link.attached and lease not in lacking and not world.scenario.trusts_hello:
            link.to_worker.append(End(lease))  # it ended between the hello and its answer
    for lease, attachment in list(link.attached.items()):
        if lease in lacking and attachment.answered:
            del link.attached[lease]
            world.own("router").losses.append((attachment.flow, name, lease))
        else:
            link.to_worker.extend(attachment.pending)


def _bury(world: World, name: str) -> None:
    link: Link = world.own("link:" + name)
    for lease, attachment in link.attached.items():
        world.own("router").losses.append((attachment.flow, name, lease))
    link.attached.clear()


def _settle(attachment: Attachment, event: Event) -> None:
    """Forgets the commands that `event` answers; Committed names an older epoch than the fence that it answers."""
    attachment.answered = True
    attachment.pending = [
        command
        for command in attachment.pending
        if not isinstance(event, _ANSWERS.get(type(command), (Tokens, HandedOff, Failed)))
        or (not isinstance(command, Fence) and event.epoch < command.epoch)
    ]
