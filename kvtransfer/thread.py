"""The one thread that touches KV bytes: neither the event loop nor the engine's thread copies or hashes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class KvThread:
    """Runs work in the order in which it was given. Owned by a Sender or a Receiver, which closes it."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`. Once this has returned or raised, cancelled or not, `work` isn't running and never will be."""
        job = self._pool.submit(work)
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            await _settled(job)
            raise

    async def barrier(self) -> None:
        """Returns when all work that was given before is over."""
        await self.run(lambda: None)

    def close(self) -> None:
        """Gives the thread back once its last work is over. Idempotent."""
        self._pool.shutdown(wait=False)


async def _settled(job: Future[T]) -> None:
    """Waits out a piece of work that was cancelled while it ran, about a millisecond, whoever else cancels meanwhile."""
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    job.add_done_callback(lambda _: loop.call_soon_threadsafe(over.set))
    while not over.is_set():
        try:
            await over.wait()
        except asyncio.CancelledError:
            continue
