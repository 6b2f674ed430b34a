"""Settings: precedence, round trip over a command line, and messages that name flag, value, source and fix."""

import sys

import pytest
from pydantic import ValidationError

from baton.cluster.config import Limits, RouterConfig, ServeConfig, WorkerConfig
from baton.cluster.lifecycle import StartupError
from baton.cluster.registries import registry_of
from baton.cluster.sources import ConfigError, child_environ, from_argv, load, to_argv
from baton.wire.types import Role, Timeouts

TOKEN = {"BATON_CLUSTER_TOKEN": "t"}


def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default(tmp_path):
    file = tmp_path / "baton.yaml"
    file.write_text("block-size: 8\nmax_num_seqs: 3\nport: 7000\n")
    environ = TOKEN | {"BATON_BLOCK_SIZE": "16", "BATON_MAX_NUM_SEQS": "5"}
    config = load(WorkerConfig, {"block_size": "32"}, str(file), environ)
    assert (config.block_size, config.max_num_seqs, config.port, config.max_step_tokens) == (32, 5, 7000, 512)


@pytest.mark.parametrize(
    "config",
    [
        WorkerConfig(role=Role.PREFILL, model="/m", cpus=(1, 0), kv_blocks=12, cluster_token="t"),
        RouterConfig(workers=("a:1", "b:2"), limits=Limits(num_stop=2), timeouts=Timeouts(request_s=3.5), cluster_token="t"),
        RouterConfig(host="0.0.0.0", insecure=True, cluster_token="t"),
    ],
)
def test_a_command_line_gives_the_same_config_back(config, monkeypatch):
    monkeypatch.setenv("BATON_CLUSTER_TOKEN", "t")
    assert from_argv(type(config), to_argv(config)) == config


def test_a_secret_is_in_no_argument_and_no_print():
    config = WorkerConfig(cluster_token="hush")
    assert "hush" not in " ".join(to_argv(config)) + repr(config) + config.model_dump_json()


def test_a_child_inherits_the_token_and_no_other_setting():
    environ = child_environ("t", {"BATON_BLOCK_SIZE": "16", "BATON_CLUSTER_TOKEN": "old", "HOME": "/h"})
    assert environ == {"HOME": "/h", "BATON_CLUSTER_TOKEN": "t"}


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["--block-size", "0"], ["--block-size", "'0'", "greater than 0"]),
        (["--kv-blocks", "many"], ["--kv-blocks", "'many'", "'auto'"]),
        (["--role", "cook"], ["--role", "'cook'", "'prefill'"]),
        (["--timeouts", "{request_s: soon}"], ["--timeouts.request_s", "'soon'"]),
        (["--timeouts", "{"], ["not YAML"]),
        (["--host", "0.0.0.0"], ["0.0.0.0", "--insecure"]),
        (["--host", "example.org"], ["example.org", "--insecure"]),
        (["--config", "/nowhere.yaml"], ["--config", "/nowhere.yaml", "No such file"]),
    ],
)
def test_a_wrong_setting_is_named_with_its_value(argv, parts, monkeypatch):
    monkeypatch.setenv("BATON_CLUSTER_TOKEN", "t")
    with pytest.raises(ConfigError) as caught:
        from_argv(WorkerConfig, argv)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_a_wrong_setting_names_its_source(tmp_path):
    file = tmp_path / "baton.yaml"
    file.write_text("decode: none\npreffil: 1\n")
    with pytest.raises(ConfigError) as caught:
        load(ServeConfig, {}, str(file), {"BATON_PREFILL": "-1"})
    message = str(caught.value)
    assert "--prefill '-1' in the environment" in message
    assert f"--decode 'none' in {file}" in message
    assert f"preffil in {file} is not a setting" in message


@pytest.mark.parametrize("address", ["foo", ":9000", "foo:", "foo:0", "foo:65536", "foo:x", "http://foo:80", "::1:80", "a b:1"])
def test_an_address_that_cannot_be_dialled_is_refused(address):
    with pytest.raises(ConfigError, match=r"--worker.*is not host:port, such as 127\.0\.0\.1:9000"):
        load(RouterConfig, {"workers": [address]}, None, TOKEN)


def test_addresses_may_be_names_and_both_kinds_of_numbers():
    addresses = ("prefill-0.workers.svc:9000", "10.0.0.1:1", "[::1]:65535", "my_host:80")
    assert load(RouterConfig, {"workers": ",".join(addresses)}, None, TOKEN).workers == addresses


@pytest.mark.parametrize("kind", [WorkerConfig, RouterConfig, ServeConfig])
def test_a_variable_that_is_nearly_a_setting_is_a_slip(kind):
    with pytest.raises(ConfigError, match="BATON_BLOK_SIZE in the environment is not a setting; did you mean BATON_BLOCK_SIZE"):
        load(kind, {}, None, TOKEN | {"BATON_BLOK_SIZE": "16"})


def test_variables_of_other_commands_and_other_programs_are_let_be():
    theirs = {
        "BATON_PREFILL": "2",
        "BATON_URL": "http://h",
        "BATON_SERVICE_HOST": "10.0.0.1",
        "BATON_PORT_8000_TCP": "tcp://h:1",
    }
    assert load(WorkerConfig, {}, None, TOKEN | theirs) == WorkerConfig(cluster_token="t")


