"""A prompt in, prefilled on one process, its KV handed over, tokens streamed from another."""

import pytest

from tests.support import sse

ANCHORS = [("The quick brown fox", "k/b!Y5RPL)x>&8*fYdLf)doJ"), ("x" * 15, "))))fM]io>bWQO6')V;)&o>{")]


def complete(cluster, prompt, **params):
    body = {"model": cluster.model, "prompt": prompt, "temperature": 0} | params
    response = cluster.http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def stream(cluster, path, **body):
    with cluster.http.stream("POST", path, json={"model": cluster.model, "stream": True} | body) as response:
        assert response.status_code == 200, response.read()
        return list(sse.events(response.iter_lines()))


def test_a_script_is_told_to_its_end(scripted_pair):
    answer = complete(scripted_pair, "A", max_tokens=50)
    assert answer["choices"][0]["text"] == "bcdefghij"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["prompt_tokens"] == 2


def test_a_stream_says_the_same(scripted_pair):
    chunks = stream(scripted_pair, "/v1/completions", prompt="#", max_tokens=50, temperature=0)
    assert sse.text(chunks) == "🌶辣!"


def test_a_chat_is_answered(scripted_pair):
    messages = [{"role": "user", "content": "hello"}]
    chunks = stream(scripted_pair, "/v1/chat/completions", messages=messages, max_tokens=50)
    assert sse.text(chunks) == "OK."


@pytest.mark.parametrize(("prompt", "text"), ANCHORS)
def test_kv_arrives_whole(random_pair, prompt, text):
    assert complete(random_pair, prompt, max_tokens=24)["choices"][0]["text"] == text


def test_a_worker_that_was_killed_comes_back(random_pair):
    prompt, text = ANCHORS[0]
    for worker in random_pair.workers:
        worker.kill()
        worker.restart()
        random_pair.settled()
        assert complete(random_pair, prompt, max_tokens=24)["choices"][0]["text"] == text
