"""One cluster of processes for each shape and test session; every test leaves it idle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import checkpoints
from tests.support.processes import Cluster, Shape

Clusters = Callable[[Shape], Cluster]


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def scripted(tmp_path_factory) -> Path:
    return checkpoints.scripted(tmp_path_factory.mktemp("checkpoints") / "scripted")


@pytest.fixture(scope="session")
def random(tmp_path_factory) -> Path:
    return checkpoints.random_llama(tmp_path_factory.mktemp("checkpoints") / "random")


@pytest.fixture(scope="session")
def _started(tmp_path_factory) -> Iterator[Clusters]:
    started: dict[Shape, Cluster] = {}

    def start(shape: Shape) -> Cluster:
        if shape not in started:
            started[shape] = Cluster(shape, tmp_path_factory.mktemp(shape.checkpoint.name))
        return started[shape]

    yield start
    for cluster in started.values():
        cluster.stop()


@pytest.fixture
def clusters(_started) -> Iterator[Clusters]:
    """A ready cluster of the given shape, shared with other tests; after the test idle again and serving, or the test fails."""
    used: list[Cluster] = []

    def use(shape: Shape) -> Cluster:
        used.append(_started(shape))
        return used[-1]

    yield use
    for cluster in used:
        cluster.assert_idle()
        cluster.assert_serving()


@pytest.fixture
def scripted_pair(clusters, scripted) -> Cluster:
    """One prefill and one decode worker on `scripted`."""
    return clusters(Shape(scripted))


@pytest.fixture
def random_pair(clusters, random) -> Cluster:
    """One prefill and one decode worker on `random`, from a nursery: tests restart them."""
    return clusters(Shape(random, forked=True))
