"""One gRPC stream of a link, the router's side: dialled with a hello, read with a deadline, kept warm with heartbeats."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import grpc
import grpc.aio

from baton.wire import convert
from baton.wire.channel import TOKEN_KEY, channel_options
from baton.wire.errors import BatonError, PairingRefused, Unauthenticated
from baton.wire.pb import worker_pb2 as pb
from baton.wire.pb import worker_pb2_grpc
from baton.wire.types import Command, Down, End, RouterHello, Timeouts, WorkerHello

END_S = 0.005
"""An End may wait so long for company: a message costs more than all else that it says, and nobody waits for its answer."""

_Call = grpc.aio.StreamStreamCall[pb.LinkUp, pb.LinkDown]


class LinkBroken(Exception):
    """The stream could not be opened, or ended: reset, closed by the worker, or silent for too long."""


class NobodyListens(LinkBroken):
    """The host is there and refuses the connection: the process that listened at this address has ended."""


class Stream:
    """An open stream, made by `dial`; its owner awaits `serve`, then `close`."""

    def __init__(self, channel: grpc.aio.Channel, call: _Call, hello: WorkerHello, timeouts: Timeouts) -> None:
        self.hello = hello
        self._channel = channel
        self._call = call
        self._timeouts = timeouts
        self._outbox: list[Command] = []
        self._filled = asyncio.Event()

    @classmethod
    async def dial(cls, address: str, hello: RouterHello, token: str, timeouts: Timeouts) -> Stream:
        """Connects and exchanges hellos within `timeouts.connect_s`.

        Raises LinkBroken (NobodyListens if that is certain), Unauthenticated or PairingRefused.
        """
        async with contextlib.AsyncExitStack() as stack:
            channel = grpc.aio.insecure_channel(address, options=channel_options())
            stack.push_async_callback(channel.close, None)
            call: _Call = worker_pb2_grpc.WorkerStub(channel).Link(metadata=((TOKEN_KEY, token),))
            try:
                answer = await _exchange(call, hello, timeouts.connect_s)
            except LinkBroken as error:
                if await _is_refused(address, timeouts.connect_s):
                    raise NobodyListens(str(error)) from error
                raise
            stack.pop_all()
            return cls(channel, call, answer, timeouts)

    def send(self, command: Command) -> None:
        """Queues a command for the next message. Never blocks."""
        self._outbox.append(command)
        if not isinstance(command, End):
            self._filled.set()
        elif len(self._outbox) == 1:
            asyncio.get_running_loop().call_later(END_S, self._filled.set)

    async def serve(self, receive: Callable[[Down], None]) -> None:
        """Passes on what the worker sends, and sends what is queued, until the stream ends; then raises LinkBroken."""
        writer = asyncio.create_task(self._write())
        try:
            await self._read(receive)
        except grpc.aio.AioRpcError as error:
            raise LinkBroken(error.details() or error.code().name) from error
        except ValueError as error:
            raise LinkBroken(f"the worker said what is not understood here: {error}") from error
        finally:
            writer.cancel()
            await asyncio.wait([writer])

    async def close(self) -> None:
        self._call.cancel()
        await self._channel.close(None)

    async def _read(self, receive: Callable[[Down], None]) -> None:
        silence_s = self._timeouts.heartbeat_s * self._timeouts.heartbeat_misses
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(silence_s) as deadline:
                while isinstance(message := await self._call.read(), pb.LinkDown):
                    deadline.reschedule(loop.time() + silence_s)
                    receive(convert.unpack_down(message))
        except TimeoutError as error:
            raise LinkBroken(f"no heartbeat for {silence_s:g} s") from error
        raise LinkBroken(await self._call.details() or "the worker closed the link")

    async def _write(self) -> None:
        """Sends queued commands, several in a message if they are there, and a heartbeat when there are none for a while."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the stream ended: the reader tells
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._timeouts.heartbeat_s):
                        await self._filled.wait()
                self._filled.clear()
                commands, self._outbox = self._outbox, []
                await self._call.write(convert.pack_up(commands))


async def _exchange(call: _Call, hello: RouterHello, connect_s: float) -> WorkerHello:
    try:
        async with asyncio.timeout(connect_s):
            await call.write(convert.pack_router_hello(hello))
            answer = await call.read()
            if isinstance(answer, pb.LinkDown) and answer.HasField("hello"):
                return convert.unpack_worker_hello(answer)
            raise _refusal(await call.code(), await call.details())
    except TimeoutError as error:
        raise LinkBroken(f"no connection within {connect_s:g} s") from error
    except ValueError as error:
        raise PairingRefused(f"the worker says of itself what is not understood here: {error}") from error
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
        raise _refusal(await call.code(), await call.details()) from error


async def _is_refused(address: str, connect_s: float) -> bool:
    """Whether nothing listens at `address`: gRPC tells of all that goes wrong with a connection alike."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(connect_s):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError, ValueError):  # unreachable, slow, unknown: no proof of anything
        return False
    writer.transport.abort()
    return False


def _refusal(code: grpc.StatusCode, details: str | None) -> LinkBroken | BatonError:
    message = details or code.name
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return Unauthenticated(message)
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return PairingRefused(message)
    return LinkBroken(message)
