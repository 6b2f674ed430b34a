"""Every step that the world can take from here, and the words for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.explore import channels, faults, linking, nodes, routing
from tests.explore.world import Link, Step, World


def every(world: World) -> list[tuple[bool, Step]]:
    """The steps, and whether each is ordinary: none of those left means that the run is over."""
    alone = urgent(world)
    if alone is not None:
        return [(True, alone)]
    return [*((True, step) for step in ordinary(world)), *((False, step) for step in faults.steps(world))]


def ordinary(world: World) -> Iterator[Step]:
    router = world.look("router")
    for flow in router.placing:
        for prefill, decode in routing.candidates(world, flow):
            yield routing.place, (flow, prefill, decode)
    for name in world.scenario.workers:
        yield from linking.steps(world, name)
        if world.look(name).paused and (router.dead or not world.look("link:" + name).up):
            yield wake, (name,)
    yield from _prefill_steps(world)
    yield from _decode_steps(world)
    yield from channels.steps(world)


def urgent(world: World) -> Step | None:
    """A step to take alone, for no other order of it can matter: throwing away what no one listens to. In a reduced
    scenario also the reconnection of an idle link and, after the last ending, one order of cleaning up instead of all."""
    leases = {coordinator.lease for coordinator in world.look("router").flows.values()}
    for name in world.scenario.workers:
        link: Link = world.look("link:" + name)
        if link.to_router and link.to_router[0].lease not in leases:
            return linking.to_router, (name,)
        reachable = not world.look("router").dead and not world.look(name).paused
        if world.scenario.reduced and not link.open and reachable and not faults.involved(world, name):
            return linking.reconnect, (name,)
    for number, channel in world.look("kv").by_number.items():
        if channel.to_target and not world.look(channel.target).paused:
            record = world.look(channel.target).records.get(channel.to_target[0].message.lease)
            if record is None:
                return channels.to_target, (number,)
        if channel.to_source and not world.look(channel.source).paused:
            record = world.look(channel.source).records.get(channel.to_source[0].lease)
            if record is None or record.over:
                return channels.to_source, (number,)
    return next(ordinary(world), None) if world.scenario.reduced and faults.over(world) else None


def wake(world: World, name: str) -> None:
    world.own(name).paused = False


def preempt(world: World, name: str, lease: bytes, choice: int) -> None:
    world.own("faults").preempted = True
    nodes.preempt(world, name, lease, choice)


def tell(world: World, step: Step) -> str:
    """The step in a line, told before it is taken."""
    act, args = step
    if act is faults.happen:
        act, *args = args  # type: ignore[assignment]
    words = [act.__name__.replace("_", " "), *(arg.decode() if isinstance(arg, bytes) else str(arg) for arg in args)]
    return " ".join(words) + _message(world, act.__name__, args[0] if args else None)


def _prefill_steps(world: World) -> Iterator[Step]:
    for name in world.scenario.prefills:
        worker = world.look(name)
        for lease, record in worker.records.items():
            if not worker.paused and not record.over and record.computed < record.spec.total_len:
                yield nodes.compute, (name, lease)


def _decode_steps(world: World) -> Iterator[Step]:
    for name in world.scenario.decodes:
        worker = world.look(name)
        if worker.paused:
            continue
        for at in range(len(worker.writes)):
            yield nodes.landed, (name, at)
        for lease, record in worker.records.items():
            for choice in record.outputs:
                yield nodes.decode, (name, lease, choice)
                if world.scenario.preempts and not world.look("faults").preempted:
                    yield preempt, (name, lease, choice)


def _message(world: World, act: str, subject: Any) -> str:
    match act:
        case "to_worker" | "to_router":
            return ": " + _short(getattr(world.look(f"link:{subject}"), act)[0])
        case "to_source":
            return ": " + _short(world.look("kv").by_number[subject].to_source[0])
        case "to_target":
            return ": " + _short(world.look("kv").by_number[subject].to_target[0].message)
    return ""


def _short(message: Any) -> str:
    shown = ("lease", "epoch", "sequence", "choice", "index", "num_cached", "output_ids", "ok", "reason", "num_tokens")
    values = {name: getattr(message, name, None) for name in shown}
    parts = [
        f"{name}={value.decode() if isinstance(value, bytes) else value}"
        for name, value in values.items()
        if value is not None and value not in ((), "")
    ]
    ids = [token.id for token in getattr(message, "tokens", ())]
    return f"{type(message).__name__}({', '.join(parts)}{f', ids={ids}' if ids else ''})"
