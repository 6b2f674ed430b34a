"""A model and a pair of workers over it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from node_support import Node, node

from baton.engine.weights import LoadedModel, load_model
from baton.wire.types import Role
from tests.support.checkpoints import random_llama


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(random_llama(tmp_path_factory.mktemp("nodes") / "random"))


@pytest.fixture
async def pair(model: LoadedModel) -> AsyncIterator[tuple[Node, Node]]:
    """A prefill and a decode worker; both are back at their baseline afterwards."""
    async with node(model, Role.PREFILL) as prefill, node(model, Role.DECODE) as decode:
        yield prefill, decode
