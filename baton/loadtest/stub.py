"""A server that streams scripted answers at exact times: what the harness measures itself and others against.

python -m baton.loadtest.stub --first-ms 500 --gap-ms 200 --tokens 1,4,4,4     prints its address; ends with its standard input
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
from dataclasses import dataclass
from typing import cast

import httptools
import orjson
import uvloop

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
MODEL = "stub"


@dataclass(frozen=True, slots=True)
class Script:
    """Messages of `tokens[i]` tokens: the first after `first_s`, the others `gap_s` apart. A chat's role comes at once.

    A `status` other than 200 refuses instead; after `cut_after` messages the connection is closed (0: never).
    """

    tokens: tuple[int, ...] = (1,)
    first_s: float = 0.0
    gap_s: float = 0.0
    status: int = 200
    cut_after: int = 0


class StubServer:
    """Answers every POST by `script`, which may be changed while it runs."""

    def __init__(self, script: Script):
        self.script = script
        self.url = ""
        self.num_requests = 0
        self.transports: set[asyncio.Transport] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Exchange(self), "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for transport in tuple(self.transports):
            transport.abort()
        await asyncio.sleep(0)


class _Exchange(asyncio.Protocol):
    """One connection; every message leaves in a write of its own at its own time."""

    def __init__(self, stub: StubServer):
        self._stub = stub
        self._parser = httptools.HttpRequestParser(self)
        self._timer: asyncio.Handle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._stub.transports.add(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stub.transports.discard(self._transport)
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._path = b""
        self._body = b""

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        if self._parser.get_method() != b"POST":
            self._answer(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
            return
        self._stub.num_requests += 1
        request = orjson.loads(self._body)
        if self._stub.script.status != 200:
            self._answer(self._stub.script.status, {"error": {"message": "as scripted"}})
        else:
            self._begin(request, chat=b"chat" in self._path)

    def _answer(self, status: int, body: object) -> None:
        data = orjson.dumps(body)
        head = f"HTTP/1.1 {status} Scripted\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        self._transport.write(head.encode() + data)

    def _begin(self, request: dict[str, object], chat: bool) -> None:
        self._script = self._stub.script
        self._events = _Events(self._script, chat, len(str(request.get("prompt") or request.get("messages"))) // 4)
        self._began_s = asyncio.get_running_loop().time()
        self._transport.write(HEAD + self._events.opening)
        self._later(0)

    def _later(self, place: int) -> None:
        """Due times count from the beginning, so that no delay adds up."""
        loop = asyncio.get_running_loop()
        due_s = self._script.first_s + self._script.gap_s * place
        self._timer = (
            loop.call_at(self._began_s + due_s, self._message, place) if due_s else loop.call_soon(self._message, place)
        )

    def _message(self, place: int) -> None:
        script = self._script
        if script.cut_after and place == script.cut_after:
            self._transport.abort()
        elif place + 1 < len(script.tokens):
            self._transport.write(self._events.message(place))
            self._later(place + 1)
        else:
            self._transport.write(self._events.message(place) + self._events.ending)


class _Events:
    """The bytes of one answer, made before its clock starts."""

    def __init__(self, script: Script, chat: bool, prompt_tokens: int):
        self._chat = chat
        self._messages = {num: self._event({"content": "tok " * num}) for num in set(script.tokens)}
        self._tokens = script.tokens
        self.opening = self._event({"role": "assistant", "content": ""}) if chat else b""
        total = sum(script.tokens)
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": total, "total_tokens": prompt_tokens + total}
        last = {"id": "stub", "object": "chunk", "created": 0, "model": MODEL, "choices": [], "usage": usage}
        self.ending = self._event({}, "length") + _chunk(orjson.dumps(last)) + _chunk(b"[DONE]") + b"0\r\n\r\n"

    def message(self, place: int) -> bytes:
        return self._messages[self._tokens[place]]

    def _event(self, delta: dict[str, str], finish: str | None = None) -> bytes:
        said: dict[str, object] = {"delta": delta} if self._chat else {"text": delta.get("content", "")}
        choice = {"index": 0, **said, "finish_reason": finish}
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return _chunk(orjson.dumps({"id": "stub", "object": kind, "created": 0, "model": MODEL, "choices": [choice]}))


def _chunk(data: bytes) -> bytes:
    event = b"data: " + data + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(event), event)


async def _serve(script: Script) -> None:
    stub = StubServer(script)
    await stub.start()
    print(stub.url, flush=True)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    threading.Thread(target=_until_end, args=(loop, ended), daemon=True).start()
    await ended.wait()
    await stub.stop()


def _until_end(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    """Whoever started the stub holds its standard input open; it ends with them."""
    sys.stdin.read()
    loop.call_soon_threadsafe(ended.set)


def main() -> None:
    parser = argparse.ArgumentParser(description="A server that streams scripted answers at exact times.")
    parser.add_argument("--first-ms", type=float, default=0.0, help="time to the first message")
    parser.add_argument("--gap-ms", type=float, default=0.0, help="time between messages")
    parser.add_argument("--tokens", default="1", help="tokens of each message, such as 1,4,4,4 or 1x128")
    given = parser.parse_args()
    uvloop.run(_serve(Script(_tokens(given.tokens), given.first_ms / 1e3, given.gap_ms / 1e3)))


def _tokens(text: str) -> tuple[int, ...]:
    each, _, times = text.partition("x")
    return (int(each),) * int(times) if times else tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    main()
