"""`baton bench` from its options to its files, against the stub."""

import asyncio
import json
import threading

import pytest
from typer.testing import CliRunner

from baton.cli.main import app
from baton.loadtest.stub import Script, StubServer


@pytest.fixture
def stub_url():
    """A stub on a thread and loop of its own."""
    started, stopped = threading.Event(), threading.Event()
    found = {}

    async def serve():
        stub = StubServer(Script((1, 2, 2)))
        await stub.start()
        found["url"] = stub.url
        started.set()
        await asyncio.to_thread(stopped.wait)
        await stub.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(30)
    yield found["url"]
    stopped.set()
    thread.join(30)


SMALL = ("--concurrency", "2", "--requests", "6", "--no-limits")


def bench(*arguments):
    return CliRunner().invoke(app, ["bench", *arguments], env={"COLUMNS": "160"})


def test_a_load_test_is_reported_and_compared(stub_url, tmp_path):
    out = str(tmp_path / "reports" / "a")
    ran = bench("--url", stub_url, "--chat", *SMALL, "--slo", "ttft:60000", "--out", out, "--seed", "5")
    assert ran.exit_code == 0, ran.output
    assert "All 6 requests succeeded" in ran.output
    data = json.loads((tmp_path / "reports" / "a.json").read_bytes())
    (run,) = data["runs"]
    assert (run["summary"]["succeeded"], run["summary"]["output_tokens"]) == (6, 30)
    assert data["setup"]["seed"] == "5"
    assert (tmp_path / "reports" / "a.html").read_text().startswith("<!doctype html>")
    assert len((tmp_path / "reports" / "a.csv").read_text().splitlines()) == 7
    compared = bench("compare", f"{out}.json", f"{out}.json")
    assert compared.exit_code == 0, compared.output
    assert "no clear difference" in compared.output


def test_a_sweep_has_a_run_a_rate(stub_url, tmp_path):
    out = str(tmp_path / "s")
    ran = bench("--url", stub_url, "--sweep", "200,400", "--requests", "4", "--warmup", "0", "--no-limits", "--out", out)
    assert ran.exit_code == 0, ran.output
    data = json.loads((tmp_path / "s.json").read_bytes())
    assert [(run["rate"], run["summary"]["succeeded"]) for run in data["runs"]] == [(200.0, 4), (400.0, 4)]


def test_the_harness_limit_is_measured(stub_url):
    ran = bench("--url", stub_url, "--concurrency", "1", "--requests", "1", "--warmup", "0")
    assert ran.exit_code == 0, ran.output
    assert "harness limit" in ran.output
    assert "tokens/s against a stub" in ran.output


def test_a_key_stays_out_of_the_report(stub_url, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["baton", "bench", "--api-key", "sk-secret"])
    out = str(tmp_path / "k")
    ran = bench("--url", stub_url, "--api-key", "sk-secret", *SMALL, "--out", out)
    assert ran.exit_code == 0, ran.output
    assert not any("sk-secret" in path.read_text() for path in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "say how much load"),
        (("--sweep", "a"), "a sweep is rates"),
        (("--concurrency", "1", "--rate", "2"), "one or the other"),
        (("--concurrency", "1", "--slo", "x:1"), "an SLO is one of"),
        (("--concurrency", "1", "--input-len", "x"), "a length is"),
    ],
)
def test_what_makes_no_sense_is_refused(stub_url, arguments, said):
    ran = bench("--url", stub_url, "--no-limits", *arguments)
    assert ran.exit_code == 2
    assert said in ran.output


def test_no_server_is_told():
    ran = bench("--url", "http://127.0.0.1:1", "--concurrency", "1")
    assert ran.exit_code == 2
    assert "is a server running there?" in ran.output
