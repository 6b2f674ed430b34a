"""One trial: a request, a worker that dies at a chosen point of it, and the answer that must not show it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tests.faults.talk import busy, counted, limited, owner, reference, stopped_at, talking, until, words
from tests.support.answers import assert_same
from tests.support.asking import streamed
from tests.support.gate import Gate
from tests.support.processes import Cluster, Worker

MAX_TOKENS = 40
AT_ONCE, AFTERWARDS = "at once", "afterwards"
PENALTIES = {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2}


@dataclass(frozen=True)
class Kill:
    """`victim` dies when `num` steps or messages have passed the gates of `at`: its next one waits."""

    victim: str
    at: str
    num: int


KILLS: tuple[tuple[str, str, Callable[[random.Random, int], int]], ...] = (
    ("decode", "decode step", lambda rng, length: rng.randrange(length - 1)),
    ("decode", "decode step", lambda rng, length: rng.randrange(length - 1)),
    ("decode", "prefill step", lambda rng, length: rng.randrange(2)),
    ("decode", "message", lambda rng, length: rng.randrange(3)),
    ("prefill", "prefill step", lambda rng, length: rng.randrange(2)),
    ("prefill", "message", lambda rng, length: rng.randrange(3)),
    ("prefill", "decode step", lambda rng, length: rng.randrange(length - 1)),
)
"""Who dies, whose gate it dies at, and how many steps or messages of that kind pass before."""


async def run_trial(cluster: Cluster, seed: int, restart: str = AFTERWARDS) -> str | None:
    """What was killed where, after the answer was found whole; None if the answer ended before that point.

    `restart`: when the victim comes back, before or after the answer is awaited.
    """
    rng = random.Random(seed)
    kill, fields = await _draw(cluster, rng)
    where = f"seed {seed}: {kill} of {fields}"
    wait_accepted = rng.random() < 0.5
    before = counted(cluster, "baton_generation_tokens_total")
    with ExitStack() as stack:
        gates = _gates(cluster, kill.at)
        stack.enter_context(limited(gates, kill.num))
        async with talking(cluster, fields) as task:
            gate = await stopped_at(gates, task)
            if gate is None:
                return None
            if kill.at == "decode step" and wait_accepted:
                await until(
                    lambda: counted(cluster, "baton_generation_tokens_total") >= before + kill.num + 1, "tokens are accepted"
                )
            victim = await _victim(cluster, kill, gate)
            victim.kill()
            if restart == AT_ONCE:
                victim.restart()
            stack.close()
            answer = await task
    if restart == AFTERWARDS:
        victim.restart()
    cluster.assert_idle()
    assert_same(answer, await streamed(cluster, fields), where)
    return f"{kill.victim} at {kill.at} {kill.num}"


async def _draw(cluster: Cluster, rng: random.Random) -> tuple[Kill, dict[str, Any]]:
    victim, at, draw = rng.choice(KILLS)
    fields = await _request(cluster, rng)
    length = (await reference(cluster, fields)).completion_tokens // fields["n"]
    kill = Kill(victim, at, draw(rng, length))
    if at == "decode step" and rng.random() < 0.4:
        fields = await _with_stop(cluster, fields, kill)
    return kill, fields


async def _request(cluster: Cluster, rng: random.Random) -> dict[str, Any]:
    fields: dict[str, Any] = {"prompt": words(rng, rng.randrange(70, 200)), "max_tokens": MAX_TOKENS, "n": 1}
    fields |= {"model": cluster.model, "temperature": 0}
    if rng.random() < 0.5:
        fields |= {"temperature": 1, "seed": rng.randrange(2**31), "n": rng.choice((1, 1, 2, 3))}
    if rng.random() < 0.4:
        fields |= PENALTIES
    if rng.random() < 0.4:
        fields["logprobs"] = 3
    return fields


async def _with_stop(cluster: Cluster, fields: dict[str, Any], kill: Kill) -> dict[str, Any]:
    """A stop string whose beginning is said before the kill, and its end after it."""
    text = (await reference(cluster, fields)).choices[0].text
    stop = text[kill.num : kill.num + 4]
    fits = stop.isascii() and stop.isprintable() and len(stop) == 4 and text.find(stop) == kill.num
    return fields | {"stop": stop} if fits and fields["n"] == 1 else fields


def _gates(cluster: Cluster, at: str) -> list[Gate]:
    gates: Mapping[str, list[Gate]] = {
        "decode step": [worker.gate for worker in cluster.decode],
        "prefill step": [worker.gate for worker in cluster.prefill],
        "message": [worker.link.gate for worker in cluster.prefill],
    }
    return gates[at]


async def _victim(cluster: Cluster, kill: Kill, gate: Gate) -> Worker:
    """The one that works on the request: it waits at the gate, or it is the busy one of the other role."""
    at_gate = owner(cluster.workers, gate)
    workers = cluster.decode if kill.victim == "decode" else cluster.prefill
    if at_gate in workers:
        return at_gate
    return await until(lambda: next(filter(busy(cluster).__contains__, workers), None), f"a {kill.victim} worker is busy")
