"""The gRPC driver against the public door."""

import pytest

from baton.cli.bench_grpc import GrpcDriver, first_model
from baton.cluster.config import RouterConfig
from baton.loadtest.counting import count
from baton.loadtest.errors import BenchError, RequestFailed
from baton.loadtest.record import Answer, Request
from router.grpc_door import serve_grpc
from tests.support.doors import FakeService


@pytest.fixture
async def address():
    async with serve_grpc(FakeService(), RouterConfig(grpc_port=0)) as port:
        yield f"127.0.0.1:{port}"


async def test_every_token_is_counted_where_it_arrives(address):
    assert await first_model(address) == "scripted"
    driver, answer = GrpcDriver(address, "scripted", ignore_eos=False), Answer([])
    await driver.generate(Request(0, "A", 1, 20), answer)
    await driver.close()
    messages, tokens, rule = count(answer)
    assert (tokens, rule, answer.finish) == (10, "token_ids", "stop")
    assert sum(message.num_tokens for message in messages) == 10
    assert (answer.prompt_tokens, answer.output_tokens) == (2, 10)


async def test_a_refusal_is_told_by_its_code(address):
    driver = GrpcDriver(address, "other", ignore_eos=False)
    with pytest.raises(RequestFailed) as caught:
        await driver.generate(Request(0, "A", 1, 4), Answer([]))
    await driver.close()
    assert caught.value.kind == "grpc model_not_found"


async def test_nobody_listens():
    with pytest.raises(BenchError, match="cannot list the models"):
        await first_model("127.0.0.1:1")
