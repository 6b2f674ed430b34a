"""Connections of HTTP/1.1 that carry one exchange at a time."""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from baton.loadtest.errors import BenchError, RequestFailed

OK = 200
CONNECT_S = 10.0
IDLE_S = 2.0
"""An idle connection is used again for so long: servers close theirs after 5 s, and a request must not meet that."""


@dataclass(frozen=True, slots=True)
class Address:
    """`base` is the path before /v1, without a slash at its end."""

    host: str
    port: int
    tls: bool
    base: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """Raises BenchError."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError as error:
            raise BenchError(f"{url!r} is no address: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BenchError(f"{url!r} is no address such as http://127.0.0.1:8000")
        tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if tls else 80), tls, parts.path.rstrip("/").removesuffix("/v1"))

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Reply(Protocol):
    """Takes the body of a successful reply as it arrives. What it raises ends the exchange."""

    def body(self, data: bytes) -> None: ...


class Connections:
    """Idle connections, the one used last first. An exchange that does not end well closes its connection."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None):
        self._address = address
        self._tls = tls
        self._idle: list[Connection] = []

    async def exchange(self, data: bytes, reply: Reply) -> None:
        """Sends `data` and feeds the reply's body to `reply`. Raises RequestFailed, or what `reply` raised."""
        connection = self._take() or await self._connect()
        try:
            await connection.exchange(data, reply)
        except BaseException:
            connection.close()
            raise
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and time.monotonic() - connection.used_s < IDLE_S:
                return connection
            connection.close()
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await loop.create_connection(Connection, self._address.host, self._address.port, ssl=self._tls)
        except TimeoutError as error:
            raise RequestFailed("connect timeout", f"{self._address.authority} did not answer in {CONNECT_S:g} s") from error
        except OSError as error:
            raise RequestFailed("cannot connect", f"{self._address.authority}: {error}") from error
        return connection


class Connection(asyncio.Protocol):
    """One connection, one exchange at a time. httptools calls its on_ methods."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[None] | None = None
        self._reply: Reply | None = None
        self._refusal = bytearray()
        self._until_close = True
        self._parser = httptools.HttpResponseParser(self)
        self.reusable = True
        self.used_s = 0.0

    async def exchange(self, data: bytes, reply: Reply) -> None:
        if self._transport is None or self._transport.is_closing():
            raise RequestFailed("connection lost", "the server closed it before the request was sent")
        self._parser = httptools.HttpResponseParser(self)
        self._reply, self._refusal, self._until_close = reply, bytearray(), True
        self._ended = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        await self._ended

    def close(self) -> None:
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """An answer without a length or chunks ends with its connection."""
        self.reusable = False
        if self._ended is None or self._ended.done():
            return
        if exc is None and self._until_close and self._parser.get_status_code() == OK:
            self._end(None)
        else:
            self._end(RequestFailed("connection lost", str(exc or "the server closed it before the answer's end")))

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(RequestFailed("not HTTP", str(error)))

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._until_close = False

    def on_body(self, data: bytes) -> None:
        if self._parser.get_status_code() != OK:
            self._refusal += data
        elif self._reply is not None:
            try:
                self._reply.body(data)
            except RequestFailed as error:
                self._reply = None
                self._end(error)

    def on_message_complete(self) -> None:
        self.reusable = self.reusable and self._parser.should_keep_alive()
        self.used_s = time.monotonic()
        status = self._parser.get_status_code()
        refusal = self._refusal[:500].decode(errors="replace")
        self._end(None if status == OK else RequestFailed(f"http {status}", refusal))

    def _end(self, error: RequestFailed | None) -> None:
        if self._ended is None or self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)
