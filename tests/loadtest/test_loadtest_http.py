"""The HTTP driver and the runner against servers on loopback."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.loadtest.client_http import HttpDriver, HttpTarget
from baton.loadtest.counting import count
from baton.loadtest.errors import BenchError, RequestFailed
from baton.loadtest.http_connection import Address
from baton.loadtest.live import Silent
from baton.loadtest.probe import open_http
from baton.loadtest.record import Answer, Request
from baton.loadtest.runner import Runner
from baton.loadtest.sse import EventReader
from baton.loadtest.stub import MODEL, Script
from baton.loadtest.workload import Drawn, Lengths, Plan
from tests.loadtest.loadtest_support import stub_driver

REQUEST = Request(0, "time year", 2, 4)


LINES = st.binary(max_size=80).map(lambda data: data.translate(None, b"\r\n").strip())


@given(LINES, st.lists(st.integers(1, 7), min_size=1), st.booleans())
def test_events_arrive_in_any_pieces(data, sizes, crlf):
    end = b"\r\n" if crlf else b"\n"
    wire = b": ping" + end * 2 + b"event: x" + end + b"data: " + data + end * 2 + b"data:[DONE]" + end * 2
    reader, events, at = EventReader(), [], 0
    while at < len(wire):
        size = sizes[at % len(sizes)]
        events += reader.feed(wire[at : at + size])
        at += size
    assert events == [data, b"[DONE]"]


@pytest.mark.parametrize("chat", [False, True])
async def test_coalesced_messages_are_counted(chat):
    async with stub_driver(Script((1, 4, 4, 4)), chat=chat) as (_, driver):
        answer = Answer([])
        await driver.generate(REQUEST, answer)
    messages, tokens, rule = count(answer)
    assert [message.num_tokens for message in messages] == [1, 4, 4, 4]
    assert (tokens, rule, answer.finish) == (13, "text", "length")


async def test_connections_are_used_again():
    async with stub_driver(Script((1,))) as (stub, driver):
        for _ in range(3):
            await driver.generate(REQUEST, Answer([]))
        assert len(stub.transports) == 1


async def test_models_are_listed_and_probed():
    async with stub_driver(Script((1,))) as (stub, driver):
        assert await driver.models() == [MODEL]
        opened, facts = await open_http(stub.url + "/v1/", "", True, "", True)
        await opened.close()
    assert facts["model"] == MODEL
    assert facts["door"] == "HTTP, /v1/chat/completions"


async def failure(driver) -> RequestFailed:
    with pytest.raises(RequestFailed) as caught:
        await driver.generate(REQUEST, Answer([]))
    return caught.value


async def test_a_refusal_is_told_with_its_reason():
    async with stub_driver(Script(status=429)) as (_, driver):
        error = await failure(driver)
    assert error.kind == "http 429"
    assert "as scripted" in error.detail


async def test_a_stream_that_breaks_off_has_failed():
    async with stub_driver(Script((1, 1, 1), cut_after=2)) as (_, driver):
        assert (await failure(driver)).kind == "connection lost"


async def test_nobody_listens():
    driver = HttpDriver(HttpTarget("http://127.0.0.1:1", "m"))
    assert (await failure(driver)).kind == "cannot connect"
    with pytest.raises(BenchError, match="is a server running there"):
        await open_http("http://127.0.0.1:1", "", False, "", True)


@asynccontextmanager
async def server(reply: bytes):
    """Answers every connection with `reply` and closes it."""

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    driver = HttpDriver(HttpTarget(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", "m"))
    try:
        yield driver
    finally:
        await driver.close()
        listening.close()


TOKEN = b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n'
OK = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


async def test_an_answer_may_end_with_its_connection():
    async with server(OK + TOKEN + b"data: [DONE]\n\n") as driver:
        answer = Answer([])
        await driver.generate(REQUEST, answer)
    assert len(answer.deltas) == 1


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (TOKEN, "stream cut"),
        (b"data: [DONE]\n\n", "empty answer"),
        (TOKEN + b'data: {"error":{"message":"worker died"}}\n\n', "error in stream"),
        (b"data: hello\n\n", "not a chunk"),
        (b"data: [1]\n\n", "not a chunk"),
    ],
)
async def test_answers_that_are_none(body, kind):
    async with server(OK + body) as driver:
        assert (await failure(driver)).kind == kind


async def test_a_server_of_another_kind():
    async with server(b"SSH-2.0-OpenSSH\r\n") as driver:
        assert (await failure(driver)).kind == "not HTTP"


async def test_ids_are_no_chat():
    async with stub_driver(Script((1,)), chat=True) as (_, driver):
        with pytest.raises(BenchError, match="token ids"):
            await driver.generate(Request(0, (1, 2), 2, 1), Answer([]))


@pytest.mark.parametrize(
    ("url", "authority", "base"),
    [
        ("127.0.0.1:9", "127.0.0.1:9", ""),
        ("http://h/v1/", "h:80", ""),
        ("https://h/api/v1", "h:443", "/api"),
        ("http://[::1]:9", "[::1]:9", ""),
    ],
)
def test_addresses(url, authority, base):
    address = Address.parse(url)
    assert (address.authority, address.base) == (authority, base)


@pytest.mark.parametrize("url", ["ftp://h", "http://", "http://h:x"])
def test_addresses_that_are_none(url):
    with pytest.raises(BenchError):
        Address.parse(url)


def plan(num, *, due_s=None, concurrency=0, duration_s=0.0):
    return Plan("run", Drawn(Lengths(4, 4), Lengths(2, 2)).requests(num, 1), due_s, concurrency, None, duration_s)


async def test_a_closed_loop_keeps_its_concurrency():
    under_way, most = 0, 0

    class Driver:
        async def generate(self, request, answer):
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            for _ in range(3):
                await asyncio.sleep(0)
            under_way -= 1
            answer.add(0.0, 1)

    outcomes = await Runner(Driver(), 10).run(plan(20, concurrency=3), Silent())
    assert most == 3
    assert [outcome.number for outcome in outcomes] == list(range(20))


class Clock:
    """Stands still until it is set."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


