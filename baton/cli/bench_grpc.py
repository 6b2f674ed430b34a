"""The load test's driver for Baton's gRPC door: the load test itself knows public HTTP alone."""

from __future__ import annotations

import time
from contextlib import aclosing

from baton.client import AsyncClient, Update
from baton.loadtest.errors import BenchError, RequestFailed
from baton.loadtest.record import Answer, Request
from baton.wire.errors import BatonError

FIRST_S = 10.0
DEADLINE_S = 3600.0
"""The runner ends requests; the door's own deadline is far beyond that."""


class GrpcDriver:
    """All requests on one channel, a stream each. Every update names its token ids, so that tokens are counted exactly."""

    def __init__(self, address: str, model: str, ignore_eos: bool):
        self._client = AsyncClient(address, DEADLINE_S)
        self._model = model
        self._ignore_eos = ignore_eos

    async def generate(self, request: Request, answer: Answer) -> None:
        updates = self._client.generate(
            request.prompt, model=self._model, max_tokens=request.output_len, temperature=0.0, ignore_eos=self._ignore_eos
        )
        try:
            async with aclosing(updates):
                async for update in updates:
                    _take(update, answer)
        except BatonError as error:
            raise RequestFailed(f"grpc {error.code or type(error).__name__}", str(error)) from error
        if answer.finish is None:
            raise RequestFailed("stream cut", "the answer ended without a finish reason")
        if not answer.deltas:
            raise RequestFailed("empty answer", "the server sent no token")

    async def close(self) -> None:
        await self._client.close()


def _take(update: Update, answer: Answer) -> None:
    at_s = time.monotonic()
    for delta in update.deltas:
        answer.add(at_s, len(delta.text), len(delta.token_ids))
        if delta.finish is not None:
            answer.finish = str(delta.finish)
    if update.usage is not None:
        answer.prompt_tokens = update.usage.prompt_tokens
        answer.output_tokens = update.usage.completion_tokens
        answer.cached_tokens = update.usage.cached_tokens


async def first_model(address: str) -> str:
    """The first model that the door lists. Raises BenchError."""
    async with AsyncClient(address, FIRST_S) as client:
        try:
            models = await client.models()
        except BatonError as error:
            raise BenchError(f"cannot list the models at {address}: {error}") from error
    if not models:
        raise BenchError(f"{address} serves no model yet")
    return models[0].id
