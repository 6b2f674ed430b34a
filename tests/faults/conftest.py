"""Clusters whose workers pass gates and can be killed: each test module has its own, and leaves it idle after every test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import checkpoints
from tests.support.processes import Cluster, Shape, running

Clusters = Callable[..., Cluster]


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def scripted(tmp_path_factory) -> Path:
    return checkpoints.scripted(tmp_path_factory.mktemp("checkpoints") / "scripted")


@pytest.fixture(scope="session")
def random_model(tmp_path_factory) -> Path:
    return checkpoints.random_llama(tmp_path_factory.mktemp("checkpoints") / "random")


@pytest.fixture(scope="module")
def _cluster(tmp_path_factory) -> Iterator[Callable[[Shape], Cluster]]:
    """One cluster at a time: tests of a module that ask for another shape find the last one stopped."""
    current: list[tuple[Cluster, object]] = []

    def start(shape: Shape) -> Cluster:
        if current and current[0][0].shape == shape:
            return current[0][0]
        stop()
        context = running(shape, tmp_path_factory.mktemp(f"{shape.prefill}p{shape.decode}d"))
        current.append((context.__enter__(), context))
        return current[0][0]

    def stop() -> None:
        while current:
            current.pop()[1].__exit__(None, None, None)

    yield start
    stop()


@pytest.fixture
def faulty(_cluster) -> Iterator[Clusters]:
    """A gated cluster of `prefill` and `decode` workers on a checkpoint; other settings by role of process. Idle afterwards."""
    used: list[Cluster] = []

    def use(checkpoint: Path, prefill: int, decode: int, *, worker=(), router=()) -> Cluster:
        settings = {"kv_blocks": 512, "block_size": 16, "max_step_tokens": 64} | dict(worker)
        shape = Shape(
            checkpoint,
            prefill,
            decode,
            gated=True,
            forked=True,
            worker=tuple(settings.items()),
            router=tuple(dict(router).items()),
        )
        used[:] = [_cluster(shape)]
        return used[0]

    yield use
    for cluster in used:
        cluster.assert_idle()
