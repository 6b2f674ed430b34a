"""The command: one option for each setting, quick help, no engine where none is needed."""

import shlex
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from baton.cli import serve
from baton.cli.main import app
from baton.cluster.config import RouterConfig, ServeConfig, WorkerConfig
from baton.cluster.local import Doors
from baton.cluster.sources import flag_fields, flag_of

COMMANDS = ("serve", "router", "prefill", "decode", "chat", "version")
runner = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})


def test_help_names_every_command():
    shown = runner.invoke(app, ["--help"]).output
    assert all(command in shown for command in COMMANDS)


@pytest.mark.parametrize(
    ("command", "kind", "without"),
    [
        ("serve", ServeConfig, {"model"}),
        ("router", RouterConfig, set()),
        ("prefill", WorkerConfig, {"model", "role"}),
        ("decode", WorkerConfig, {"model", "role"}),
    ],
)
def test_help_names_every_setting_and_no_secret(command, kind, without):
    shown = runner.invoke(app, [command, "--help"]).output
    for name in flag_fields(kind).keys() - without:
        assert flag_of(kind, name) in shown
    assert "--cluster-token " not in shown


def test_a_choice_shows_its_words():
    assert "float32|int8" in runner.invoke(app, ["serve", "--help"]).output


def test_defaults_are_shown():
    shown = runner.invoke(app, ["serve", "--help"]).output
    assert "(default 8000)" in shown
    assert "(default 8001)" in shown


def test_options_reach_the_command_as_given(monkeypatch, tmp_path):
    seen = {}
    monkeypatch.setattr(serve, "main", lambda flags, file: seen.update(flags=flags, file=file) or 0)
    arguments = ["serve", "/m", "--decode", "3", "--insecure", "--timeouts", "{request_s: 2}", "--config", "f.yaml"]
    assert runner.invoke(app, arguments).exit_code == 0
    expected = {"model": "/m", "decode": "3", "insecure": True, "timeouts": "{request_s: 2}"}
    assert seen == {"flags": expected, "file": "f.yaml"}


def test_a_wrong_setting_ends_with_its_name_and_status_2():
    result = runner.invoke(app, ["router", "--queue-limit", "none"], env={"BATON_CLUSTER_TOKEN": "t"})
    assert result.exit_code == 2
    assert "--queue-limit 'none'" in result.stderr


def test_the_version_is_the_distribution_s(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: {"baton-serve": "9.9"}[name])
    assert runner.invoke(app, ["version"]).output == "baton 9.9\n"


def test_help_imports_no_engine_and_no_server():
    code = "import sys; from baton.cli.main import app; app(['serve', '--help'], standalone_mode=False); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(ran.stdout.splitlines()[-1].split())
    assert loaded.isdisjoint({"torch", "numpy", "grpc", "fastapi", "uvicorn", "tokenizers"})


def test_a_worker_without_the_engine_is_told_what_to_install():
    code = (
        "import sys; sys.modules['torch'] = None; from baton.cli.main import app; app(['prefill', '/m'], standalone_mode=False)"
    )
    environ = {"BATON_CLUSTER_TOKEN": "t", "PATH": ""}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, env=environ)
    assert "baton-serve[engine]" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("has_openai", [True, False])
def test_the_printed_python_is_python(monkeypatch, has_openai):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if has_openai else None)
    line = serve._python("http://127.0.0.1:1", 'm\'s "name"')
    compile(line, "line", "exec")
    assert ("openai" in line) == has_openai


def test_the_printed_lines_survive_a_strange_model_name():
    text = serve.usage(Doors("127.0.0.1:1", "127.0.0.1:2", "a'b\"c$d"))
    curl, python = (shlex.split(line) for line in text.splitlines() if line.startswith("  "))
    assert "a'b\\\"c$d" in curl[-1]
    compile(python[-1], "line", "exec")
