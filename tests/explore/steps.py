"""Every step that the world can take from here: deliveries, local work, ends of graces, and faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from baton.wire.types import Committed, Event, Failed, Fence, Fenced, Gone, HandedOff, Refused, Reserved, StartDecode, Tokens
from tests.explore import nodes, routing
from tests.explore.labels import short
from tests.explore.world import Attachment, Channel, Link, World

Step = tuple[str, Callable[..., None], tuple[Any, ...]]

_ANSWERS: dict[type, tuple[type, ...]] = {
    StartDecode: (Reserved, Refused, Failed),
    Fence: (Fenced, Committed, Gone),
}


def ordinary(world: World) -> Iterator[Step]:
    """What happens without a new fault. None left: the run is over."""
    scenario = world.scenario
    yield from _router_steps(world)
    for name in (*scenario.prefills, *scenario.decodes):
        yield from _link_steps(world, name)
        if world.look(name).paused:
            yield f"wake {name}", _wake, (name,)
    for name in scenario.prefills:
        yield from _prefill_steps(world, name)
    for name in scenario.decodes:
        yield from _decode_steps(world, name)
    yield from _channel_steps(world)


def urgent(world: World) -> Step | None:
    """A step to take alone, for no other order of it can matter: throwing away what no one listens to. In a reduced
    scenario also the reconnection of an idle link and, after the last ending, one order of cleaning up instead of all."""
    for name in (*world.scenario.prefills, *world.scenario.decodes):
        link: Link = world.look("link:" + name)
        if link.to_router and link.to_router[0].lease not in link.attached:
            return f"router drops {short(link.to_router[0])} from {name}", _to_router, (name,)
        if world.scenario.reduced and not link.open and not _involved(world, name) and not _router_gone(world, name):
            return f"{name} is connected again", _reconnect, (name,)
    for number, channel in world.look("kv").by_number.items():
        if channel.to_target and not world.look(channel.target).paused:
            record = world.look(channel.target).records.get(channel.to_target[0].message.lease)
            if record is None:
                return f"{channel.target} refuses {short(channel.to_target[0].message)}", _to_target, (number,)
        if channel.to_source and not world.look(channel.source).paused:
            record = world.look(channel.source).records.get(channel.to_source[0].lease)
            if record is None or record.over:
                return f"{channel.source} drops {short(channel.to_source[0])}", _to_source, (number,)
    return next(ordinary(world), None) if world.scenario.reduced and _over(world) else None


def _router_gone(world: World, name: str) -> bool:
    return world.look("router").dead or world.look(name).paused


def _reconnect(world: World, name: str) -> None:
    _dial(world, name)
    _welcome(world, name)


def faults(world: World) -> Iterator[Step]:
    if not world.look("faults").left or _over(world):
        return
    kinds = world.scenario.faults
    for name in (*world.scenario.prefills, *world.scenario.decodes):
        if not _involved(world, name):
            continue
        if "kill" in kinds:
            yield f"kill {name}", _fault, (_kill, name)
        if "pause" in kinds and not world.look(name).paused:
            yield f"pause {name}", _fault, (_pause, name)
        if "break_link" in kinds and world.look("link:" + name).open:
            yield f"break the link to {name}", _fault, (_break_link, name)
    for number, channel in world.look("kv").by_number.items():
        if "break_kv" in kinds and channel.open:
            yield f"break channel {number}", _fault, (_break_channel, number)
        if "corrupt" in kinds and channel.to_target and channel.to_target[0].content is not None:
            yield f"corrupt a frame on channel {number}", _fault, (_corrupt, number)
    if "router_dies" in kinds:
        yield "the router dies", _fault, (_router_dies,)
    if "cancel" in kinds and not world.look("router").cancelled:
        yield "the client leaves", _client_leaves, ()


def _over(world: World) -> bool:
    router = world.look("router")
    return router.dead or len(router.endings) == len(router.flows)


def _involved(world: World, name: str) -> bool:
    """A fault at a worker that has nothing to do with a request changes nothing but placement."""
    link = world.look("link:" + name)
    return bool(link.attached or world.look(name).records or link.to_worker)


# --- the router --------------------------------------------------------------------------------------------------


def _router_steps(world: World) -> Iterator[Step]:
    router = world.look("router")
    if router.losses:
        yield "the router notices a loss", routing.notice_loss, ()
    for flow in router.placing:
        for prefill, decode in routing.candidates(world, flow):
            yield f"place {flow} at {prefill}, {decode}", routing.place, (flow, prefill, decode)
    for flow, coordinator in router.flows.items():
        if coordinator.reserving and _unreachable(world, coordinator.decode):
            yield f"reserve timeout of {flow}", _reserve_timeout, (flow,)


def _unreachable(world: World, name: str) -> bool:
    return world.look(name).paused or not world.look("link:" + name).open


def _reserve_timeout(world: World, flow: str) -> None:
    routing.perform(world, flow, world.own("router").flows[flow].reserve_timeout())


# --- links -------------------------------------------------------------------------------------------------------


def _link_steps(world: World, name: str) -> Iterator[Step]:
    link: Link = world.look("link:" + name)
    worker, router = world.look(name), world.look("router")
    if link.to_worker and not worker.paused:
        yield f"{name} gets {short(link.to_worker[0])}", _to_worker, (name,)
    if not link.open and link.worker_number is not None and worker.records and not worker.paused:
        yield f"the grace of the link ends at {name}", _worker_grace, (name,)
    if router.dead:
        return
    if link.to_router:
        yield f"router gets {short(link.to_router[0])} from {name}", _to_router, (name,)
    if not link.open and not worker.paused:
        if link.hello is None:
            yield f"router dials {name}", _dial, (name,)
        else:
            yield f"{name} welcomes the router", _welcome, (name,)
    if link.up and (worker.paused or not link.open):
        yield f"router declares {name} dead", _declare_dead, (name,)


def _to_worker(world: World, name: str) -> None:
    nodes.command(world, name, world.own("link:" + name).to_worker.pop(0))


def _to_router(world: World, name: str) -> None:
    link: Link = world.own("link:" + name)
    event = link.to_router.pop(0)
    attachment = link.attached.get(event.lease)
    if attachment is not None:
        _settle(attachment, event)
        routing.received(world, name, attachment.flow, event)


def _settle(attachment: Attachment, event: Event) -> None:
    attachment.answered = True
    attachment.pending = [
        command
        for command in attachment.pending
        if not isinstance(event, _ANSWERS.get(type(command), (Tokens, HandedOff, Failed)))
        or (not isinstance(command, Fence) and event.epoch < command.epoch)  # type: ignore[union-attr]
    ]


def _dial(world: World, name: str) -> None:
    """The hello names what the router follows now; it may follow less when the answer comes."""
    link: Link = world.own("link:" + name)
    live = [position for lease in link.attached for position in routing.positions(world, name, lease)]
    link.hello = tuple(live)  # type: ignore[arg-type]


def _welcome(world: World, name: str) -> None:
    link: Link = world.own("link:" + name)
    named, link.hello = link.hello or (), None
    link.to_worker.clear()
    link.to_router.clear()
    link.open = True
    lacking = _resume(world, name, named)
    worker = world.look(name)
    if link.incarnation != worker.incarnation:
        link.incarnation = worker.incarnation
        _bury(world, name)
    link.up = True
    for lease in dict.fromkeys(position.lease for position in named):
        if lease not in link.attached and lease not in lacking:
            link.to_worker.append(nodes.End(lease))  # ended between the hello and its answer
    for lease, attachment in list(link.attached.items()):
        if lease in lacking and attachment.answered:
            del link.attached[lease]
            world.own("router").losses.append((attachment.flow, name))
        else:
            link.to_worker.extend(attachment.pending)


def _resume(world: World, name: str, named: tuple[Any, ...]) -> set[bytes]:
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


def _declare_dead(world: World, name: str) -> None:
    link: Link = world.own("link:" + name)
    link.up = link.open = False
    link.hello = None
    link.number += 1
    link.to_router.clear()
    _bury(world, name)


def _bury(world: World, name: str) -> None:
    link: Link = world.own("link:" + name)
    for attachment in link.attached.values():
        world.own("router").losses.append((attachment.flow, name))
    link.attached.clear()


def _worker_grace(world: World, name: str) -> None:
    nodes.end_all(world, name)
    world.own("link:" + name).worker_number = None


# --- workers and channels ----------------------------------------------------------------------------------------


def _prefill_steps(world: World, name: str) -> Iterator[Step]:
    worker = world.look(name)
    if worker.paused:
        return
    for lease, record in worker.records.items():
        if not record.over and record.computed < record.spec.total_len:
            yield f"{name} computes {record.computed + 1} of {lease!r}", nodes.compute, (name, lease)
        waiting = record.attempt is not None and not record.over and record.channel is not None
        if waiting and world.look(record.target).paused:
            yield f"the transfer of {lease!r} stalls", nodes.lose, (name, lease, "stalled")


def _decode_steps(world: World, name: str) -> Iterator[Step]:
    worker = world.look(name)
    if worker.paused:
        return
    for at in range(len(worker.writes)):
        yield f"{name} has written {short(worker.writes[at].item.message)}", nodes.landed, (name, at)
    for lease, record in worker.records.items():
        for choice in record.outputs:
            yield f"{name} decodes {lease!r}, choice {choice}", nodes.decode, (name, lease, choice)
            if world.scenario.preempts and not world.look("faults").preempted:
                yield f"{name} preempts {lease!r}, choice {choice}", _preempt, (name, lease, choice)


def _preempt(world: World, name: str, lease: bytes, choice: int) -> None:
    world.own("faults").preempted = True
    nodes.preempt(world, name, lease, choice)


def _channel_steps(world: World) -> Iterator[Step]:
    for number, channel in world.look("kv").by_number.items():
        if channel.to_target and not world.look(channel.target).paused:
            yield f"{channel.target} takes {short(channel.to_target[0].message)}", _to_target, (number,)
        if channel.to_source and not world.look(channel.source).paused:
            yield f"{channel.source} takes {short(channel.to_source[0])}", _to_source, (number,)
        if not channel.open and not world.look(channel.source).paused and _senders(world, number, channel):
            yield f"{channel.source} notices that channel {number} broke", _notice, (number,)


def _senders(world: World, number: int, channel: Channel) -> list[bytes]:
    return [
        lease
        for lease, record in world.look(channel.source).records.items()
        if record.channel == number and not record.over and record.attempt is not None
    ]


def _to_target(world: World, number: int) -> None:
    channel: Channel = world.own("kv").by_number[number]
    item = channel.to_target.pop(0)
    _forget_if_spent(world, number)
    nodes.arrived(world, channel.target, number, item)


def _to_source(world: World, number: int) -> None:
    channel: Channel = world.own("kv").by_number[number]
    answer = channel.to_source.pop(0)
    nodes.answered(world, channel.source, answer)


def _notice(world: World, number: int) -> None:
    channel: Channel = world.own("kv").by_number[number]
    channel.to_source.clear()
    for lease in _senders(world, number, channel):
        nodes.lose(world, channel.source, lease, "channel_lost")
    _forget_if_spent(world, number)


def _forget_if_spent(world: World, number: int) -> None:
    channels = world.own("kv")
    channel = channels.by_number.get(number)
    if channel is not None and not channel.open and not channel.to_target and not _senders(world, number, channel):
        del channels.by_number[number]


# --- faults ------------------------------------------------------------------------------------------------------


def _fault(world: World, fault: Callable[..., None], *args: Any) -> None:
    count = world.own("faults")
    count.left -= 1
    count.harmful += 1
    fault(world, *args)


def _client_leaves(world: World) -> None:
    world.own("faults").left -= 1
    routing.cancel(world)


def _router_dies(world: World) -> None:
    routing.die(world)
    for name in (*world.scenario.prefills, *world.scenario.decodes):
        link: Link = world.own("link:" + name)
        link.open = link.up = False
        link.hello = None
        link.attached.clear()
        link.to_router.clear()


def _kill(world: World, name: str) -> None:
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
            if name == channel.target:
                world.own("kv").by_number[number].to_target.clear()
            _break_channel(world, number)


def _pause(world: World, name: str) -> None:
    world.own(name).paused = True


def _wake(world: World, name: str) -> None:
    world.own(name).paused = False


def _break_link(world: World, name: str) -> None:
    world.own("link:" + name).open = False


def _break_channel(world: World, number: int) -> None:
    channel: Channel = world.own("kv").by_number[number]
    channel.open = False
    channel.to_source.clear()
    _forget_if_spent(world, number)


def _corrupt(world: World, number: int) -> None:
    channel: Channel = world.own("kv").by_number[number]
    first = channel.to_target[0]
    channel.to_target[0] = type(first)(first.message, first.content, intact=False)
