"""`baton chat`: talks to a running server over its public HTTP wire, with the standard library alone."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

CONNECT_S = 10.0
"""Longest wait for the server's next bytes; it sends keep-alives while it computes."""

Message = dict[str, str]


class ChatError(Exception):
    """The server cannot be reached or refused; the message says what to do."""


@dataclass(frozen=True, slots=True)
class ChatOptions:
    url: str
    model: str | None = None
    system: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    timeout_s: float = 600.0


def main(options: ChatOptions, prompt: str | None) -> int:
    """One answer to `prompt`, or a conversation until the input ends; the exit status."""
    try:
        model = options.model or first_model(options)
        history: list[Message] = [{"role": "system", "content": options.system}] if options.system else []
        for text in [prompt] if prompt is not None else _typed(model):
            history.append({"role": "user", "content": text})
            history.append({"role": "assistant", "content": _print_all(answer(options, model, history))})
    except ChatError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print()
        return 130
    return 0


def first_model(options: ChatOptions) -> str:
    """The first model that the server lists. Raises ChatError."""
    with _open(options, "/v1/models", None, CONNECT_S) as response:
        models = json.load(response)["data"]
    if not models:
        raise ChatError(f"{options.url} serves no model yet; look at its log")
    return str(models[0]["id"])


def answer(options: ChatOptions, model: str, history: list[Message]) -> Iterator[str]:
    """Pieces of the assistant's answer as they arrive. Raises ChatError, also in mid-stream."""
    wanted = {"max_tokens": options.max_tokens, "temperature": options.temperature}
    body = {"model": model, "messages": history, "stream": True} | {name: x for name, x in wanted.items() if x is not None}
    with _open(options, "/v1/chat/completions", body, options.timeout_s) as response:
        for data in _events(response, options.url):
            if "error" in data:
                raise ChatError(str(data["error"]["message"]))
            for choice in data["choices"]:
                yield choice["delta"].get("content") or ""


def _events(response: Any, url: str) -> Iterator[dict[str, Any]]:
    try:
        for line in response:
            if line.startswith(b"data: ") and (data := line[6:].strip()) != b"[DONE]":
                yield json.loads(data)
    except (OSError, HTTPException) as error:
        raise ChatError(f"{url} broke off: {error}") from error


def _open(options: ChatOptions, path: str, body: dict[str, Any] | None, timeout_s: float) -> Any:
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(_base(options.url) + path, data, {"Content-Type": "application/json"})
        return urllib.request.urlopen(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        raise ChatError(_refusal(error)) from error
    except HTTPException as error:
        raise ChatError(f"{options.url} does not answer in HTTP; is it the port of the gRPC door?") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ChatError(f"cannot reach {options.url}: {reason}; start one with: baton serve, or pass --url") from error


def _base(url: str) -> str:
    """The server's address, however it was copied: without `http://`, or with the `/v1` that OpenAI's clients want."""
    return ("" if "://" in url else "http://") + url.rstrip("/").removesuffix("/v1")


def _refusal(error: urllib.error.HTTPError) -> str:
    with error:
        text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {error.code}: {text[:200]}"


def _typed(model: str) -> Iterator[str]:
    print(f"Talking to {model}. Ctrl-D ends.", file=sys.stderr)
    while True:
        try:
            text = input("> ").strip()
        except EOFError:
            return
        if text:
            yield text


def _print_all(pieces: Iterator[str]) -> str:
    said = []
    for piece in pieces:
        said.append(piece)
        print(piece, end="", flush=True)
    print()
    return "".join(said)
