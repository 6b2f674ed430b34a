"""Which transport a pair takes, and which one after it failed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from transfer_support import FIRST, LEASE, TOKEN, NumpyStore, cluster, faulty, hello_of

from baton.wire.errors import PairingRefused, TransferError
from baton.wire.types import DecodeTarget, Fenced, KvAnswer, KvEndpoint, KvHello, Timeouts
from kvtransfer.dialer import FAILED_S, Dialer
from kvtransfer.sender import Sender
from kvtransfer.transports import tcp as kv_tcp
from kvtransfer.transports.base import Connect
from kvtransfer.transports.shm import ShmConnect
from kvtransfer.transports.tcp import TcpServer

TARGET = DecodeTarget("host:1", b"D" * 16)
HELLO = hello_of(NumpyStore(num_blocks=1))
ALL = (KvEndpoint("shm", "here/name"), KvEndpoint("tcp", ":7"), KvEndpoint("grpc"))


class Dialled:
    """A channel that only says what was dialled."""

    def __init__(self, transport: str, address: str) -> None:
        self.transport = transport
        self.address = address

    async def write(self, message: bytes) -> None: ...

    async def read(self) -> KvAnswer:
        raise TransferError("channel_lost")

    async def close(self) -> None: ...


class World:
    """A clock, what the other end offers, and what is refused when it is dialled."""

    def __init__(self, ways: Sequence[str] = ("shm", "tcp", "grpc"), offers: Sequence[KvEndpoint] = ALL) -> None:
        self.now = 1000.0
        self.refused: set[str] = set()
        self.host = "here"
        self._offers = tuple(offers)
        self.dialer = Dialer(
            {transport: self._way(transport) for transport in ways}, self._ask, usable=self._usable, clock=lambda: self.now
        )

    async def dial(self) -> Dialled:
        channel = await self.dialer.connect(TARGET.address, HELLO, "token", Timeouts())
        assert isinstance(channel, Dialled)
        return channel

    async def transport(self) -> str:
        return (await self.dial()).transport

    async def _ask(self, address: str, hello: KvHello, token: str, timeouts: Timeouts) -> tuple[KvEndpoint, ...]:
        assert address == TARGET.address
        return self._offers

    def _usable(self, endpoint: KvEndpoint) -> bool:
        return endpoint.transport != "shm" or endpoint.address.startswith(self.host)

    def _way(self, transport: str) -> Connect:
        async def connect(address: str, hello: KvHello, token: str, timeouts: Timeouts) -> Dialled:
            if transport in self.refused:
                raise TransferError("connect", "nobody there")
            return Dialled(transport, address)

        return connect


async def test_the_first_that_both_offer_is_taken() -> None:
    assert await World().transport() == "shm"
    assert await World(ways=["tcp", "grpc"]).transport() == "tcp"
    assert await World(offers=ALL[1:]).transport() == "tcp"
    assert await World(ways=["grpc"]).transport() == "grpc"


async def test_the_senders_order_counts() -> None:
    assert await World(ways=["grpc", "shm"]).transport() == "grpc"


async def test_memory_of_another_host_is_not_tried() -> None:
    world = World()
    world.host = "elsewhere"
    assert await world.transport() == "tcp"


async def test_nothing_in_common_is_refused_with_both_sides() -> None:
    with pytest.raises(PairingRefused, match=r"transports differ: the sender has \['shm'\], the receiver \['tcp', 'grpc'\]"):
        await World(ways=["shm"], offers=ALL[1:]).dial()


async def test_an_offer_without_a_host_means_the_one_that_was_asked() -> None:
    assert (await World(ways=["shm"]).dial()).address == "here/name"
    assert (await World(ways=["tcp"]).dial()).address == "host:7"
    assert (await World(ways=["grpc"]).dial()).address == "host:1"


async def test_after_a_failed_attempt_the_next_one_takes_the_next_transport() -> None:
    world = World()
    order = []
    for _ in range(5):
        order.append(await world.transport())
        world.now += 1
        world.dialer.failed(TARGET, order[-1])
    assert order == ["shm", "tcp", "grpc", "shm", "tcp"]


async def test_a_dial_that_fails_fails_its_attempt_and_counts() -> None:
    world = World()
    world.refused = {"shm"}
    with pytest.raises(TransferError, match="nobody there"):
        await world.dial()
    assert await world.transport() == "tcp"


async def test_a_failure_is_forgotten_after_a_while_and_concerns_one_life_of_one_receiver() -> None:
    world = World()
    world.dialer.failed(DecodeTarget(TARGET.address, b"E" * 16), "shm")
    assert await world.transport() == "shm"
    world.dialer.failed(TARGET, "shm")
    assert await world.transport() == "tcp"
    world.now += FAILED_S
    assert await world.transport() == "shm"


async def test_an_attempt_that_shared_memory_failed_is_followed_by_one_over_tcp() -> None:
    """The real transports between one pair: damage on the first, the next one whole."""

    def damage(message: bytes) -> list[bytes]:
        return [message[:40] + bytes([message[40] ^ 1]) + message[41:]]

    async with cluster("shm") as both, TcpServer(both.receiver, TOKEN, "127.0.0.1") as tcp:
        offers = (KvEndpoint("shm", both.target.address), KvEndpoint("tcp", f"127.0.0.1{tcp.endpoint.address}"))

        async def ask(address: str, hello: KvHello, token: str, timeouts: Timeouts) -> tuple[KvEndpoint, ...]:
            return offers

        ways: dict[str, Connect] = {"shm": faulty(ShmConnect(both.prefill.shared), damage), "tcp": kv_tcp.connect}
        dialer = Dialer(ways, ask)
        sender = Sender(both.prefill, lambda target: both.hello, TOKEN, Timeouts(), dialer.connect, dialer.failed)
        both.sender, before = sender, both.sender
        first = both.begin(40)
        with pytest.raises(TransferError):
            await first.commit(0, FIRST)
        assert await both.receiver.fence(LEASE, 2, 40, 0) == Fenced(LEASE, 2, 0)
        second = both.begin(40, epoch=2, expect=False)
        assert (await second.commit(0, FIRST)).ok
        assert (first.facts.transport, second.facts.transport) == ("shm", "tcp")
        assert both.arrived(40)
        await both.receiver.close(LEASE)
        await sender.stop()
        both.sender = before
