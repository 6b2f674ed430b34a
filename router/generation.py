"""A request as a door sees it: pieces come out while its flows run, and leaving it ends them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from baton.wire.errors import BatonError, Cancelled, DeadlineExceeded, Internal
from baton.wire.types import RequestSpec
from kvtransfer.protocol.coordinator import Coordinator
from router.affinity import prefix_keys
from router.buffer import PieceBuffer
from router.flow import Flow
from router.output import Output
from router.plant import Life, Plant
from router.request import GenerateRequest, Pieces, TextMaker, TimelineView, Usage
from router.timeline import Timeline

log = logging.getLogger(__name__)


@asynccontextmanager
async def running(
    plant: Plant, request: GenerateRequest, make_text: Callable[[int], TextMaker], buffer_bytes: int
) -> AsyncIterator[RunningGeneration]:
    """Admits `request` and runs it while the context is open; nothing of it is left behind. Raises what admission refuses."""
    try:
        generation = RunningGeneration(plant, request, make_text, buffer_bytes)
    except BatonError as error:
        plant.metrics.rejected(error)
        raise
    try:
        yield generation
    finally:
        await generation.stop()


class RunningGeneration:
    """Implements `router.request.Generation`. Runs from its making to its end or `stop`. Raises what admission refuses."""

    def __init__(
        self, plant: Plant, request: GenerateRequest, make_text: Callable[[int], TextMaker], buffer_bytes: int
    ) -> None:
        self._plant, self._request = plant, request
        self._ticket = plant.admission.enter(request, self._abort)
        self._cause: BatonError = Cancelled("the client left")  # of a cancellation
        self._timeline = Timeline(time.monotonic)
        self._buffer = PieceBuffer(buffer_bytes, on_cut=self._cut)
        self._output = Output(request, make_text, self._timeline, plant.metrics, self._buffer)
        self._task = asyncio.create_task(self._run(), name=f"request {request.request_id}")

    def __aiter__(self) -> AsyncIterator[Pieces]:
        return self._buffer

    @property
    def usage(self) -> Usage:
        return self._output.usage

    @property
    def timeline(self) -> TimelineView:
        return self._timeline.view()

    async def stop(self) -> None:
        """Ends what still runs, and returns when every worker was told."""
        self._task.cancel()
        await asyncio.wait([self._task])
        self._close(self._cause)  # a task that never began could not do it

    async def _run(self) -> None:
        """Brings the request to its one ending, which the reader gets and the metrics count."""
        error: BatonError | None = None
        try:
            await self._run_flows()
        except asyncio.CancelledError:
            error = self._cause
            raise
        except TimeoutError:
            error = DeadlineExceeded(f"the request did not end within its {self._request.deadline_s:g} s")
        except ExceptionGroup as group:
            error = _error_of(group)
        finally:
            self._close(error)

    async def _run_flows(self) -> None:
        request = self._request
        choices = tuple(range(request.n))
        spec = RequestSpec(request.prompt_ids, request.params, choices, (), request.tenant, request.deadline_s)
        keys = prefix_keys(request.prompt_ids, model=request.model, tenant=request.tenant)
        async with asyncio.timeout(request.deadline_s) as deadline, asyncio.TaskGroup() as flows:
            ends_at = deadline.when() or 0.0
            life = Life(request.model, keys, self._ticket, self._output, ends_at, flows.create_task)
            await Flow(self._plant, life, Coordinator(spec)).run()

    def _cut(self) -> None:
        self._task.cancel()

    def _abort(self, cause: BatonError) -> None:
        self._cause = cause
        self._task.cancel()

    def _close(self, error: BatonError | None) -> None:
        """The ending, once: the ticket goes back, the reader hears of it, the metrics count it."""
        if not self._plant.admission.leave(self._ticket):
            return
        self._timeline.finish()
        self._buffer.close(error)
        self._plant.metrics.ended(error, self._timeline, self.usage)


def _error_of(group: ExceptionGroup[Exception]) -> BatonError:
    """The first typed error of the flows; any other exception is a fault of ours."""
    known, unknown = group.split(BatonError)
    if unknown is not None:
        log.error("a request failed inside the router", exc_info=unknown)
    first = known.exceptions[0] if known else None
    return first if isinstance(first, BatonError) else Internal("the router failed on this request")
