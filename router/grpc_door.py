"""The gRPC door: the same validator and core as the HTTP door, answers as updates. gRPC itself is in baton/wire."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from baton.cluster.config import RouterConfig
from baton.wire.inference import Delta, ModelInfo, TokenLogprob, Update
from baton.wire.inference_server import inference_server
from router.batch import generate
from router.request import Alternative, Piece, Service, TokenText
from router.validate import RawRequest, Validator


def serve_grpc(service: Service, config: RouterConfig, validator: Validator | None = None) -> AbstractAsyncContextManager[int]:
    """A context that serves the door and yields its port. Doors of one process should share `validator`.

    Raises OSError naming the address if it cannot be bound.
    """
    validator = validator or Validator(service, config.limits, config.timeouts.request_s)
    return inference_server(GrpcDoor(service, validator), config.host, config.grpc_port, config.limits.body_bytes)


class GrpcDoor:
    """The InferenceHandler over a Service."""

    def __init__(self, service: Service, validator: Validator):
        self._service = service
        self._validator = validator

    async def generate(self, fields: dict[str, object], chat: bool, time_left_s: float | None) -> AsyncGenerator[Update]:
        prepared = await self._validator.prepare(RawRequest(fields, chat))
        if time_left_s is not None:
            requests = (replace(request, deadline_s=min(request.deadline_s, time_left_s)) for request in prepared.requests)
            prepared = replace(prepared, requests=tuple(requests))
        request_id = prepared.first.request_id
        async with generate(self._service, prepared) as generation:
            async for step in generation:
                yield Update(request_id, tuple(_delta(choice, piece) for choice, piece in step))
            yield Update(request_id, (), generation.usage, generation.timeline if prepared.timeline else None)

    def models(self) -> Sequence[ModelInfo]:
        return [ModelInfo(name, card.max_model_len) for name, card in self._service.models().items()]

    def ready(self) -> bool:
        return self._service.ready() is None


def _delta(choice: int, piece: Piece) -> Delta:
    token_ids = tuple(token.id for token in piece.tokens)
    logprobs = tuple(_logprob(token) for token in piece.tokens if token.logprob is not None)
    return Delta(choice, piece.text, token_ids, logprobs, piece.finish)


def _logprob(token: TokenText) -> TokenLogprob:
    return TokenLogprob(token.bytes, token.id, token.logprob or 0.0, tuple(map(_rival, token.top)))


def _rival(rival: Alternative) -> TokenLogprob:
    return TokenLogprob(rival.bytes, rival.id, rival.logprob)
