"""`baton chat` over the public wire: streams, remembers, and says what is wrong."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from baton.cli import chat
from baton.cli.chat import ChatOptions


def events(*deltas, done=True):
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + [": ping\n\n"] + ["data: [DONE]\n\n"] * done
    return "".join(lines).encode()


class Server(ThreadingHTTPServer):
    """Answers /v1/models, and each chat with the next of `answers`; keeps the bodies that it was sent."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies, self.answers, self.models = [], [], ["first", "second"]

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        assert self.path == "/v1/models"
        self.reply(200, json.dumps({"data": [{"id": name} for name in self.server.models]}).encode())

    def do_POST(self):
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.reply(*self.server.answers.pop(0))

    def reply(self, code, body):
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_one_question_is_answered(server, capsys):
    server.answers.append((200, events({"role": "assistant", "content": ""}, {"content": "he"}, {"content": "llo"})))
    assert chat.main(ChatOptions(server.url, system="be brief", max_tokens=3), "hi") == 0
    assert capsys.readouterr().out == "hello\n"
    assert server.bodies == [
        {
            "model": "first",
            "stream": True,
            "max_tokens": 3,
            "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        }
    ]


def test_a_conversation_is_remembered(server, capsys, monkeypatch):
    said = iter(["one", "", "two"])

    def typed(prompt):
        try:
            return next(said)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typed)
    server.answers += [(200, events({"content": "a"})), (200, events({"content": "b"}))]
    assert chat.main(ChatOptions(server.url, model="second"), None) == 0
    assert [message["content"] for message in server.bodies[1]["messages"]] == ["one", "a", "two"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((400, b'{"error": {"message": "max_tokens is too large"}}'), "max_tokens is too large"),
        ((502, b"<html>bad gateway"), "HTTP 502: <html>"),
        ((200, b'data: {"error": {"message": "decode died"}}\n\n'), "decode died"),
    ],
)
def test_what_the_server_says_is_shown(server, capsys, answer, message):
    server.answers.append(answer)
    assert chat.main(ChatOptions(server.url), "hi") == 1
    assert f"error: {message}" in capsys.readouterr().err


def test_no_server_is_told_with_what_to_do(capsys):
    assert chat.main(ChatOptions("http://127.0.0.1:1"), "hi") == 1
    assert "baton serve" in capsys.readouterr().err


@pytest.mark.parametrize("copied", ["{}/", "{}/v1", "{}/v1/"])
@pytest.mark.parametrize("scheme", ["http://", ""])
def test_an_address_may_be_copied_from_anywhere(server, capsys, copied, scheme):
    server.answers.append((200, events({"content": "hi"})))
    url = scheme + copied.format(server.url.removeprefix("http://"))
    assert chat.main(ChatOptions(url), "hi") == 0
    assert capsys.readouterr().out == "hi\n"


def test_a_server_that_speaks_no_http_is_told(capsys):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer_once, args=(listener, b"\x00\x00\x12\x04\x00\n"))
        thread.start()
        assert chat.main(ChatOptions(f"127.0.0.1:{listener.getsockname()[1]}"), "hi") == 1
        thread.join()
    assert "gRPC" in capsys.readouterr().err


def answer_once(listener, data):
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(data)


def test_no_model_is_told(server, capsys):
    server.models = []
    assert chat.main(ChatOptions(server.url), "hi") == 1
    assert "no model" in capsys.readouterr().err
