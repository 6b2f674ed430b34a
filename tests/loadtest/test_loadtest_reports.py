"""Reports: what is written can be read again, and the page is whole and holds what it should."""

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
from rich.console import Console

from baton.loadtest import report_compare, report_csv, report_html, report_json, report_text
from baton.loadtest.compare import compare
from baton.loadtest.errors import BenchError
from baton.loadtest.live import watch
from baton.loadtest.plots import verdict
from baton.loadtest.slo import Slo
from baton.loadtest.words import duration, number, percent
from tests.loadtest.loadtest_support import outcome, result_of, run_of, steady

SLO = Slo.parse(["ttft:300,itl:50"])
MIXED = (*steady(6, 0.2, 0.01), *[outcome([(9 + i, 1), (9.5 + i, 2)], number=6 + i, intended_s=8.0 + i) for i in range(2)])
FAILED = outcome([], number=8, intended_s=9.0, error="http <500>")
ONE = result_of(run_of((*MIXED, FAILED), SLO))
SWEEP = result_of(
    run_of(MIXED, SLO), run_of(MIXED, SLO, 2.0, "2 req/s"), run_of(MIXED, SLO, 4.0, "4 req/s"), title="A & B <sweep>"
)
NOTHING = result_of(run_of([FAILED]))
CLOSED = result_of(run_of(MIXED, None, None, "4 at a time"))


@pytest.mark.parametrize("result", [ONE, SWEEP, NOTHING, CLOSED])
def test_json_comes_back_as_it_was(result, tmp_path):
    path = tmp_path / "r.json"
    path.write_bytes(report_json.dump(result))
    again = report_json.load(str(path))
    assert report_json.dump(again) == path.read_bytes()
    assert [run.summary.num_good for run in again.runs] == [run.summary.num_good for run in result.runs]


def test_json_has_the_figures():
    data = json.loads(report_json.dump(ONE))
    summary = data["runs"][0]["summary"]
    assert summary["latency_ms"]["ttft"]["p50"] == pytest.approx(200)
    assert set(summary["latency_ms"]["itl"]) == {"p50", "p90", "p99", "max", "mean"}
    assert summary["errors"] == {"http <500>": 1}
    assert summary["slo_missed"] == {"ttft": 2, "itl": 2}
    assert data["setup"]["seed"] == "7"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": "baton-bench/1"}', "nonsense"])
def test_a_file_that_is_no_result_is_refused(text, tmp_path):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(BenchError):
        report_json.load(str(path))


def test_csv_has_a_line_a_request():
    rows = list(csv.DictReader(io.StringIO(report_csv.dump(ONE))))
    assert len(rows) == 9
    assert rows[0]["ttft_ms"] == "200.000"
    assert rows[6]["slo_failed"] == "ttft itl"
    assert rows[8]["error"] == "http <500>"
    assert rows[8]["ttft_ms"] == ""


class Tags(HTMLParser):
    """Fails on a tag that is not closed in order."""

    VOID = ("meta", "path", "rect", "circle", "link", "br")

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.mark.parametrize("result", [ONE, SWEEP, NOTHING, CLOSED])
def test_the_page_is_whole_and_needs_nothing_else(result):
    page = report_html.dump(result)
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert not any(name in ("src", "href") for _, attributes in tags.seen for name in attributes)
    assert "<script" not in page
    for picture in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        assert "nan" not in picture
        ET.fromstring(picture)


def test_the_page_escapes_what_others_wrote():
    assert "http &lt;500&gt;" in report_html.dump(ONE)
    assert "A &amp; B &lt;sweep&gt;" in report_html.dump(SWEEP)


def test_the_page_of_a_sweep_shows_goodput_against_rate():
    assert "Goodput against rate" in report_html.dump(SWEEP)
    assert "Goodput against rate" not in report_html.dump(ONE)
    assert "Attainment against SLO scale" in report_html.dump(ONE)
    assert "SLO scale" not in report_html.dump(CLOSED)


def test_requests_are_coloured_by_what_they_missed():
    slow_start, slow_tokens = outcome([(0.9, 1), (0.91, 1)]), outcome([(0.1, 1), (0.9, 1)])
    kinds = [verdict(one, SLO) for one in (MIXED[0], slow_start, slow_tokens, MIXED[6], FAILED)]
    assert kinds == ["kept", "missed-ttft", "missed-itl", "missed-several", "failed"]


def shown(show, *arguments):
    console = Console(file=io.StringIO(), width=120)
    show(*arguments, console)
    return console.file.getvalue()


@pytest.mark.parametrize("result", [ONE, SWEEP, NOTHING, CLOSED])
def test_the_terminal_shows_every_run(result):
    text = shown(report_text.show, result)
    assert all(run.label in text for run in result.runs)
    assert "harness limit" in text


def test_the_terminal_tells_the_slo_and_who_missed_it():
    assert "300 ms, missed by 2" in shown(report_text.show, ONE)


def test_the_terminal_compares():
    text = shown(report_compare.show, ONE, CLOSED, compare(ONE, CLOSED))
    assert "1 req/s against 4 at a time" in text
    assert "TTFT p99" in text


def test_progress_goes_by_tenths_where_there_is_no_terminal():
    console = Console(file=io.StringIO(), width=120)
    with watch(console, "run", 40) as view:
        for one in steady(40, 0.2, 0.01):
            view.sent()
            view.ended(one)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[-1].startswith("run: 40/40 · 0 under way")


def test_progress_moves_on_a_terminal():
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    with watch(console, "run", 2) as view:
        view.sent()
        view.ended(FAILED)
    assert "run" in console.file.getvalue()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0000123, "12 µs"), (0.00123, "1.23 ms"), (0.0501, "50.1 ms"), (0.5, "500 ms"), (1.1, "1.10 s"), (123.4, "123 s")],
)
def test_durations(seconds, said):
    assert duration(seconds) == said


def test_numbers():
    assert [number(value) for value in (0, 0.123, 11.81, 999.6, 43738.2)] == ["0", "0.12", "11.8", "1,000", "43,738"]
    assert [percent(share) for share in (0, 0.0001, 0.5, 0.99999, 1)] == ["0 %", "0.1 %", "50.0 %", "99.9 %", "100 %"]
