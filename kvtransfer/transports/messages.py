"""Messages over a stream socket: four bytes of length, then the message. The handshake that shm and tcp share.

sender ── token ── hello ──────────────> receiver     (with shm the descriptor of the sender's pool comes along with the token)
       <── open, or a refusal ──────────
       ── frames, commits ─────────────>
       <── answers ─────────────────────
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import struct
from collections.abc import Sequence

from baton.wire import convert_kv
from baton.wire.errors import BatonError, TransferError
from baton.wire.types import KvAnswer, KvHello
from kvtransfer import frames
from kvtransfer.fields import malformed

LENGTH = struct.Struct("<I")
MAX_MESSAGE = 16 << 20
READ_BYTES = 64 << 10
HELLO_S = 5.0
"""A connected sender that has not said hello for so long is hung up on."""


class Messages:
    """Both directions of a non-blocking socket, which it owns. Cut short, a call leaves the stream of no use: close it."""

    def __init__(self, sock: socket.socket, received: bytes = b"") -> None:
        self.sock = sock
        self._received = bytearray(received)

    @property
    def closed(self) -> bool:
        return self.sock.fileno() < 0

    async def send(self, messages: Sequence[bytes]) -> None:
        """Raises TransferError("channel_lost")."""
        try:
            await asyncio.get_running_loop().sock_sendall(self.sock, b"".join(map(packed, messages)))
        except OSError as error:
            raise _lost(error) from error

    async def send_large(self, message: bytes) -> None:
        """One message that is worth two calls of the system to save a copy."""
        loop = asyncio.get_running_loop()
        try:
            head = LENGTH.pack(len(message))
            sent = self.sock.sendmsg([head, message])
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise _lost(error) from error
        try:
            await loop.sock_sendall(self.sock, head[sent:])
            await loop.sock_sendall(self.sock, memoryview(message)[max(0, sent - LENGTH.size) :])
        except OSError as error:
            raise _lost(error) from error

    async def receive(self) -> list[bytes]:
        """The next messages, one at least: all that came. Raises TransferError("channel_lost" or "malformed")."""
        while not (messages := self._whole()):
            self._received += await self._some()
        return messages

    async def receive_into(self, view: memoryview) -> None:
        """Fills `view` with what comes next."""
        loop, filled = asyncio.get_running_loop(), min(len(self._received), view.nbytes)
        view[:filled] = self._received[:filled]
        del self._received[:filled]
        while filled < view.nbytes:
            try:
                num_bytes = await loop.sock_recv_into(self.sock, view[filled:])
            except OSError as error:
                raise _lost(error) from error
            filled += _some_of(num_bytes)

    def close(self) -> None:
        """Hangs up. A call that is waiting here never returns: whoever made it cancels it."""
        loop = asyncio.get_running_loop()
        if self.sock.fileno() >= 0:
            loop.remove_reader(self.sock)  # or a later cancellation would remove that of whoever has the number by then
            loop.remove_writer(self.sock)
            self.sock.close()

    async def _some(self) -> bytes:
        try:
            some = await asyncio.get_running_loop().sock_recv(self.sock, READ_BYTES)
        except OSError as error:
            raise _lost(error) from error
        _some_of(len(some))
        return some

    def _whole(self) -> list[bytes]:
        messages, at = [], 0
        while len(self._received) - at >= LENGTH.size:
            size = checked(LENGTH.unpack_from(self._received, at)[0])
            if len(self._received) - at - LENGTH.size < size:
                break
            messages.append(bytes(self._received[at + LENGTH.size : at + LENGTH.size + size]))
            at += LENGTH.size + size
        del self._received[:at]
        return messages


def packed(message: bytes) -> bytes:
    """The message as it goes over the socket."""
    return LENGTH.pack(len(message)) + message


def checked(size: int) -> int:
    """A message's length, if it may be one."""
    if size > MAX_MESSAGE:
        raise malformed(f"a message of {size} bytes")
    return size


def _some_of(num_bytes: int) -> int:
    if num_bytes == 0:
        raise TransferError("channel_lost", "the other end closed the KV channel")
    return num_bytes


def _lost(error: OSError) -> TransferError:
    return TransferError("channel_lost", f"the KV channel broke: {error}")


class MessageChannel:
    """A Channel over a greeted socket."""

    def __init__(self, transport: str, messages: Messages, first: Sequence[bytes]) -> None:
        self.transport = transport
        self._messages = messages
        self._answers = _answers(first)

    async def write(self, message: bytes) -> None:
        if self._messages.closed:
            raise TransferError("channel_lost", "closed")
        await self._messages.send([message])

    async def read(self) -> KvAnswer:
        while not self._answers:
            self._answers = _answers(await self._messages.receive())
        return self._answers.pop(0)

    async def close(self) -> None:
        self._messages.close()


def _answers(messages: Sequence[bytes]) -> list[KvAnswer]:
    return [answer for message in messages for answer in convert_kv.decode_down(message)]


async def greet(messages: Messages, hello: KvHello, token: str | None) -> list[bytes]:
    """The sender's part of the handshake, without `token` if it was sent already; returns what the receiver said behind its
    OPEN. Raises what the receiver refused with."""
    opening = [convert_kv.encode_hello(hello)]
    await messages.send(opening if token is None else [token.encode(), *opening])
    first, *more = await messages.receive()
    refusal = convert_kv.decode_refusal(first)
    if refusal is not None:
        raise refusal
    return more


async def welcome(messages: Messages, token: str) -> KvHello:
    """The receiver's part up to the hello; the caller checks that and answers OPEN. Raises TransferError("unauthenticated")."""
    given = await _message(messages, len(token.encode()) + 1)
    if not hmac.compare_digest(given, token.encode()):
        raise TransferError("unauthenticated", "a wrong cluster token, or none")
    return frames.greeting(await _message(messages, READ_BYTES))


async def _message(messages: Messages, most: int) -> bytes:
    """One message of at most `most` bytes, from somebody who may be anybody."""
    head = bytearray(LENGTH.size)
    await messages.receive_into(memoryview(head))
    size = LENGTH.unpack(head)[0]
    message = bytearray(min(size, most))
    await messages.receive_into(memoryview(message))
    return bytes(message)


async def refuse(messages: Messages, error: BatonError) -> None:
    """Says why, as far as the other end still listens."""
    try:
        await messages.send([convert_kv.encode_refusal(error)])
    except TransferError:
        return
