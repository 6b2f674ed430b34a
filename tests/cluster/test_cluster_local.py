"""A cluster of local processes, with a launcher that starts none: order of start and stop, restarts, failures."""

import asyncio
import socket

import pytest

from baton.cluster import supervise
from baton.cluster.config import ServeConfig, WorkerConfig
from baton.cluster.lifecycle import StartupError
from baton.cluster.local import Doors, LocalCluster, check_port, plan
from baton.cluster.sources import from_argv
from baton.wire.types import Role

DEADLINE_S = 30


class FakeChild:
    def __init__(self, log, name, pid):
        self.log, self.name, self.pid = log, name, pid
        self.code = asyncio.get_running_loop().create_future()

    def die(self, code=-9):
        if not self.code.done():
            self.code.set_result(code)

    async def wait(self):
        return await asyncio.shield(self.code)

    async def stop(self, grace_s):
        self.log.append(f"stop {self.name}")
        self.die(0)
        return await self.wait()


class FakeLauncher:
    """Children that are ready at once, unless `refuse` says what a module's next start tells instead."""

    def __init__(self):
        self.log, self.children, self.commands, self.envs, self.refuse = [], [], [], [], {}
        self.started = asyncio.Condition()

    async def start(self, command, env, on_status, on_line):
        module, argv = command[2], command[3:]
        role = from_argv(WorkerConfig, argv).role.value if "worker" in module else "router"
        child = FakeChild(self.log, role, len(self.children))
        self.log.append(f"start {role}")
        self.commands.append(argv)
        self.envs.append(env)
        self.children.append(child)
        if role in self.refuse:
            self.refuse.pop(role)(child, on_status, on_line)
        else:
            on_status({"status": "loading", "bytes": 1, "total": 2})
            on_status(
                {"status": "ready", "address": f"127.0.0.1:{100 + child.pid}", "grpc_address": "127.0.0.1:99", "model": "m"}
            )
        async with self.started:
            self.started.notify_all()
        return child

    async def until(self, condition):
        async with self.started:
            await asyncio.wait_for(self.started.wait_for(condition), DEADLINE_S)


class Recorder:
    def __init__(self):
        self.seen = []

    def loading(self, name, done, total):
        self.seen.append((name, done, total))

    def ready(self, name, address):
        self.seen.append((name, address))

    def died(self, name, reason, restart_s):
        self.seen.append((name, "died", reason))

    def line(self, name, text):
        self.seen.append((name, text))


@pytest.fixture
def launcher(monkeypatch):
    monkeypatch.setenv("BATON_CLUSTER_TOKEN", "t")
    monkeypatch.setattr(supervise, "BACKOFF_S", (0.0,))
    return FakeLauncher()


def cluster_of(launcher, view=None, **settings):
    return LocalCluster(ServeConfig(port=0, grpc_port=0, **settings), launcher, view or Recorder())


async def test_workers_start_before_the_router_which_is_told_of_them(launcher):
    cluster = cluster_of(launcher, prefill=1, decode=2)
    doors = await cluster.start()
    assert launcher.log == ["start prefill", "start decode", "start decode", "start router"]
    assert doors == Doors(http="127.0.0.1:103", grpc="127.0.0.1:99", model="m")
    assert launcher.commands[-1][:2] == ["--worker", "127.0.0.1:100,127.0.0.1:101,127.0.0.1:102"]
    await cluster.stop()
    assert launcher.log[4] == "stop router"
    assert len(launcher.log) == 8


async def test_what_did_not_end_well_is_told_by_name(launcher):
    cluster = cluster_of(launcher)
    await cluster.start()
    launcher.children[2].die(1)
    assert await cluster.stop() == {"router": 1, "prefill-0": 0, "decode-0": 0}


async def test_a_stop_that_is_cut_short_still_stops_the_workers(launcher):
    cluster = cluster_of(launcher)
    await cluster.start()
    draining = asyncio.Event()

    async def drain(grace_s):
        draining.set()
        await asyncio.Event().wait()

    launcher.children[2].stop = drain
    stopping = asyncio.create_task(cluster.stop())
    await asyncio.wait_for(draining.wait(), DEADLINE_S)
    stopping.cancel()
    await asyncio.wait([stopping], timeout=DEADLINE_S)
    assert stopping.cancelled()
    assert launcher.log[-2:] == ["stop prefill", "stop decode"]


