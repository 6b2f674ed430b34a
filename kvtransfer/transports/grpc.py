"""KV over gRPC: one stream of `KvTransfer.Push` for each channel, its messages passed as bytes and never parsed here."""

from __future__ import annotations

import asyncio
import hmac
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NoReturn

import grpc
import grpc.aio

from baton.wire import convert_kv
from baton.wire.channel import TOKEN_KEY, channel_options
from baton.wire.errors import BatonError, PairingRefused, TransferError, status_of
from baton.wire.types import KvAnswer, KvEndpoint, KvHello, Timeouts
from kvtransfer import frames
from kvtransfer.transports.base import Sink

SERVICE = "baton.v1.KvTransfer"
REASON_KEY = "baton-reason"
"""Trailing metadata of a refused channel: the counted word."""

HELLO_S = 5.0
"""A connected sender that has not said hello for so long is hung up on."""

_Call = grpc.aio.StreamStreamCall[bytes, bytes]


class GrpcChannel:
    """A Channel over one stream and its own connection."""

    transport = "grpc"

    def __init__(self, channel: grpc.aio.Channel, call: _Call) -> None:
        self._channel = channel
        self._call = call
        self._answers: deque[KvAnswer] = deque()

    async def write(self, message: bytes) -> None:
        try:
            await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise TransferError("channel_lost", f"the KV channel broke: {_say(error)}") from error

    async def read(self) -> KvAnswer:
        while not self._answers:
            self._answers.extend(convert_kv.decode_down(await self._read()))
        return self._answers.popleft()

    async def _read(self) -> bytes:
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise TransferError("channel_lost", f"the KV channel broke: {_say(error)}") from error
        if not isinstance(message, bytes):
            raise TransferError("channel_lost", "the receiver closed the KV channel")
        return message

    async def close(self) -> None:
        self._call.cancel()
        await self._channel.close(None)


async def connect(address: str, hello: KvHello, token: str, timeouts: Timeouts) -> GrpcChannel:
    """A Connect: dials afresh, with no memory of earlier failures at this address."""
    channel = grpc.aio.insecure_channel(address, options=channel_options())
    try:
        async with asyncio.timeout(timeouts.connect_s):
            return GrpcChannel(channel, await _greet(channel, hello, token))
    except BaseException as error:
        await channel.close(None)
        if isinstance(error, TimeoutError):
            raise TransferError("connect", f"no answer from {address} in {timeouts.connect_s:g} s") from error
        raise


async def _greet(channel: grpc.aio.Channel, hello: KvHello, token: str) -> _Call:
    dial = channel.stream_stream(f"/{SERVICE}/Push", None, None)
    call: _Call = dial(None, metadata=((TOKEN_KEY, token),))
    try:
        await call.write(convert_kv.encode_hello(hello))
        opened = await call.read() == convert_kv.OPEN
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
        raise await _refusal(call) from error
    if not opened:
        raise TransferError("connect", "the receiver did not open the KV channel")
    return call


async def ask(address: str, hello: KvHello, token: str, timeouts: Timeouts) -> tuple[KvEndpoint, ...]:
    """How else the receiver behind its internal port can be reached, and that it takes this hello. Raises as `connect` does."""
    async with grpc.aio.insecure_channel(address, options=channel_options()) as channel:
        call = channel.unary_unary(f"/{SERVICE}/Offer", None, None)(
            convert_kv.encode_bare_hello(hello), metadata=((TOKEN_KEY, token),), timeout=timeouts.connect_s
        )
        try:
            return convert_kv.decode_offers(await call)
        except grpc.aio.AioRpcError as error:
            raise await _refusal(call) from error


async def _refusal(call: _Call | grpc.aio.UnaryUnaryCall[bytes, bytes]) -> PairingRefused | TransferError:
    """Why the receiver, or the way to it, refused the channel."""
    code, details, metadata = await call.code(), await call.details(), await call.trailing_metadata()
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return PairingRefused(details)
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return TransferError("unauthenticated", details)
    reason = metadata.get(REASON_KEY) if metadata is not None else None
    return TransferError(str(reason or "connect"), f"the KV channel was not opened: {code.name} {details}")


def _say(error: BaseException) -> str:
    return f"{error.code().name} {error.details()}" if isinstance(error, grpc.aio.AioRpcError) else str(error)


# --- the server --------------------------------------------------------------------------------------------------


def kv_handler(
    sink: Sink, token: str, offers: Callable[[], Sequence[KvEndpoint]] = lambda: (KvEndpoint("grpc"),)
) -> grpc.GenericRpcHandler[bytes, bytes]:
    """The KvTransfer service over `sink`, to be added to the worker's server by `add_generic_rpc_handlers`.

    `offers`: every way to reach `sink`, in order of preference.
    """

    async def offer(message: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        await _authenticate(context, token)
        try:
            sink.open(convert_kv.decode_hello(message))
        except BatonError as error:
            await _refuse(context, error)
        return convert_kv.encode_offers(offers())

    async def push(messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        await _authenticate(context, token)
        try:
            async with asyncio.timeout(HELLO_S):
                sink.open(frames.greeting(await anext(messages)))
            yield convert_kv.OPEN
            async for message in messages:
                for answer in await sink.take([frames.delivery(message)]):
                    yield convert_kv.encode_answer(answer)
        except BatonError as error:
            await _refuse(context, error)
        except (TimeoutError, StopAsyncIteration):
            await _refuse(context, TransferError("malformed", "no hello"))

    handlers = {
        "Offer": grpc.unary_unary_rpc_method_handler(offer),
        "Push": grpc.stream_stream_rpc_method_handler(push),
    }
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


async def _authenticate(context: grpc.aio.ServicerContext[bytes, bytes], token: str) -> None:
    given = next((value for key, value in context.invocation_metadata() or () if key == TOKEN_KEY), "")
    if not hmac.compare_digest(str(given).encode(), token.encode()):
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"a wrong cluster token, or none, in {TOKEN_KEY}")


async def _refuse(context: grpc.aio.ServicerContext[bytes, bytes], error: BatonError) -> NoReturn:
    reason = error.reason if isinstance(error, TransferError) else error.code or ""
    await context.abort(grpc.StatusCode[status_of(error).grpc], error.message, ((REASON_KEY, reason),))
