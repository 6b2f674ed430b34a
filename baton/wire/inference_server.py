"""The server of the public gRPC door: Inference, health and reflection on one port, over a handler that knows no gRPC."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from baton.wire.channel import server_options
from baton.wire.convert_inference import Fields, fields_of, models_to_pb, update_to_pb
from baton.wire.errors import BatonError, Internal, status_of
from baton.wire.grpc_errors import trailing_of
from baton.wire.inference import ModelInfo, Update
from baton.wire.pb import inference_pb2 as pb
from baton.wire.pb import inference_pb2_grpc as pb_grpc

if TYPE_CHECKING:  # generic in its stubs only
    Context = aio.ServicerContext[Any, Any]

log = logging.getLogger(__name__)

SERVICE = "baton.v1.Inference"
MAX_METADATA_BYTES = 32 << 10
MAX_STREAMS = 256
"""Concurrent calls on one connection."""

MIN_PING_MS = 5_000

WATCH_S = 1.0
"""How often a health watcher's service is looked at."""


class InferenceHandler(Protocol):
    """What stands behind the door."""

    def generate(self, fields: Fields, chat: bool, time_left_s: float | None) -> AsyncGenerator[Update]:
        """Runs one request; closing the generator early cancels it. Raises BatonError. `time_left_s`: the call's deadline."""
        ...

    def models(self) -> Sequence[ModelInfo]: ...

    def ready(self) -> bool: ...


@asynccontextmanager
async def inference_server(
    handler: InferenceHandler, host: str, port: int, max_message_bytes: int, stop_s: float = 1.0
) -> AsyncIterator[int]:
    """Serves on `host`:`port` (0: a free one) and yields the port. Leaving gives running calls `stop_s` to end.

    Raises OSError naming the address if it cannot be bound.
    """
    server = aio.server(options=_options(max_message_bytes))
    pb_grpc.add_InferenceServicer_to_server(_Inference(handler), server)
    health_pb2_grpc.add_HealthServicer_to_server(_Health(handler), server)
    reflection.enable_server_reflection((SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name), server)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"the gRPC door cannot listen on {address}: is the port taken?") from error
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(stop_s)


def _options(max_message_bytes: int) -> list[tuple[str, int]]:
    """The internal servers' options, but strangers may ping every 5 s at most, and not flood."""
    ours = {
        "grpc.max_receive_message_length": max_message_bytes,
        "grpc.max_metadata_size": MAX_METADATA_BYTES,
        "grpc.max_concurrent_streams": MAX_STREAMS,
        "grpc.http2.min_ping_interval_without_data_ms": MIN_PING_MS,
        "grpc.http2.min_recv_ping_interval_without_data_ms": MIN_PING_MS,
        "grpc.http2.max_ping_strikes": 2,
    }
    return list((dict(server_options()) | ours).items())


class _Inference(pb_grpc.InferenceServicer):
    def __init__(self, handler: InferenceHandler):
        self._handler = handler

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:
        try:
            async with aclosing(self._handler.generate(*fields_of(request), context.time_remaining())) as updates:
                async for update in updates:
                    await context.write(update_to_pb(update))
        except BatonError as error:
            await _abort(context, error)
        except Exception:  # the edge of the process: the client gets an ending, the log the cause
            log.exception("a request failed inside the router")
            await _abort(context, Internal("The server failed to handle the request; this is not your fault."))

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        return models_to_pb(self._handler.models())


async def _abort(context: Context, error: BatonError) -> None:
    await context.abort(grpc.StatusCode[status_of(error).grpc], error.message, trailing_of(error))


class _Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # its stubs have no types
    """Health of the whole server ("") and of the Inference service: both serve when the router is ready."""

    def __init__(self, handler: InferenceHandler):
        self._handler = handler

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        if request.service not in ("", SERVICE):
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r}")
        return self._response()

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        told = None
        while True:
            response = self._response()
            if response != told:
                await context.write(response)
                told = response
            await asyncio.sleep(WATCH_S)

    def _response(self) -> health_pb2.HealthCheckResponse:
        status = health_pb2.HealthCheckResponse
        return status(status=status.SERVING if self._handler.ready() else status.NOT_SERVING)