async def test_an_open_loop_that_falls_behind_counts_from_the_due_time():
    clock = Clock()

    class Driver:
        async def generate(self, request, answer):
            clock.now_s += 2.0
            answer.add(clock(), 4, 1)

    outcomes = await Runner(Driver(), 10, clock).run(plan(2, due_s=(0.0, 0.0)), Silent())
    assert [(o.intended_s, o.messages[0].at_s, o.ended_s) for o in outcomes] == [(0.0, 2.0, 2.0), (0.0, 4.0, 4.0)]


async def test_an_open_loop_waits_for_nobody():
    both = asyncio.Barrier(2)

    class Driver:
        async def generate(self, request, answer):
            async with asyncio.timeout(30):
                await both.wait()
            answer.add(0.0, 1)

    outcomes = await Runner(Driver(), 60).run(plan(2, due_s=(0.0, 0.001)), Silent())
    assert [outcome.error for outcome in outcomes] == ["", ""]


async def test_a_request_without_end_times_out_and_keeps_what_it_got():
    class Driver:
        async def generate(self, request, answer):
            answer.add(0.0, 4, 2)
            await asyncio.Event().wait()

    (outcome,) = await Runner(Driver(), 0.01).run(plan(1, concurrency=1), Silent())
    assert (outcome.error, outcome.output_tokens) == ("timeout", 2)


async def test_after_the_duration_nothing_is_sent():
    clock = Clock()

    class Driver:
        async def generate(self, request, answer):
            clock.now_s += 1.0
            answer.add(clock(), 1)

    closed = await Runner(Driver(), 10, clock).run(plan(9, concurrency=1, duration_s=2.5), Silent())
    opened = await Runner(Driver(), 10, clock).run(plan(3, due_s=(0.0, 0.0, 5.0), duration_s=2.5), Silent())
    assert (len(closed), len(opened)) == (3, 2)
