"""Breadth-first search over all reachable states: the first violation comes with the shortest way to it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tests.explore import nodes, routing, steps
from tests.explore.snapshot import Keys
from tests.explore.world import Channels, Faults, Link, Router, Scenario, Violation, World


@dataclass(frozen=True)
class Explored:
    num_states: int
    num_steps: int
    num_endings: int  # states in which everything was quiet


def start(scenario: Scenario) -> World:
    parts: dict[str, object] = {"router": Router(), "kv": Channels(), "faults": Faults(left=scenario.num_faults)}
    for name in (*scenario.prefills, *scenario.decodes):
        parts["link:" + name] = Link()
    for name in scenario.prefills:
        parts[name] = nodes.Worker(name)
    for name in scenario.decodes:
        count = scenario.num_blocks
        parts[name] = nodes.Decode(name, owners=[None] * count, blocks=[{} for _ in range(count)])
    world = World(scenario, Keys(), parts, {})  # type: ignore[arg-type]
    for number in range(scenario.num_requests):
        coordinator = scenario.coordinator(scenario.spec, max_attempts=scenario.max_attempts)
        routing.begin(world, f"r{number}", coordinator)
    return world


def explore(scenario: Scenario, max_states: int | None = None) -> Explored:
    """Visits every state; raises Violation with the steps that lead to the first bad one."""
    first = start(scenario)
    came_from: dict[tuple[int, ...], tuple[tuple[int, ...], str] | None] = {first.key(): None}
    frontier = deque([(first, first.key())])
    num_steps = num_endings = 0
    while frontier:
        world, key = frontier.popleft()
        quiet = True
        for ordinary, (label, act, args) in _all_steps(world):
            quiet = quiet and not ordinary
            num_steps += 1
            following = world.fork()
            try:
                act(following, *args)
            except (Violation, ValueError, KeyError) as violation:
                raise Violation(_story(scenario, came_from, key, f"{label}: {violation!r}")) from violation
            reached = following.key()
            if reached not in came_from:
                came_from[reached] = (key, label)
                frontier.append((following, reached))
        if quiet:
            num_endings += 1
            wrong = check_end(world)
            if wrong is not None:
                raise Violation(_story(scenario, came_from, key, wrong))
        if max_states is not None and len(came_from) > max_states:
            raise Violation(f"{scenario.name}: more than {max_states} states")
    return Explored(len(came_from), num_steps, num_endings)


def check_end(world: World) -> str | None:
    """What is wrong with a state from which nothing moves any more."""
    router = world.look("router")
    if not router.dead and len(router.endings) != len(router.flows):
        return "deadlock: a request without an ending"
    if not router.dead and not router.cancelled and "failed" not in router.endings.values():
        scenario = world.scenario
        if len(router.done) != scenario.num_requests * scenario.num_choices:
            return "an ending without every token"
    for name in (*world.scenario.prefills, *world.scenario.decodes):
        worker = world.look(name)
        if worker.records or world.look("link:" + name).attached:
            return f"{name} still holds a lease"
    for name in world.scenario.decodes:
        worker = world.look(name)
        if worker.writes or worker.closing or any(owner is not None for owner in worker.owners):
            return f"{name} still holds blocks"
    return None


def _all_steps(world: World) -> list[tuple[bool, steps.Step]]:
    alone = steps.urgent(world)
    if alone is not None:
        return [(True, alone)]
    return [(True, step) for step in steps.ordinary(world)] + [(False, step) for step in steps.faults(world)]


def _story(
    scenario: Scenario, came_from: dict[tuple[int, ...], tuple[tuple[int, ...], str] | None], key: tuple[int, ...], end: str
) -> str:
    lines = [end]
    while (origin := came_from[key]) is not None:
        key, label = origin
        lines.append(label)
    return f"{scenario.name}:\n  " + "\n  ".join(f"{n}. {line}" for n, line in enumerate(reversed(lines), 1))
