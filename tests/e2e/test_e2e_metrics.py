"""What the metrics count: each request and token once, whichever workers had a part in it."""

import time

import pytest

from tests.support.asking import http
from tests.support.link import FOR_EVER, Damage
from tests.support.processes import Shape, running

DEADLINE_S = 30


@pytest.fixture
def untouched(scripted, tmp_path):
    """A cluster that nobody has asked anything; idle and serving at the end."""
    with running(Shape(scripted, gated=True, forked=True), tmp_path) as cluster:
        yield cluster
        cluster.assert_idle()
        cluster.assert_serving()


def counted(cluster, name, **labels):
    """The sum of all series of this name and these labels."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    series = ((key, value) for key, value in cluster.metrics().items() if key.partition("{")[0] == name)
    return sum(value for key, value in series if all(label in key for label in wanted))


def wait_counted(cluster, expected, name, **labels):
    assert wait_at_least(cluster, expected, name, **labels) == expected, (name, labels)


def wait_at_least(cluster, least, name, **labels):
    """Workers' counters come with their next report."""
    deadline = time.monotonic() + DEADLINE_S
    while (now := counted(cluster, name, **labels)) < least:
        assert time.monotonic() < deadline, f"{name} {labels} is {now}"
        time.sleep(0.05)
    return now


async def complete(cluster, **fields):
    async with http(cluster) as client:
        return await client.post("/v1/completions", json={"prompt": "0", "max_tokens": 5, "temperature": 0} | fields)


async def test_c471_requests_and_tokens_are_counted_once(untouched):
    for _ in range(10):
        assert (await complete(untouched)).json()["choices"][0]["text"] == "12345"
    assert counted(untouched, "baton_requests_total", outcome="ok") == 10
    assert counted(untouched, "baton_prompt_tokens_total") == 20
    assert counted(untouched, "baton_generation_tokens_total") == 50
    wait_counted(untouched, 10, "baton_worker_generated_tokens_total", role="prefill")
    wait_counted(untouched, 40, "baton_worker_generated_tokens_total", role="decode")
    wait_counted(untouched, 20, "baton_worker_prompt_tokens_total", role="prefill")
    wait_counted(untouched, 0, "baton_worker_prompt_tokens_total", role="decode")


async def test_c471_failures_are_counted(untouched):
    """Each request is tried three times before its client hears of it."""
    link = untouched.prefill[0].link
    link.damage(Damage.FLIP, FOR_EVER)
    for _ in range(5):
        answer = await complete(untouched)
        assert answer.status_code == 503
        assert answer.json()["error"]["message"]
    link.repair()
    assert counted(untouched, "baton_requests_total", outcome="unavailable") == 5
    assert counted(untouched, "baton_requests_total", outcome="ok") == 0
    assert counted(untouched, "baton_transfers_failed_total") == 15
    wait_at_least(untouched, 5, "baton_worker_frames_refused_total", role="decode")
    assert untouched.gauges()["baton_num_requests_running"] == untouched.gauges()["baton_num_requests_waiting"] == 0
