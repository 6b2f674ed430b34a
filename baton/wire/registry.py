"""The router's own registry over gRPC: workers register, stay registered, and withdraw. Both ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import grpc
from grpc import aio

from baton.wire.channel import TOKEN_KEY, channel_options, server_options
from baton.wire.convert_model import pack_role, unpack_role
from baton.wire.pb import registry_pb2 as pb
from baton.wire.pb import registry_pb2_grpc as pb_grpc
from baton.wire.servers import AddressTaken, TokenGuard
from baton.wire.types import Incarnation, Registration

REPLY_S = 1.0
"""How long a worker waits for the registry's answer."""
RECONNECT_MS = 1_000
"""Longest wait between attempts to connect: a router that was restarted is found again at once."""

if TYPE_CHECKING:  # generic in their stubs only
    _Context = aio.ServicerContext[Any, Any]
else:
    _Context = aio.ServicerContext


class RegistryError(Exception):
    """A registry that did not answer, or refused. The message names it and says why."""


class Registrations(Protocol):
    """What the service writes into."""

    def register(self, registration: Registration, ttl_s: float) -> None: ...

    def withdraw(self, address: str, incarnation: Incarnation) -> None: ...


class RegistryServer(pb_grpc.RegistryServicer):
    """Takes registrations from peers that carry the cluster token. Bound when made, serves from `start` to `stop`.

    Raises AddressTaken. `address` has the port that was bound.
    """

    def __init__(self, host: str, port: int, token: str, registrations: Registrations) -> None:
        self._registrations = registrations
        self._server = aio.server(interceptors=(TokenGuard(token),), options=server_options())
        try:
            bound = self._server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise AddressTaken(f"cannot listen on {host}:{port}: is another process using this port?") from error
        self.address = f"{host}:{bound}"
        pb_grpc.add_RegistryServicer_to_server(self, self._server)

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    async def Register(self, request: pb.RegisterRequest, context: _Context) -> pb.RegisterReply:
        try:
            registration, ttl_s = _unpack(request), _positive(request.ttl_s)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        self._registrations.register(registration, ttl_s)
        return pb.RegisterReply()

    async def Withdraw(self, request: pb.WithdrawRequest, context: _Context) -> pb.WithdrawReply:
        self._registrations.withdraw(request.address, request.incarnation)
        return pb.WithdrawReply()


class RegistryCalls:
    """A worker's end. It connects when first used. Calls raise RegistryError."""

    def __init__(self, address: str, token: str) -> None:
        self.name = f"the router at {address}"
        self._metadata = ((TOKEN_KEY, token),)
        backoff = ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", RECONNECT_MS)
        self._channel = aio.insecure_channel(address, options=[*channel_options(), *backoff])
        self._stub = pb_grpc.RegistryStub(self._channel)

    async def announce(self, registration: Registration, ttl_s: float) -> None:
        """Registers, or stays registered, for `ttl_s` seconds."""
        await self._answered(self._stub.Register(_pack(registration, ttl_s), metadata=self._metadata, timeout=REPLY_S))

    async def withdraw(self, registration: Registration) -> None:
        """Leaves, unless another process life has registered the address since."""
        request = pb.WithdrawRequest(address=registration.address, incarnation=registration.incarnation)
        await self._answered(self._stub.Withdraw(request, metadata=self._metadata, timeout=REPLY_S))

    async def close(self) -> None:
        await self._channel.close(None)

    async def _answered(self, call: Any) -> None:
        try:
            await call
        except aio.AioRpcError as error:
            raise RegistryError(f"{self.name} has not registered this worker: {error.details()}") from error


def _pack(registration: Registration, ttl_s: float) -> pb.RegisterRequest:
    return pb.RegisterRequest(
        address=registration.address,
        role=pack_role(registration.role),
        model=registration.model,
        capacity_tokens=registration.capacity_tokens,
        max_num_seqs=registration.max_num_seqs,
        incarnation=registration.incarnation,
        ttl_s=ttl_s,
    )


def _unpack(request: pb.RegisterRequest) -> Registration:
    host, _, port = request.address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"address {request.address!r} is not host:port")
    return Registration(
        request.address,
        unpack_role(request.role),
        request.model,
        request.capacity_tokens,
        request.max_num_seqs,
        request.incarnation,
    )


def _positive(ttl_s: float) -> float:
    if not ttl_s > 0:
        raise ValueError(f"ttl_s {ttl_s} is not positive")
    return ttl_s