async def test_one_token_goes_to_all_by_environment_only(launcher):
    cluster = cluster_of(launcher)
    await cluster.start()
    tokens = {env["BATON_CLUSTER_TOKEN"] for env in launcher.envs}
    assert len(tokens) == 1
    assert tokens.isdisjoint(argument for command in launcher.commands for argument in command)
    await cluster.stop()


async def test_a_dead_worker_comes_back_at_its_port(launcher):
    view = Recorder()
    cluster = cluster_of(launcher, view)
    await cluster.start()
    keep = asyncio.create_task(cluster.keep())
    launcher.children[1].die()
    await launcher.until(lambda: len(launcher.children) == 4)
    assert launcher.log[-1] == "start decode"
    assert launcher.commands[-1][launcher.commands[-1].index("--port") + 1] == "101"
    assert ("decode-0", "died", "exit status -9") in view.seen
    keep.cancel()
    await asyncio.gather(keep, return_exceptions=True)
    await cluster.stop()


async def test_a_restart_that_fails_is_tried_again(launcher):
    def fail(child, on_status, on_line):
        on_status({"status": "failed", "error": "the port is taken"})

    view = Recorder()
    cluster = cluster_of(launcher, view)
    await cluster.start()
    keep = asyncio.create_task(cluster.keep())
    launcher.refuse["decode"] = fail
    launcher.children[1].die()
    await launcher.until(lambda: len(launcher.children) == 5)
    assert ("decode-0", "died", "decode-0: the port is taken") in view.seen
    assert not keep.done()
    keep.cancel()
    await asyncio.gather(keep, return_exceptions=True)
    await cluster.stop()


async def test_a_start_that_fails_names_the_process_and_its_words(launcher):
    def fail(child, on_status, on_line):
        on_status({"status": "failed", "error": "no model at /m; pass a directory"})

    launcher.refuse["decode"] = fail
    cluster = cluster_of(launcher)
    with pytest.raises(StartupError, match="decode-0: no model at /m; pass a directory"):
        await cluster.start()
    await cluster.stop()
    assert "start router" not in launcher.log
    assert all(child.code.done() for child in launcher.children)


async def test_a_start_that_ends_without_a_word_shows_its_last_lines(launcher):
    def crash(child, on_status, on_line):
        on_line("Illegal instruction")
        child.die(-4)

    launcher.refuse["prefill"] = crash
    cluster = cluster_of(launcher)
    with pytest.raises(StartupError, match=r"exit status -4 before it was ready\n  Illegal instruction"):
        await cluster.start()
    await cluster.stop()


async def test_a_start_that_tells_nothing_is_given_up(launcher, monkeypatch):
    monkeypatch.setattr(supervise, "START_STALL_S", 0.01)
    launcher.refuse["prefill"] = lambda child, on_status, on_line: None
    cluster = cluster_of(launcher)
    with pytest.raises(StartupError, match="told nothing"):
        await cluster.start()
    await cluster.stop()


def test_a_taken_port_is_named_with_its_flag():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=rf"127.0.0.1:{port}.*another --port"):
            check_port("127.0.0.1", port, "--port")


def test_an_address_of_another_machine_is_named_with_its_flag():
    with pytest.raises(StartupError, match=r"203\.0\.113\.1:0: Cannot assign.*address of this machine as --host"):
        check_port("203.0.113.1", 0, "--port")


async def test_a_taken_port_stops_the_start_before_any_process(launcher):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = ServeConfig(port=0, grpc_port=taken.getsockname()[1])
        with pytest.raises(StartupError, match="--grpc-port"):
            await LocalCluster(config, launcher, Recorder()).start()
    assert launcher.log == []


@pytest.mark.parametrize(
    ("cores", "prefill", "decode", "cpus"),
    [
        (2, 1, 1, [(0,), (1,)]),
        (2, 2, 2, [(0,), (1,), (0,), (1,)]),
        (1, 1, 1, [(0,), (0,)]),
        (9, 1, 1, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (3, 1, 1, [(0,), (1,)]),
    ],
)
def test_cpus_are_dealt_out_without_sharing_while_there_are_enough(monkeypatch, cores, prefill, decode, cpus):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)))
    assert [share for _, _, share in plan(ServeConfig(prefill=prefill, decode=decode))] == cpus


def test_workers_in_both_roles_stand_instead_of_the_others(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2})
    assert plan(ServeConfig(both=2)) == [("both-0", Role.BOTH, (0,)), ("both-1", Role.BOTH, (1,))]
    with pytest.raises(ValueError, match="--both 2 stands instead of --prefill and --decode"):
        ServeConfig(both=2, decode=1)
