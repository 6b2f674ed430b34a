"""A driver for OpenAI's completions and chat completions over HTTP/1.1, streaming.

Written on asyncio.Protocol and httptools, since the harness must be faster than what it measures: a message costs it a
quarter of what it costs on httpx or less (benchmarks/loadtest_stub.py compares them).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass
from typing import Any

import orjson

from baton.loadtest.errors import BenchError, RequestFailed
from baton.loadtest.http_connection import Address, Connections, Reply
from baton.loadtest.record import Answer, Request
from baton.loadtest.sse import EventReader


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """Where to send and how. `url` may end in /v1 or not. `exact_usage`: ask for a running total of tokens in every chunk."""

    url: str
    model: str = ""
    chat: bool = False
    api_key: str = ""
    ignore_eos: bool = True
    exact_usage: bool = False


class HttpDriver:
    """Sends each request on a connection of its own for its time; idle ones are used again."""

    def __init__(self, target: HttpTarget):
        self._target = target
        self._address = Address.parse(target.url)
        context = ssl.create_default_context() if self._address.tls else None
        self._connections = Connections(self._address, context)
        key = f"authorization: Bearer {target.api_key}\r\n" if target.api_key else ""
        self._head = f"host: {self._address.authority}\r\nuser-agent: baton-bench\r\naccept: text/event-stream\r\n{key}"

    async def generate(self, request: Request, answer: Answer) -> None:
        path = "chat/completions" if self._target.chat else "completions"
        stream = _Stream(answer)
        await self._exchange("POST", path, orjson.dumps(self._body(request)), stream)
        if not stream.done:
            raise RequestFailed("stream cut", "the answer ended without a finish reason or [DONE]")
        if not answer.deltas:
            raise RequestFailed("empty answer", "the server sent no token")

    async def models(self) -> list[str]:
        """Names of the models served. Raises RequestFailed."""
        whole = _Whole()
        await self._exchange("GET", "models", b"", whole)
        try:
            return [str(model["id"]) for model in orjson.loads(whole.data)["data"]]
        except (ValueError, KeyError, TypeError) as error:
            raise RequestFailed("not a list of models", bytes(whole.data[:200]).decode(errors="replace")) from error

    async def close(self) -> None:
        self._connections.close()
        await asyncio.sleep(0)  # their transports close in the next turn of the loop

    def _body(self, request: Request) -> dict[str, Any]:
        target = self._target
        usage = {"include_usage": True} | ({"continuous_usage_stats": True} if target.exact_usage else {})
        body = {
            "model": target.model,
            "max_tokens": request.output_len,
            "temperature": 0,
            "stream": True,
            "stream_options": usage,
        }
        eos = {"ignore_eos": True} if target.ignore_eos else {}
        if not target.chat:
            return body | eos | {"prompt": request.prompt}
        if not isinstance(request.prompt, str):
            raise BenchError("chat takes text, not token ids; leave out --chat or --ids")
        return body | eos | {"messages": [{"role": "user", "content": request.prompt}]}

    async def _exchange(self, method: str, path: str, body: bytes, reply: Reply) -> None:
        head = f"{method} {self._address.base}/v1/{path} HTTP/1.1\r\n{self._head}"
        if body:
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        await self._connections.exchange(f"{head}\r\n".encode() + body, reply)


class _Whole:
    """Takes a reply as it is."""

    def __init__(self) -> None:
        self.data = bytearray()

    def body(self, data: bytes) -> None:
        self.data += data


class _Stream:
    """Takes a streamed answer: every event that has output becomes a delta, at the time when its bytes were read."""

    def __init__(self, answer: Answer):
        self._answer = answer
        self._events = EventReader()
        self.done = False

    def body(self, data: bytes) -> None:
        at_s = time.monotonic()
        for event in self._events.feed(data):
            if event == b"[DONE]":
                self.done = True
            else:
                self._take(event, at_s)

    def _take(self, event: bytes, at_s: float) -> None:
        try:
            chunk = orjson.loads(event)
            if "error" in chunk:
                raise RequestFailed("error in stream", _message(chunk["error"]))
            usage = chunk.get("usage") or {}
            for choice in chunk.get("choices") or ():
                self._gain(choice, at_s, usage.get("completion_tokens"))
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise RequestFailed("not a chunk", event[:200].decode(errors="replace")) from error
        if usage:
            self._end(usage)

    def _gain(self, choice: dict[str, Any], at_s: float, total: int | None) -> None:
        ids = choice.get("token_ids")
        self._answer.add(at_s, _num_chars(choice), None if ids is None else len(ids), total)
        if choice.get("finish_reason"):
            self._answer.finish = choice["finish_reason"]
            self.done = True

    def _end(self, usage: dict[str, Any]) -> None:
        self._answer.prompt_tokens = usage.get("prompt_tokens")
        self._answer.output_tokens = usage.get("completion_tokens")
        self._answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")


def _num_chars(choice: dict[str, Any]) -> int:
    """Characters of output; the role that opens a chat is none."""
    text = choice.get("text")
    if text is not None:
        return len(text)
    delta = choice.get("delta") or {}
    texts = [delta.get("content"), delta.get("reasoning_content") or delta.get("reasoning")]
    for call in delta.get("tool_calls") or ():
        texts += [call["function"].get("name"), call["function"].get("arguments")]
    return sum(len(text) for text in texts if text)


def _message(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
