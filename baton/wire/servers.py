"""A worker's one gRPC server: the link, KV, health; nothing but health is reached without the cluster token."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health  # type: ignore[attr-defined]  # not in its stubs

from baton.wire.channel import TOKEN_KEY, server_options
from baton.wire.link_server import LinkServer
from baton.wire.pb import worker_pb2_grpc

HEALTH = "/grpc.health.v1.Health/"
WORKER = "baton.v1.Worker"

if TYPE_CHECKING:  # generic in their stubs only
    _Handler = grpc.RpcMethodHandler[Any, Any]
    _Interceptor = grpc.aio.ServerInterceptor[Any, Any]
else:
    _Interceptor = grpc.aio.ServerInterceptor


class AddressTaken(OSError):
    """The worker's address cannot be listened on; the message names it."""


class TokenGuard(_Interceptor):
    """Refuses every call that does not carry the cluster token, before any handler sees it. Probes of health need none."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        if handler_call_details.method.startswith(HEALTH) or self._carries_token(handler_call_details):
            return await continuation(handler_call_details)
        return grpc.stream_stream_rpc_method_handler(_refuse)

    def _carries_token(self, details: grpc.HandlerCallDetails) -> bool:
        given = next((value for key, value in details.invocation_metadata if key == TOKEN_KEY), b"")
        return hmac.compare_digest(given if isinstance(given, bytes) else given.encode(), self._token)


async def _refuse(_requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no cluster token, or a wrong one (BATON_CLUSTER_TOKEN)")


class WorkerServer:
    """Bound when made, so that a taken port is known before a model is loaded; serves from `start` to `stop`.

    Raises AddressTaken. `address` has the port that was bound.
    """

    def __init__(self, host: str, port: int, token: str) -> None:
        self._server = grpc.aio.server(interceptors=(TokenGuard(token),), options=server_options())
        self._health = health.HealthServicer()
        try:
            bound = self._server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise AddressTaken(f"cannot listen on {host}:{port}: is another process using this port?") from error
        self.address = f"{host}:{bound}"

    async def start(self, links: LinkServer, kv_handlers: Sequence[grpc.GenericRpcHandler[Any, Any]] = ()) -> None:
        """Serves `links`, and KV if there is a handler for it, until `stop`."""
        worker_pb2_grpc.add_WorkerServicer_to_server(links, self._server)
        self._server.add_generic_rpc_handlers(kv_handlers)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        await self._server.start()
        await self._health.set(WORKER, health_pb2.HealthCheckResponse.SERVING)

    async def drain(self) -> None:
        """Health says that no more work is wanted."""
        await self._health.enter_graceful_shutdown()

    async def stop(self) -> None:
        """Ends every stream."""
        await self._server.stop(None)