def test_a_token_does_not_belong_in_a_file_of_settings(tmp_path):
    file = tmp_path / "baton.yaml"
    file.write_text("cluster_token: hush\n")
    with pytest.raises(ConfigError, match="BATON_CLUSTER_TOKEN"):
        load(RouterConfig, {}, str(file), {})


def test_a_worker_without_a_token_is_told_both_ways_to_give_one():
    with pytest.raises(ConfigError, match=r"BATON_CLUSTER_TOKEN.*--cluster-token-file"):
        load(WorkerConfig, {}, None, {})


def test_the_token_comes_from_a_file_that_only_its_owner_reads(tmp_path):
    file = tmp_path / "token"
    file.write_text("t\n")
    file.chmod(0o600)
    assert load(WorkerConfig, {"cluster_token_file": str(file)}, None, {}).cluster_token == "t"
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        load(WorkerConfig, {"cluster_token_file": str(file)}, None, {})


def test_the_doors_need_different_ports():
    with pytest.raises(ValidationError, match="both 8000"):
        ServeConfig(port=8000, grpc_port=8000)
    assert ServeConfig(port=0, grpc_port=0).port == 0


def test_a_cluster_says_what_its_processes_need():
    config = ServeConfig(model="/m", block_size=16, queue_limit=7, host="0.0.0.0", insecure=True, port=1, grpc_port=2)
    worker, router = config.worker(Role.DECODE, (1,)), config.router(("a:1",))
    assert (worker.model, worker.block_size, worker.host, worker.port, worker.cpus) == ("/m", 16, "127.0.0.1", 0, (1,))
    assert (router.workers, router.queue_limit, router.host, router.port, router.grpc_port) == (("a:1",), 7, "0.0.0.0", 1, 2)


def test_configs_are_frozen():
    with pytest.raises(ValidationError):
        WorkerConfig().port = 1


@pytest.mark.parametrize("kind", [WorkerConfig, RouterConfig])
@pytest.mark.parametrize(
    "url", ["redis://:hu/s@h@db:6379/0", "rediss://me:hu/s@h@db/1", "redis://db:1/0?password=hu/s@h", "http://db"]
)
def test_a_registry_that_cannot_be_or_holds_a_password_is_refused_without_telling_it(kind, url):
    with pytest.raises(ConfigError, match="--registry ") as caught:
        load(kind, {"registry": url}, None, TOKEN)
    assert not any(part in str(caught.value) for part in ("hu/s", "s@h"))


def test_the_registrys_password_comes_from_the_environment_or_a_file_and_goes_nowhere(tmp_path):
    file = tmp_path / "password"
    file.write_text("hush\n")
    file.chmod(0o600)
    given = {"registry": "redis://me@db:6379/0"}
    by_file = load(WorkerConfig, given | {"registry_password_file": str(file)}, None, TOKEN)
    by_environment = load(RouterConfig, given, None, TOKEN | {"BATON_REGISTRY_PASSWORD": "hush"})
    for config in (by_file, by_environment):
        assert config.registry_password == "hush"
        assert "hush" not in " ".join(to_argv(config)) + repr(config) + config.model_dump_json()
    file.chmod(0o644)
    with pytest.raises(ConfigError, match=r"--registry-password-file .*0644"):
        load(WorkerConfig, given | {"registry_password_file": str(file)}, None, TOKEN)


@pytest.mark.parametrize(
    ("kind", "flags", "parts"),
    [
        (WorkerConfig, {"router": "r:1", "registry": "redis://db"}, ["--router", "--registry", "one of them"]),
        (WorkerConfig, {"host": "0.0.0.0", "insecure": "true", "router": "r:1"}, ["0.0.0.0", "--advertise"]),
        (WorkerConfig, {"host": "::", "insecure": "true", "registry": "redis://db"}, ["::", "--advertise"]),
        (RouterConfig, {"workers": ["w:1"], "registry": "redis://db"}, ["--worker", "--registry", "one of them"]),
        (RouterConfig, {"registry_host": "0.0.0.0"}, ["--registry-host 0.0.0.0", "--insecure"]),
    ],
)
def test_contradictions_about_the_registry_are_named(kind, flags, parts):
    with pytest.raises(ConfigError) as caught:
        load(kind, flags, None, TOKEN)
    assert all(part in str(caught.value) for part in parts), caught.value


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        ({"host": "127.0.0.1"}, "127.0.0.1:9"),
        ({"host": "::1"}, "[::1]:9"),
        ({"host": "0.0.0.0", "advertise": "gpu-3", "insecure": True, "router": "r:1"}, "gpu-3:9"),
        ({"advertise": "[fd00::3]"}, "[fd00::3]:9"),
    ],
)
def test_a_worker_tells_an_address_that_others_can_dial(settings, address):
    assert WorkerConfig(**settings).advertised(9) == address


def test_redis_is_an_extra_that_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.delitem(sys.modules, "baton.cluster.registry_redis", raising=False)
    for name in ["redis", *(name for name in sys.modules if name.startswith("redis."))]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(StartupError, match=r"pip install 'baton-serve\[redis\]'"):
        registry_of(RouterConfig(registry="redis://db"))
