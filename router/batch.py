"""Several prompts of one request as one generation: choice number = prompt x n + choice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from baton.wire.errors import BatonError
from router.request import GenerateRequest, Generation, Pieces, Service, TimelineView, Usage
from router.validate import Prepared


@asynccontextmanager
async def generate(service: Service, prepared: Prepared) -> AsyncIterator[Generation]:
    """Runs every prompt of `prepared`. Leaving the context early cancels them all; the first error ends them all."""
    if len(prepared.requests) == 1:
        async with service.generate(prepared.first, prepared.make_text(prepared.first)) as generation:
            yield generation
        return
    batch = Batch(service, prepared)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(batch.run(i, request)) for i, request in enumerate(prepared.requests)]
            try:
                yield batch
            finally:
                for task in tasks:
                    task.cancel()
    except ExceptionGroup as group_error:
        raise group_error.exceptions[0] from None  # a caller's error, or the first of ours, as it was raised


class Batch:
    """The generations of several prompts, merged as they come."""

    def __init__(self, service: Service, prepared: Prepared):
        self._service = service
        self._prepared = prepared
        self._merged: asyncio.Queue[Pieces | BatonError | None] = asyncio.Queue(len(prepared.requests))
        self._usages: list[Usage] = []
        self._timelines: list[TimelineView] = []

    async def run(self, prompt: int, request: GenerateRequest) -> None:
        """Feeds one prompt's pieces to the merged queue; None is its end."""
        first = prompt * request.n
        try:
            async with self._service.generate(request, self._prepared.make_text(request)) as generation:
                async for pieces in generation:
                    await self._merged.put([(first + choice, piece) for choice, piece in pieces])
            self._usages.append(generation.usage)
            self._timelines.append(generation.timeline)
            await self._merged.put(None)
        except BatonError as error:
            await self._merged.put(error)

    async def __aiter__(self) -> AsyncIterator[Pieces]:
        while len(self._usages) < len(self._prepared.requests) or not self._merged.empty():
            pieces = await self._merged.get()
            if isinstance(pieces, BatonError):
                raise pieces
            if pieces is not None:
                yield pieces

    @property
    def usage(self) -> Usage:
        """All prompts together."""
        return Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in self._usages),
            completion_tokens=sum(usage.completion_tokens for usage in self._usages),
            cached_tokens=sum(usage.cached_tokens for usage in self._usages),
        )

    @property
    def timeline(self) -> TimelineView:
        """That of the prompt that took longest: the client waited for it."""
        return max(self._timelines, key=lambda timeline: timeline.total_s)
