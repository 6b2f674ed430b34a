"""A search through all reachable states: a violation comes with the steps that lead to it."""

from __future__ import annotations

import random
from array import array
from collections import deque
from dataclasses import dataclass

from tests.explore import nodes, routing, steps
from tests.explore.snapshot import Keys, Part
from tests.explore.world import Channels, Faults, Link, Router, Scenario, Violation, World

FAULT_CHANCE = 0.06
"""Of a random step: two faults then fall anywhere in a walk of about 40 steps."""

CameFrom = dict[bytes, tuple[bytes, int]]
"""By state: the one it was first reached from, and the number of the step there."""


@dataclass(frozen=True)
class Explored:
    num_states: int
    num_steps: int
    num_endings: int  # states in which nothing moves any more


def start(scenario: Scenario) -> World:
    parts: dict[str, Part] = {"router": Router(), "kv": Channels(), "faults": Faults(left=scenario.num_faults)}
    for name in scenario.workers:
        parts["link:" + name] = Link()
    for name in scenario.prefills:
        parts[name] = nodes.Worker(name)
    for name in scenario.decodes:
        count = scenario.num_blocks
        parts[name] = nodes.Decode(name, owners=[None] * count, blocks=[{} for _ in range(count)])
    world = World(scenario, Keys(), parts, {})
    for number in range(scenario.num_requests):
        coordinator = scenario.coordinator(scenario.spec, max_attempts=scenario.max_attempts)
        routing.begin(world, f"r{number}", coordinator)
    return world


def explore(scenario: Scenario, max_states: int | None = None, *, shortest: bool = False) -> Explored:
    """Visits every state. Raises Violation at the first bad one; `shortest`: with the fewest steps, for more memory.

    RuntimeError if there are more than `max_states`.
    """
    first = start(scenario)
    came_from: CameFrom = {_key(first): (b"", 0)}
    frontier = deque([(first, _key(first))])
    num_steps = num_endings = 0
    while frontier:
        world, key = frontier.popleft() if shortest else frontier.pop()
        quiet = True
        for number, (ordinary, step) in enumerate(steps.every(world)):
            num_steps += 1
            following, reached = _take(scenario, world, key, came_from, number, step)
            quiet = quiet and (not ordinary or reached == key)
            if reached not in came_from:
                came_from[reached] = (key, number)
                frontier.append((following, reached))
        if quiet:
            num_endings += 1
            wrong = check_end(world)
            if wrong is not None:
                raise Violation(_story(scenario, came_from, key, None, wrong))
        if max_states is not None and len(came_from) > max_states:
            raise RuntimeError(f"{scenario.name}: more than {max_states} states")
    return Explored(len(came_from), num_steps, num_endings)


def wander(scenario: Scenario, num_walks: int, seed: int) -> int:
    """Walks at random from the start until nothing moves any more, `num_walks` times: for what is too large to visit whole.

    The number of steps taken. Raises Violation at the first bad state, telling how it came about.
    """
    rng, num_steps = random.Random(seed), 0
    for _ in range(num_walks):
        came_from: CameFrom = {}
        world = start(scenario)
        key = _key(world)
        came_from[key] = (b"", 0)
        while (taken := _stray(scenario, world, key, came_from, rng)) is not None:
            world, key = taken
            num_steps += 1
        wrong = check_end(world)
        if wrong is not None:
            raise Violation(_story(scenario, came_from, key, None, wrong))
    return num_steps


def _stray(scenario: Scenario, world: World, key: bytes, came_from: CameFrom, rng: random.Random) -> tuple[World, bytes] | None:
    """One random step to a state new to this walk, a fault now and then; None where no ordinary step leads on."""
    numbered = list(enumerate(steps.every(world)))
    rng.shuffle(numbered)
    if rng.random() > FAULT_CHANCE:
        numbered.sort(key=lambda one: not one[1][0])
    for number, (_, step) in numbered:
        following, reached = _take(scenario, world, key, came_from, number, step)
        if reached in came_from:
            continue
        came_from[reached] = (key, number)
        return following, reached
    return None


def _take(
    scenario: Scenario, world: World, key: bytes, came_from: CameFrom, number: int, step: steps.Step
) -> tuple[World, bytes]:
    """The state behind one step, and its key. Raises Violation with the story of how it came about."""
    act, args = step
    following = world.fork()
    try:
        act(following, *args)
        routing.hear_losses(following)
    except (Violation, ValueError, LookupError) as violation:
        raise Violation(_story(scenario, came_from, key, number, repr(violation))) from violation
    return following, _key(following)


def check_end(world: World) -> str | None:
    """What is wrong with a state from which nothing moves any more."""
    router: Router = world.look("router")
    scenario = world.scenario
    if not router.dead:
        if len(router.endings) != len(router.flows):
            return "deadlock: a request without an ending"
        complete = len(router.done) == scenario.num_requests * scenario.num_choices
        if not complete and not router.cancelled and "failed" not in router.endings.values():
            return "an ending without every token"
    for name in scenario.workers:
        if world.look(name).records or world.look("link:" + name).attached:
            return f"{name} still holds a lease"
    for name in scenario.decodes:
        worker: nodes.Decode = world.look(name)
        if worker.writes or worker.closing or any(owner is not None for owner in worker.owners):
            return f"{name} still holds blocks"
    return None


def _key(world: World) -> bytes:
    return array("I", world.key()).tobytes()


def _story(scenario: Scenario, came_from: CameFrom, key: bytes, last: int | None, end: str) -> str:
    """Takes the steps again, to tell them."""
    numbers = [] if last is None else [last]
    while came_from[key][0]:
        key, number = came_from[key]
        numbers.append(number)
    world, lines = start(scenario), []
    for count, number in enumerate(reversed(numbers), 1):
        step = steps.every(world)[number][1]
        lines.append(f"{count}. {steps.tell(world, step)}")
        world = world.fork()
        if last is None or count < len(numbers):
            step[0](world, *step[1])
            routing.hear_losses(world)
            world.key()
    return f"{scenario.name}: {end}\n  " + "\n  ".join(lines)
