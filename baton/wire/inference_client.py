"""Calls of the public gRPC door, in our types."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any, cast

from grpc import aio

from baton.wire.channel import channel_options
from baton.wire.convert_inference import models_of, request_of, update_of
from baton.wire.errors import BatonError, InvalidRequest
from baton.wire.grpc_errors import error_of
from baton.wire.inference import ModelInfo, Update
from baton.wire.pb import inference_pb2 as pb
from baton.wire.pb import inference_pb2_grpc as pb_grpc


class InferenceCalls:
    """One channel to a door; it connects when first used. Raises BatonError subclasses."""

    def __init__(self, address: str):
        self._channel = aio.insecure_channel(address, options=list(channel_options()))
        self._stub = pb_grpc.InferenceStub(self._channel)

    async def generate(self, fields: Mapping[str, Any], deadline_s: float) -> AsyncGenerator[Update]:
        """The updates of one request (fields as in convert_inference.request_of). Closing early cancels it."""
        try:
            request = request_of(fields)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"This request cannot be sent: {error}") from error
        call = self._stub.Generate(request, timeout=deadline_s)
        try:
            async for message in call:
                yield update_of(message)
        except aio.AioRpcError as error:
            raise _error_of(error) from error
        finally:
            call.cancel()

    async def models(self, deadline_s: float) -> list[ModelInfo]:
        try:
            return models_of(await self._stub.ListModels(pb.ListModelsRequest(), timeout=deadline_s))
        except aio.AioRpcError as error:
            raise _error_of(error) from error

    async def close(self) -> None:
        """Ends running calls and the connection."""
        await self._channel.close(None)


def _error_of(error: aio.AioRpcError) -> BatonError:
    trailing = cast(Iterable[tuple[str, str | bytes]], error.trailing_metadata())  # its stubs describe the synchronous API
    return error_of(error.code(), error.details() or "", trailing)
