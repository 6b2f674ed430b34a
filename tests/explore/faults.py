"""What goes wrong: the faults of a scenario, wherever they can hurt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.explore import channels, nodes, routing
from tests.explore.world import Channel, KvItem, Link, Step, World


def steps(world: World) -> Iterator[Step]:
    if not world.look("faults").left or over(world):
        return
    for step in _possible(world):
        if step[1][0].__name__ in world.scenario.faults:
            yield step


def over(world: World) -> bool:
    """Every request has its ending."""
    router = world.look("router")
    return router.dead or len(router.endings) == len(router.flows)


def involved(world: World, name: str) -> bool:
    """A fault at a worker that has nothing to do with a request changes nothing but placement."""
    link: Link = world.look("link:" + name)
    return bool(link.attached or world.look(name).records or link.to_worker)


def _possible(world: World) -> Iterator[Step]:
    for name in world.scenario.workers:
        if involved(world, name):
            yield happen, (kill, name)
            if not world.look(name).paused:
                yield happen, (pause, name)
            if world.look("link:" + name).open:
                yield happen, (break_link, name)
    for name in world.scenario.prefills:
        for lease, record in world.look(name).records.items():
            if record.attempt is not None and record.channel is not None and not record.attempt.over:
                yield happen, (stall, name, lease)
    for number, channel in world.look("kv").by_number.items():
        if channel.open:
            yield happen, (break_kv, number)
            if channel.to_target:
                yield happen, (cut_kv, number)
        if channel.to_target and channel.to_target[0].content is not None:
            yield happen, (corrupt, number)
    for flow, coordinator in world.look("router").flows.items():
        if coordinator.reserving:
            yield happen, (reserve_timeout, flow)
    yield happen, (router_dies,)
    if not world.look("router").cancelled:
        yield happen, (cancel,)


def happen(world: World, fault: Callable[..., None], *args: Any) -> None:
    count = world.own("faults")
    count.left -= 1
    count.harmful += fault is not cancel
    fault(world, *args)


def kill(world: World, name: str) -> None:
    """The process dies and is at once started again, empty, under another incarnation."""
    link: Link = world.own("link:" + name)
    link.open, link.hello, link.worker_number = False, None, None
    link.to_worker.clear()
    worker = world.own(name)
    worker.incarnation += 1
    worker.paused = False
    worker.records.clear()
    if isinstance(worker, nodes.Decode):
        worker.closing.clear()
        worker.writes.clear()
        worker.owners = [None] * len(worker.owners)
        worker.blocks = [{} for _ in worker.blocks]
    for number, channel in list(world.look("kv").by_number.items()):
        if name in (channel.source, channel.target):
            channels.shut(world, number, arriving=name == channel.source)


def pause(world: World, name: str) -> None:
    """Until the router has declared it dead: a shorter pause is one more order of the same steps."""
    world.own(name).paused = True


def break_link(world: World, name: str) -> None:
    world.own("link:" + name).open = False


def break_kv(world: World, number: int) -> None:
    channels.shut(world, number, arriving=True)


def cut_kv(world: World, number: int) -> None:
    channels.shut(world, number, arriving=False)


def corrupt(world: World, number: int) -> None:
    channel: Channel = world.own("kv").by_number[number]
    first = channel.to_target[0]
    channel.to_target[0] = KvItem(first.message, first.content, intact=False)


def stall(world: World, name: str, lease: bytes) -> None:
    """The sender's patience ends, with nothing broken."""
    nodes.lose(world, name, lease, "stalled")


def reserve_timeout(world: World, flow: str) -> None:
    """The router's patience ends, with the answer perhaps on its way."""
    routing.perform(world, flow, world.own("router").flows[flow].reserve_timeout())


def router_dies(world: World) -> None:
    routing.die(world)
    for name in world.scenario.workers:
        link: Link = world.own("link:" + name)
        link.open = link.up = False
        link.hello = None
        link.attached.clear()
        link.to_router.clear()


def cancel(world: World) -> None:
    routing.cancel(world)
