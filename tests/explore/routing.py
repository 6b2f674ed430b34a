"""The router of the explored world: performs the coordinator's actions and keeps what the client was sent."""

from __future__ import annotations

from baton.wire.types import Command, DecodeTarget, End, Event, Fence, Finish, LeaseId
from kvtransfer.protocol.actions import Accept, Action, Done, Fail, Place, PlaceKind, Propose, Replay, Requeue, Send, Split
from kvtransfer.protocol.coordinator import Coordinator
from tests.explore import texts
from tests.explore.world import Attachment, Router, Violation, World


def begin(world: World, flow: str, coordinator: Coordinator) -> None:
    world.own("router").flows[flow] = coordinator
    perform(world, flow, coordinator.begin())


def perform(world: World, flow: str, actions: list[Action]) -> None:
    router: Router = world.own("router")
    coordinator = router.flows[flow]
    for action in actions:
        match action:
            case Accept():
                _accept(world, flow, action)
            case Propose() if (_request(flow), action.choice) not in router.done:
                _end_choice(world, flow, action.choice)
            case Replay():
                perform(world, flow, coordinator.event(action.source, action.event))
            case Place():
                router.placing[flow] = action
            case Requeue():
                router.waiting_for[flow] = action.worker
            case Send():
                send(world, flow, action.worker, action.command)
            case Split():
                for spec in action.specs:
                    child = world.scenario.coordinator(
                        spec, max_attempts=world.scenario.max_attempts, attempt=action.attempt, exclude=action.exclude
                    )
                    begin(world, f"{_request(flow)}/{spec.choices[0]}.{action.attempt}", child)
            case Done() | Fail():
                _end_flow(world, flow, action)


def place(world: World, flow: str, prefill: str, decode: str | None) -> None:
    router: Router = world.own("router")
    asked = router.placing.pop(flow)
    router.waiting_for.pop(flow, None)
    coordinator = router.flows[flow]
    if asked.kind is PlaceKind.PREFILL and coordinator.lease is not None:
        perform(world, flow, coordinator.placed(coordinator.lease, prefill))
        return
    lease = f"{_request(flow)}#{router.num_leases}".encode()
    router.num_leases += 1
    target = None if decode is None else DecodeTarget(decode, bytes([world.look("link:" + decode).incarnation]))
    perform(world, flow, coordinator.placed(lease, prefill, target))


def candidates(world: World, flow: str) -> list[tuple[str, str | None]]:
    """The placement that a router would choose now: none, or one. Workers that failed the request come last."""
    asked: Place = world.look("router").placing[flow]
    awaited = world.look("router").waiting_for.get(flow)
    if awaited is not None and None not in world.look(awaited).owners:
        return []

    def best(names: tuple[str, ...]) -> str | None:
        up = [name for name in names if world.look("link:" + name).up]
        return min(up, key=lambda name: (name in asked.exclude, name), default=None)

    prefill = best(world.scenario.prefills)
    decode = best(world.scenario.decodes) if asked.kind is PlaceKind.PAIR else None
    if prefill is None or (asked.kind is PlaceKind.PAIR and decode is None):
        return []
    return [(prefill, decode)]


def send(world: World, flow: str, worker: str, command: Command) -> None:
    """As the router's end of a link does: starts and fences are kept until they are answered, an End detaches."""
    link = world.own("link:" + worker)
    lease = command.lease
    if isinstance(command, End):
        link.attached.pop(lease, None)
    elif not isinstance(command, Finish):
        if not link.up:
            world.own("router").losses.append((flow, worker, lease))
            return
        if not isinstance(command, Fence) and lease not in link.attached:
            link.attached[lease] = Attachment(flow)
        if lease not in link.attached:
            return
        link.attached[lease].pending.append(command)
    if link.open:
        link.to_worker.append(command)


def hear_losses(world: World) -> None:
    """A flow hears what its inbox holds before it waits for anything else, such as workers for another lease."""
    while not world.look("router").dead and world.look("router").losses:
        flow, worker, lease = world.own("router").losses.pop(0)
        perform(world, flow, world.own("router").flows[flow].lost(worker, lease))


def received(world: World, worker: str, flow: str, event: Event) -> None:
    perform(world, flow, world.own("router").flows[flow].event(worker, event))


def cancel(world: World) -> None:
    router: Router = world.own("router")
    router.cancelled = True
    for flow in list(router.flows):
        perform(world, flow, router.flows[flow].cancel())


def die(world: World) -> None:
    """The process is gone: its clients' connections broke, which ends their requests."""
    router: Router = world.own("router")
    router.dead = True
    router.flows.clear()
    router.placing.clear()
    router.losses.clear()


def positions(world: World, worker: str, lease: LeaseId) -> tuple[object, ...]:
    link = world.look("link:" + worker)
    coordinator = world.look("router").flows[link.attached[lease].flow]
    return tuple(position for position in coordinator.positions if position.lease == lease)


def _accept(world: World, flow: str, action: Accept) -> None:
    router: Router = world.own("router")
    text = (_request(flow), action.choice)
    if text in router.done:
        return
    if flow in router.endings:
        raise Violation(f"a token after the ending of {flow}")
    sent = router.tokens.setdefault(text, [])
    if action.index != len(sent) or not texts.follows(action.token.id, *text, tuple(sent)):
        raise Violation(f"token {action.index} does not follow the {len(sent)} tokens that the client has")
    sent.append(action.token.id)
    if len(sent) == (world.scenario.stop_at or world.scenario.max_tokens):
        _end_choice(world, flow, action.choice)


def _end_choice(world: World, flow: str, choice: int) -> None:
    router: Router = world.own("router")
    text = (_request(flow), choice)
    router.done.add(text)
    perform(world, flow, router.flows[flow].choice_done(choice, len(router.tokens[text])))


def _end_flow(world: World, flow: str, ending: Done | Fail) -> None:
    router: Router = world.own("router")
    if flow in router.endings:
        raise Violation(f"a second ending of {flow}")
    if isinstance(ending, Fail) and world.look("faults").harmful < world.scenario.max_attempts:
        raise Violation(f"failed for want of attempts after fewer faults than that: {ending.message}")
    router.endings[flow] = "done" if isinstance(ending, Done) else "failed"
    router.placing.pop(flow, None)


def _request(flow: str) -> str:
    return flow.partition("/")[0]
