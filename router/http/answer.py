"""Runs a prepared request and answers it, whole or as a stream. A client that leaves ends the generation at once."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Protocol

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from baton.wire.errors import BatonError
from router.batch import generate
from router.http.errors import internal
from router.http.sse import DONE, EventStream, error_event, until_gone
from router.request import Generation, Piece, Pieces, Service
from router.validate import Prepared

log = logging.getLogger(__name__)


class Shape(Protocol):
    """How an endpoint's answer looks."""

    def events(self, choice: int, piece: Piece) -> bytes:
        """Server-sent events for what `choice` gained; empty if a client need not know yet."""
        ...

    def ending(self, generation: Generation) -> bytes:
        """The events after the last piece: usage and timeline, as asked for."""
        ...

    def whole(self, pieces: list[list[Piece]], generation: Generation) -> dict[str, object]:
        """The answer in one, from each choice's pieces."""
        ...


class Answer(Response):
    """The response to one generation request."""

    def __init__(self, service: Service, prepared: Prepared, shape: Shape):
        super().__init__()
        self._service = service
        self._prepared = prepared
        self._shape = shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = self._stream(send) if self._prepared.stream else self._whole(scope, receive, send)
        if not await until_gone(receive, work):
            log.info("client left, request %s cancelled", self._prepared.first.request_id)

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        first = self._prepared.first
        pieces: list[list[Piece]] = [[] for _ in range(len(self._prepared.requests) * first.n)]
        async with generate(self._service, self._prepared) as generation:
            async for step in generation:
                for choice, piece in step:
                    pieces[choice].append(piece)
            body = orjson.dumps(self._shape.whole(pieces, generation))
        await Response(body, media_type="application/json")(scope, receive, send)

    async def _stream(self, send: Send) -> None:
        """Nothing is sent before the first pieces are known: until then an error has its own status."""
        async with generate(self._service, self._prepared) as generation:
            steps = aiter(generation)
            first = await anext(steps)
            stream = EventStream(send)
            await stream.start()
            await self._write(stream, first, steps, generation)

    async def _write(self, stream: EventStream, first: Pieces, steps: AsyncIterator[Pieces], generation: Generation) -> None:
        try:
            await stream.write(self._events(first))
            async for step in steps:
                if data := self._events(step):
                    await stream.write(data)
        except Exception as error:  # the edge of the process: the status is out, and the client still gets an ending
            await stream.end(error_event(error if isinstance(error, BatonError) else internal(error)))
        else:
            await stream.end(self._shape.ending(generation) + DONE)

    def _events(self, step: Pieces) -> bytes:
        return b"".join([self._shape.events(choice, piece) for choice, piece in step])
