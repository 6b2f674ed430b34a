"""The HTTP door on the wire: what a well-behaved client never sends, and what each is told."""

import asyncio
import json

import httpx
import pytest

from router.http import body
from tests.support.doors import FakeService, serve_http

ASK = json.dumps({"prompt": "A", "max_tokens": 3, "temperature": 0}).encode()
UPGRADE = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AA\r\n"


async def exchange(url: str, *parts: bytes) -> tuple[int, bytes, bytes]:
    """Sends `parts`, reads until the server closes the connection: status, head and body of the answer."""
    address = httpx.URL(url)
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        for part in parts:
            writer.write(part)
            await writer.drain()
        answer = await reader.read()
        writer.close()
    head, _, rest = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.lower(), rest


def post(headers: bytes, content: bytes = ASK) -> bytes:
    return b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n%b" % (headers, len(content), content)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00",
        b"FOO /livez HTTP/1.1\r\nhost: x\r\n\r\n",
        post(b"x-request-id: a\rset-cookie: b\r\n"),
        post(b"transfer-encoding: chunked\r\n"),
        post(b"content-length: 3\r\n"),
    ],
    ids=["tls", "method", "bare CR", "two framings", "two lengths"],
)
async def test_what_is_no_http_gets_openais_error(sent: bytes) -> None:
    async with serve_http(FakeService()) as url:
        status, _, rest = await exchange(url, sent)
    assert status == 400
    assert json.loads(rest)["error"]["type"] == "invalid_request_error"


async def test_a_body_behind_an_upgrade_is_refused_by_name() -> None:
    async with serve_http(FakeService()) as url:
        for parts in ((post(UPGRADE),), (post(UPGRADE)[: -len(ASK)], ASK)):
            status, _, rest = await exchange(url, *parts)
            assert (status, json.loads(rest)["error"]["code"]) == (400, "no_upgrade")


async def test_an_upgrade_without_a_body_is_ignored_and_ends_the_connection() -> None:
    async with serve_http(FakeService()) as url:
        status, head, rest = await exchange(url, b"GET /livez HTTP/1.1\r\nhost: x\r\n" + UPGRADE + b"\r\n")
    assert (status, rest) == (200, b"ok")
    assert b"connection: close" in head


async def test_a_body_that_does_not_come_is_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BODY_S", 0.05)
    async with serve_http(FakeService()) as url:
        status, head, rest = await exchange(url, post(b"")[:-1])
    assert (status, json.loads(rest)["error"]["code"]) == (408, "request_timeout")
    assert b"connection: close" in head
