"""The HTTP door over a scripted core: shapes of answers, streams and errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from baton.cluster.config import RouterConfig
from baton.wire.errors import BatonError, Internal, QueueFull, Unavailable
from router.http.app import create_app
from router.http.body import parse
from tests.support.doors import FakeService, events_of, scripted_card

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
PLAIN = {"model": "scripted", "prompt": "A", "max_tokens": 20, "temperature": 0}


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
async def http(service: FakeService) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(service) as client:
        yield client
    assert service.running == 0


def client_of(service: FakeService) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=create_app(service, RouterConfig()), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://door")


async def completion(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    answer = await http.post("/v1/completions", json=PLAIN | fields)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def chunks(http: httpx.AsyncClient, path: str, **fields: Any) -> list[dict[str, Any]]:
    """The chunks of a stream that ends properly."""
    answer = await http.post(path, json=fields | {"stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-cache", "no")
    *data, done = events_of(answer.text)
    assert done == "[DONE]"
    return [json.loads(chunk) for chunk in data]


async def test_a_completion(http: httpx.AsyncClient) -> None:
    answer = await completion(http)
    assert answer.pop("id").startswith("cmpl-")
    assert isinstance(answer.pop("created"), int)
    assert answer == {
        "object": "text_completion",
        "model": "scripted",
        "choices": [{"index": 0, "text": "bcdefghij", "logprobs": None, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 10,
            "total_tokens": 12,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    }


async def test_a_chat(http: httpx.AsyncClient) -> None:
    answer = (await http.post("/v1/chat/completions", json=CHAT)).json()
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    message = {"role": "assistant", "content": "OK.", "refusal": None}
    assert answer["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (8, 4)


async def test_completions_default_to_16_tokens(http: httpx.AsyncClient) -> None:
    answer = await completion(http, prompt="0", max_tokens=None)
    assert answer["usage"]["completion_tokens"] == 16


async def test_a_streamed_completion_joins_to_the_plain_one(http: httpx.AsyncClient) -> None:
    stream = await chunks(http, "/v1/completions", **PLAIN, stop=["hi"])
    assert "".join(chunk["choices"][0]["text"] for chunk in stream) == "bcdefg"
    assert [chunk["choices"][0]["finish_reason"] for chunk in stream] == [None] * 6 + ["stop"]
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in stream}) == 1
    assert not any("usage" in chunk for chunk in stream)


async def test_c726_a_streamed_chat_with_usage(http: httpx.AsyncClient) -> None:
    *stream, last = await chunks(http, "/v1/chat/completions", **CHAT, stream_options={"include_usage": True})
    assert stream[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in stream) == "OK."
    assert [chunk["choices"][0]["finish_reason"] for chunk in stream] == [None] * 4 + ["stop"]
    assert all(chunk["usage"] is None and chunk["object"] == "chat.completion.chunk" for chunk in stream)
    assert last["choices"] == []
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"], last["usage"]["total_tokens"]) == (8, 4, 12)


async def test_c207_choices_end_on_their_own(http: httpx.AsyncClient) -> None:
    answer = await completion(http, n=3)
    assert [(c["index"], c["text"], c["finish_reason"]) for c in answer["choices"]] == [
        (i, "bcdefghij", "stop") for i in range(3)
    ]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (2, 30)
    stream = await chunks(http, "/v1/chat/completions", **CHAT, n=3)
    ends = [chunk["choices"][0]["index"] for chunk in stream if chunk["choices"][0]["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]


async def test_several_prompts_are_numbered_by_prompt_and_choice(http: httpx.AsyncClient) -> None:
    answer = await completion(http, prompt=["A", "#", "$"], n=2)
    assert [choice["text"] for choice in answer["choices"]] == ["bcdefghij"] * 2 + ["🌶辣!"] * 2 + [""] * 2
    assert answer["usage"]["prompt_tokens"] == 6
    texts = dict.fromkeys(range(6), "")
    for chunk in await chunks(http, "/v1/completions", **(PLAIN | {"prompt": ["A", "#", "$"], "n": 2})):
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert list(texts.values()) == [choice["text"] for choice in answer["choices"]]


async def test_c242_logprobs_of_completions(http: httpx.AsyncClient) -> None:
    plain = (await completion(http, logprobs=2, max_tokens=3))["choices"][0]["logprobs"]
    assert plain == {
        "tokens": ["b", "c", "d"],
        "token_logprobs": [-0.25] * 3,
        "top_logprobs": [{"b": -0.25, "x": -1.5}, {"c": -0.25, "x": -1.5}, {"d": -0.25, "x": -1.5}],
        "text_offset": [0, 1, 2],
    }
    stream = await chunks(http, "/v1/completions", **(PLAIN | {"logprobs": 2, "max_tokens": 3}))
    parts = [chunk["choices"][0]["logprobs"] for chunk in stream]
    assert {name: [entry for part in parts for entry in part[name]] for name in plain} == plain


async def test_c242_logprobs_of_chats(http: httpx.AsyncClient) -> None:
    fields = CHAT | {"logprobs": True, "top_logprobs": 1}
    answer = (await http.post("/v1/chat/completions", json=fields)).json()
    content = answer["choices"][0]["logprobs"]["content"]
    first = {"token": "O", "logprob": -0.25, "bytes": [79]}
    assert content[0] == first | {"top_logprobs": [first]}
    assert len(content) == answer["usage"]["completion_tokens"]
    stream = await chunks(http, "/v1/chat/completions", **fields)
    parts = [chunk["choices"][0]["logprobs"] for chunk in stream]
    assert [entry for part in parts if part for entry in part["content"]] == content


async def test_tokens_that_are_no_characters_keep_their_names_apart(http: httpx.AsyncClient) -> None:
    logprobs = (await completion(http, prompt="#", logprobs=0))["choices"][0]["logprobs"]
    assert logprobs["tokens"][:2] == ["bytes:\\xf0", "bytes:\\x9f"]
    assert logprobs["top_logprobs"][0] == {"bytes:\\xf0": -0.25}
    assert logprobs["text_offset"] == [0, 0, 0, 0, 1, 1, 1, 2, 3]


@pytest.mark.parametrize(("max_tokens", "texts"), [(20, ["🌶辣!"]), (2, ["", "\ufffd"]), (6, ["🌶", "🌶\ufffd"])])
async def test_c272_characters_of_several_tokens(http: httpx.AsyncClient, max_tokens: int, texts: list[str]) -> None:
    fields = PLAIN | {"prompt": "#", "max_tokens": max_tokens}
    assert (await completion(http, **fields))["choices"][0]["text"] in texts
    stream = await chunks(http, "/v1/completions", **fields)
    assert "".join(chunk["choices"][0]["text"] for chunk in stream) in texts


@pytest.mark.parametrize("prompt", ["hello world $", "hello world %"])
async def test_c796_an_end_token_at_once(http: httpx.AsyncClient, prompt: str) -> None:
    answer = await completion(http, prompt=prompt)
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("", "stop")
    assert answer["usage"]["completion_tokens"] == 1
    (chunk,) = await chunks(http, "/v1/completions", **(PLAIN | {"prompt": prompt}))
    assert (chunk["choices"][0]["text"], chunk["choices"][0]["finish_reason"]) == ("", "stop")


async def test_c584_tool_calls_without_content(http: httpx.AsyncClient) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for content in ({"content": None}, {}, {"content": ""}):
        turns = [{"role": "assistant", "tool_calls": [call], **content}, {"role": "tool", "tool_call_id": "c1", "content": "1"}]
        answer = await http.post("/v1/chat/completions", json=CHAT | {"messages": [*CHAT["messages"], *turns]})
        assert (answer.json()["choices"][0]["message"]["content"], answer.json()["usage"]["prompt_tokens"]) == ("OK.", 15)


async def test_c717_bos_is_written_once(http: httpx.AsyncClient) -> None:
    assert (await http.post("/v1/chat/completions", json=CHAT)).json()["usage"]["prompt_tokens"] == 8
    assert (await completion(http, prompt="hi"))["usage"]["prompt_tokens"] == 3
    rendered = await completion(http, prompt="<s><|user|>\nhi\n<|assistant|>\n")
    assert rendered["usage"]["prompt_tokens"] == 8


async def test_the_timeline_comes_on_request(http: httpx.AsyncClient) -> None:
    spans = [{"name": "queue", "seconds": 0.25}, {"name": "prefill", "seconds": 0.5}]
    assert (await completion(http, timeline=True))["timeline"]["spans"] == spans
    assert "timeline" not in await completion(http)
    *_, last = await chunks(http, "/v1/completions", **PLAIN, timeline=True)
    assert last["timeline"]["ttft_s"] == 0.75
    assert last["choices"] == []
    assert "usage" not in last


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (QueueFull("the queue is full", retry_after_s=1.5), 429, "rate_limit_error", "queue_full"),
        (Unavailable("no worker"), 503, "service_unavailable_error", "unavailable"),
        (Internal("broken"), 500, "internal_error", "internal_error"),
    ],
)
async def test_an_early_error_has_its_status(error: BatonError, status: int, kind: str, code: str, stream: bool) -> None:
    async with client_of(FakeService(fail_at=0, error=error)) as http:
        answer = await http.post("/v1/completions", json=PLAIN | {"stream": stream})
    assert answer.status_code == status
    assert answer.json() == {"error": {"message": error.message, "type": kind, "param": None, "code": code}}
    assert answer.headers.get("retry-after") == {429: "2", 503: "1", 500: None}[status]


async def test_a_late_error_is_an_event_without_done() -> None:
    async with client_of(FakeService(fail_at=2, error=Unavailable("all workers died"))) as http:
        answer = await http.post("/v1/completions", json=PLAIN | {"stream": True})
    *data, last = events_of(answer.text)
    assert [json.loads(chunk)["choices"][0]["text"] for chunk in data] == ["b", "c"]
    assert json.loads(last)["error"]["code"] == "unavailable"


async def test_one_failed_prompt_fails_the_request() -> None:
    service = FakeService(fail_at=2, error=Unavailable("all workers died"))
    async with client_of(service) as http:
        answer = await http.post("/v1/completions", json=PLAIN | {"prompt": ["A", "#"]})
    assert answer.status_code == 503
    assert service.running == 0


async def test_c194_a_streamed_overflow_is_refused_before_any_event() -> None:
    async with client_of(FakeService(scripted_card(max_model_len=64))) as http:
        answer = await http.post("/v1/completions", json=PLAIN | {"prompt": "x" * 100, "stream": True})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")
    assert "101" in error["message"]
    assert "64" in error["message"]


NOT_JSON = [
    b"",
    b"{",
    b"[]",
    b"5",
    b'{"a":1,"a":1}',
    b'{"a":NaN}',
    b'{"a":1e400}',
    b'{"a":"\\ud800"}',
    b'{"a":"\xff"}',
    b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    b'{"prompt":' + b'{"a":' * 1020 + b"1" + b"}" * 1020 + b"}",
    b'{"a":' + b"9" * 5000 + b"}",
]


@pytest.mark.parametrize("body", NOT_JSON, ids=range(len(NOT_JSON)))
async def test_a_body_that_is_not_one_plain_object_is_refused(http: httpx.AsyncClient, body: bytes) -> None:
    answer = await http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_a_duplicate_key_is_found_at_any_depth() -> None:
    assert parse(b'{"a":{"b":1},"c":{"b":1}}') == {"a": {"b": 1}, "c": {"b": 1}}
    with pytest.raises(BatonError, match="same key twice"):
        parse(b'{"a":[{"b":1,"b":2}]}')


@pytest.mark.parametrize(
    "headers", [{"content-type": "text/plain"}, {"content-type": "application/json", "content-encoding": "gzip"}]
)
async def test_other_bodies_are_415(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    assert (await http.post("/v1/completions", content=b"{}", headers=headers)).status_code == 415


async def test_a_large_body_is_413(http: httpx.AsyncClient, service: FakeService) -> None:
    body = json.dumps(PLAIN | {"prompt": "x" * (4 << 20)}).encode()
    answer = await http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "request_too_large"
    assert not service.requests


@pytest.mark.parametrize("headers", [{"x-big": "x" * 33_000}, {f"x-{i}": "1" for i in range(101)}])
async def test_large_headers_are_431(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    assert (await http.get("/livez", headers=headers)).status_code == 431


async def test_c606_a_request_id_is_echoed_as_a_header_only(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/completions", json=PLAIN, headers={"x-request-id": "same-1_A.b"})
    assert answer.headers["x-request-id"] == "same-1_A.b"
    assert "same-1_A.b" not in answer.text
    for given in ("a b", "x" * 129, "10.0.0.1:80", ""):
        answer = await http.get("/livez", headers={"x-request-id": given})
        assert answer.headers["x-request-id"] not in (given, "")


async def test_models(http: httpx.AsyncClient) -> None:
    (entry,) = (await http.get("/v1/models")).json()["data"]
    assert (entry["id"], entry["object"], entry["max_model_len"]) == ("scripted", "model", 4096)
    assert (await http.get("/v1/models/scripted")).json() == entry
    missing = await http.get("/v1/models/org/other")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


async def test_probes(http: httpx.AsyncClient, service: FakeService) -> None:
    for path in ("/livez", "/readyz", "/health", "/metrics", "/version"):
        assert (await http.get(path)).status_code == 200
    for path in ("/livez", "/readyz", "/health"):  # some load balancers probe without wanting the body
        assert (await http.head(path)).status_code == 200
    service.reason = "no decode worker"
    assert (await http.get("/livez")).status_code == 200
    answer = await http.get("/readyz")
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, "no decode worker")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", "//v1/models", 404),
        ("GET", "/V1/models", 404),
        ("POST", "/v1/completions/", 404),
        ("GET", "/v1/completions", 405),
        ("DELETE", "/v1/models", 405),
    ],
)
async def test_wrong_urls_and_methods_are_openais_errors(http: httpx.AsyncClient, method: str, path: str, status: int) -> None:
    answer = await http.request(method, "http://door" + path)
    assert answer.status_code == status
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert status == 405 or answer.json()["error"]["message"] == f"Unknown request URL: {method} {path}."


async def test_a_fault_of_ours_tells_nothing(http: httpx.AsyncClient, service: FakeService, monkeypatch: Any) -> None:
    def fail() -> None:
        raise RuntimeError("/secret/path")

    monkeypatch.setattr(service, "models", fail)
    answer = await http.post("/v1/completions", json=PLAIN)
    assert answer.status_code == 500
    assert answer.json()["error"]["message"].startswith("The server failed")
    assert "secret" not in answer.text


async def test_an_unusable_tokenizer_is_said_so(http: httpx.AsyncClient, service: FakeService) -> None:
    service.cards["scripted"] = scripted_card(tokenizer_json="{}")
    answer = await http.post("/v1/completions", json=PLAIN)
    assert answer.status_code == 500
    assert "tokenizer" in answer.json()["error"]["message"]


async def test_the_document_names_every_field(http: httpx.AsyncClient) -> None:
    paths = (await http.get("/openapi.json")).json()["paths"]
    body = paths["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"messages", "temperature", "user"} <= set(body["properties"])
