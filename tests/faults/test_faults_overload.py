"""More requests than a queue holds: those beyond are told so at once, the others are served."""

from __future__ import annotations

import asyncio
from typing import Any

from baton.client import AsyncClient
from baton.wire.errors import Overloaded
from tests.faults.load import Failure, attempt
from tests.faults.talk import counted, until
from tests.support.asking import http

NUM, SLOTS, LIMIT = 200, 2, 10
DIGITS = ("1234567890" * 50)[:400]


async def test_c328_two_hundred_at_once(faulty, scripted):
    """Prefill waits until all have come: two were taken, ten wait, the rest is sent away."""
    cluster = faulty(scripted, 1, 1, worker={"max_num_seqs": SLOTS}, router={"queue_limit": LIMIT})
    fields = {"model": cluster.model, "prompt": "0", "max_tokens": 400, "temperature": 0}
    with cluster.prefill[0].gate.limited(0):
        async with http(cluster) as client, AsyncClient(cluster.grpc) as grpc:
            over_http = [asyncio.create_task(attempt(client, fields, stream=i % 2 == 0)) for i in range(NUM // 2)]
            over_grpc = [asyncio.create_task(_over_grpc(grpc)) for _ in range(NUM // 2)]
            refused = NUM - SLOTS - LIMIT
            await until(lambda: _num_ended([*over_http, *over_grpc]) >= refused, f"{refused} are sent away")
            assert _num_ended([*over_http, *over_grpc]) == refused
            assert cluster.metrics()["baton_num_requests_waiting"] == LIMIT
            cluster.prefill[0].gate.lift()
            outcomes = await asyncio.gather(*over_http)
            texts = await asyncio.gather(*over_grpc)
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    assert all(failure.status == 429 and float(failure.retry_after or 0) > 0 for failure in failures)
    answers = [outcome.text for outcome in outcomes if not isinstance(outcome, Failure)] + [text for text in texts if text]
    assert answers == [DIGITS] * (SLOTS + LIMIT)
    assert counted(cluster, "baton_rejection_total") == refused
    assert cluster.metrics()["baton_num_requests_waiting"] == 0


async def _over_grpc(client: AsyncClient) -> str | None:
    """The text, or None if the server has no room."""
    try:
        return (await client.complete("0", max_tokens=400, temperature=0.0)).text
    except Overloaded as error:
        return None if error.retry_after_s else "a refusal without Retry-After"


def _num_ended(tasks: list[asyncio.Task[Any]]) -> int:
    """Raises what one of them raised."""
    return len([task.result() for task in tasks if task.done()])
