"""The one thread that touches KV bytes: neither the event loop nor the engine's thread copies or hashes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class KvThread:
    """Runs work in the order in which it was given. Owned by a Sender or a Receiver, which closes it."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`. Once this has returned or raised, cancelled or not, `work` isn't running and never will be."""
        job = self._pool.submit(work)
        done = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            job.cancel()
            await outlast(done)
            raise

    def close(self) -> None:
        """Gives the thread back once its last work is over. Idempotent."""
        self._pool.shutdown(wait=False)


async def outlast(future: asyncio.Future[Any]) -> None:
    """Returns when `future` is done, however it ended. A cancellation meanwhile is raised only then."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
