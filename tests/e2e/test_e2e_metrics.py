"""What the metrics count: each request and token once, whichever workers had a part in it."""

import time

import pytest

from tests.support.asking import http
from tests.support.link import FOR_EVER, Damage
from tests.support.processes import Shape

DEADLINE_S = 30


@pytest.fixture
def with_a_bad_link(clusters, scripted):
    cluster = clusters(Shape(scripted, gated=True, forked=True))
    yield cluster
    cluster.prefill[0].link.repair()


class Counted:
    """Counters of a cluster since this was made."""

    def __init__(self, cluster):
        self._cluster = cluster
        self._before = cluster.metrics()

    def __call__(self, name, **labels):
        """The growth of all series of this name and these labels."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        now = self._cluster.metrics()
        found = [series for series in now if series.partition("{")[0] == name and all(label in series for label in wanted)]
        return sum(now[series] - self._before.get(series, 0) for series in found)

    def until(self, expected, name, **labels):
        """Workers' counters come with their next report."""
        deadline = time.monotonic() + DEADLINE_S
        while (counted := self(name, **labels)) != expected:
            assert counted < expected, f"{name} {labels}: {counted}, not {expected}"
            assert time.monotonic() < deadline, f"{name} {labels}: {counted}, not {expected}"
            time.sleep(0.05)


async def complete(cluster, **fields):
    async with http(cluster) as client:
        return await client.post("/v1/completions", json={"prompt": "0", "max_tokens": 5, "temperature": 0} | fields)


async def test_c471_requests_and_tokens_are_counted_once(with_a_bad_link):
    cluster = with_a_bad_link
    counted = Counted(cluster)
    for _ in range(10):
        assert (await complete(cluster)).json()["choices"][0]["text"] == "12345"
    assert counted("baton_requests_total", outcome="ok") == 10
    assert counted("baton_prompt_tokens_total") == 20
    assert counted("baton_generation_tokens_total") == 50
    counted.until(20, "baton_worker_prompt_tokens_total", role="prefill")
    counted.until(10, "baton_worker_generated_tokens_total", role="prefill")
    counted.until(40, "baton_worker_generated_tokens_total", role="decode")
    assert counted("baton_worker_prompt_tokens_total", role="decode") == 0


async def test_c471_failures_are_counted(with_a_bad_link):
    cluster = with_a_bad_link
    counted = Counted(cluster)
    cluster.prefill[0].link.damage(Damage.FLIP, FOR_EVER)
    for _ in range(5):
        answer = await complete(cluster)
        assert answer.status_code == 503
        assert answer.json()["error"]["message"]
    assert counted("baton_requests_total", outcome="unavailable") == 5
    assert counted("baton_requests_total", outcome="ok") == 0
    assert counted("baton_transfers_failed_total") >= 5
    assert counted("baton_worker_frames_refused_total", role="decode") >= 5
    assert cluster.gauges()["baton_num_requests_running"] == cluster.gauges()["baton_num_requests_waiting"] == 0
