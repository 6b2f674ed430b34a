"""A pool of numpy memory and a wire that can be told to misbehave, for the transfer's tests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import grpc.aio
import numpy as np

from baton.wire.channel import server_options
from baton.wire.errors import TransferError
from baton.wire.types import (
    Capabilities,
    Commit,
    DecodeTarget,
    FirstToken,
    Identity,
    KvAnswer,
    KvHello,
    KvLayout,
    ModelCard,
    Role,
    Timeouts,
    Token,
    WorkerInfo,
)
from kvtransfer.memory import SharedPool
from kvtransfer.outgoing import Outgoing
from kvtransfer.receiver import Receiver
from kvtransfer.sender import Sender
from kvtransfer.transports import grpc as kv_grpc
from kvtransfer.transports import tcp as kv_tcp
from kvtransfer.transports.base import Channel, Connect
from kvtransfer.transports.fake import FakeNetwork
from kvtransfer.transports.shm import ShmConnect, ShmServer
from kvtransfer.transports.tcp import TcpServer

LEASE = b"L" * 16
FIRST = (FirstToken(0, Token(7)),)
TOKEN = "secret"

IDENTITY = Identity("llama", "weights", "none", "float32", "default", "tokenizer", "template", 2048)
CARD = ModelCard("m", "{}", None, None, None, (), (), False, 8, 2048)


class NumpyStore:
    """A BlockStore of zeros. `fill` makes a request's KV different at every token, layer and head."""

    def __init__(
        self, num_blocks: int = 64, block_size: int = 16, num_layers: int = 3, num_kv_heads: int = 2, head_dim: int = 4
    ):
        self.layout = KvLayout(num_layers, block_size, num_kv_heads, head_dim, "float32")
        self.num_read = 0  # tokens
        self.runs: list[tuple[int, int]] = []  # what scatter has written
        self._awaited: list[tuple[int, Future[None]]] = []
        self.shared = SharedPool(num_blocks * self.layout.block_bytes)
        shape = (num_blocks, num_layers, 2, block_size, num_kv_heads, head_dim)
        self.pool = np.frombuffer(self.shared.memory, np.float32).reshape(shape)

    def gather(
        self, block_ids: Sequence[int], token_start: int, token_end: int, layer_start: int, layer_end: int
    ) -> memoryview:
        self.num_read += token_end - token_start
        block, first = divmod(token_start, self.layout.block_size)
        run = self.pool[block_ids[block], layer_start:layer_end, :, first : first + token_end - token_start]
        return memoryview(np.ascontiguousarray(run)).cast("B")

    def scatter(
        self, block_ids: Sequence[int], token_start: int, token_end: int, layer_start: int, layer_end: int, payload: memoryview
    ) -> None:
        shape = (layer_end - layer_start, 2, token_end - token_start, *self.pool.shape[4:])
        values = np.frombuffer(payload, np.float32).reshape(shape)
        for token in range(token_start, token_end):
            block, offset = divmod(token, self.layout.block_size)
            self.pool[block_ids[block], layer_start:layer_end, :, offset] = values[:, :, token - token_start]

        self.runs.append((token_start, token_end))
        for count, reached in self._awaited:
            if len(self.runs) == count:
                reached.set_result(None)

    async def written(self, count: int) -> None:
        """Waits for the `count`-th scatter, which has not happened yet."""
        reached: Future[None] = Future()
        self._awaited.append((count, reached))
        async with asyncio.timeout(30):
            await asyncio.wrap_future(reached)

    def read(self, block_ids: Sequence[int], start: int, end: int) -> np.ndarray:
        """Positions [start, end) as [layers, 2, tokens, heads, dim]."""
        whole = np.concatenate([self.pool[block] for block in block_ids], axis=2)
        return whole[:, :, start:end]

    def fill(self, block_ids: Sequence[int], seed: int) -> None:
        self.pool[list(block_ids)] = np.random.default_rng(seed).standard_normal((len(block_ids), *self.pool.shape[1:]))


def info_of(store: NumpyStore, incarnation: bytes = b"D" * 16, identity: Identity = IDENTITY) -> WorkerInfo:
    return WorkerInfo(incarnation, Role.BOTH, identity, Capabilities(store.layout), CARD, 1024, 8)


def hello_of(
    store: NumpyStore, sender: bytes = b"P" * 16, receiver: bytes = b"D" * 16, identity: Identity = IDENTITY
) -> KvHello:
    return KvHello(sender, receiver, identity, Capabilities(store.layout))


Deliver = Callable[[bytes], Sequence[bytes]]
"""Turns the next message into what the wire delivers: itself, nothing, two, other bytes. May raise TransferError to cut."""


class FaultyChannel:
    """A Channel over another one, whose messages pass through `deliver`. `stalled` makes writes hang."""

    def __init__(self, inner: Channel, deliver: Deliver, stalled: asyncio.Event | None = None) -> None:
        self._inner = inner
        self._deliver = deliver
        self._stalled = stalled

    @property
    def transport(self) -> str:
        return self._inner.transport

    async def write(self, message: bytes) -> None:
        if self._stalled is not None and self._stalled.is_set():
            await asyncio.Event().wait()
        try:
            messages = self._deliver(message)
        except TransferError:
            await self._inner.close()
            raise
        for each in messages:
            await self._inner.write(each)

    async def read(self) -> KvAnswer:
        return await self._inner.read()

    async def close(self) -> None:
        await self._inner.close()


def faulty(connect: Connect, deliver: Deliver, stalled: asyncio.Event | None = None) -> Connect:
    """A Connect whose channels misbehave."""

    async def dial(address: str, hello: KvHello, token: str, timeouts: Timeouts) -> Channel:
        return FaultyChannel(await connect(address, hello, token, timeouts), deliver, stalled)

    return dial


SHORT = replace(Timeouts(), transfer_stall_s=0.5, connect_s=5.0)


@dataclass
class Cluster:
    """A prefill pool with a sender and a decode pool with a receiver that listens at `target`."""

    prefill: NumpyStore
    decode: NumpyStore
    sender: Sender
    receiver: Receiver
    target: DecodeTarget
    kind: str
    commits: list[Commit] = field(default_factory=list)

    def begin(
        self, total_len: int, num_cached: int = 0, *, epoch: int = 1, lease: bytes = LEASE, expect: bool = True
    ) -> Outgoing:
        """Prefill's blocks are 1, 2, ... and hold KV of positions [0, total_len); decode's are the odd ones."""
        if expect:
            self.receiver.expect(lease, epoch, self.decode_ids(total_len), num_cached, total_len, 0, self.commits.append)
        ids = self.prefill_ids(total_len)
        self.prefill.fill(ids, seed=total_len)
        return self.sender.begin(lease, epoch, self.target, ids, num_cached, total_len)

    @property
    def hello(self) -> KvHello:
        return hello_of(self.prefill, receiver=self.target.incarnation)

    def prefill_ids(self, total_len: int) -> tuple[int, ...]:
        return tuple(range(1, 2 + (total_len - 1) // self.prefill.layout.block_size))

    def decode_ids(self, total_len: int) -> tuple[int, ...]:
        return tuple(range(1, 2 * (2 + total_len // self.decode.layout.block_size), 2))

    def arrived(self, total_len: int, start: int = 0) -> bool:
        sent = self.prefill.read(self.prefill_ids(total_len), start, total_len)
        return np.array_equal(sent, self.decode.read(self.decode_ids(total_len), start, total_len))


@asynccontextmanager
async def grpc_server(receiver: Receiver, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers((kv_grpc.kv_handler(receiver, TOKEN),))
    port = server.add_insecure_port(address)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


WIRES = ("shm", "tcp", "grpc")
KINDS = (*WIRES, "fake")


@asynccontextmanager
async def listening(kind: str, receiver: Receiver, prefill: NumpyStore) -> AsyncIterator[tuple[str, Connect]]:
    """`receiver` reachable over one transport: its address, and the sender's way there."""
    if kind == "grpc":
        async with grpc_server(receiver) as address:
            yield address, kv_grpc.connect
    elif kind == "tcp":
        async with TcpServer(receiver, TOKEN, "127.0.0.1") as tcp:
            yield f"127.0.0.1{tcp.endpoint.address}", kv_tcp.connect
    elif kind == "shm":
        async with ShmServer(receiver, TOKEN, f"baton-test-{os.urandom(8).hex()}") as shm:
            yield shm.endpoint.address, ShmConnect(prefill.shared)
    else:
        network = FakeNetwork(TOKEN)
        network.listen("decode", receiver)
        yield "decode", network.connect


@asynccontextmanager
async def cluster(
    kind: str = "grpc",
    *,
    prefill_block: int = 16,
    decode_block: int = 16,
    wrap: Callable[[Connect], Connect] = lambda connect: connect,
    timeouts: Timeouts = SHORT,
    identity: Identity = IDENTITY,
) -> AsyncIterator[Cluster]:
    prefill, decode = NumpyStore(block_size=prefill_block), NumpyStore(block_size=decode_block)
    receiver = Receiver(decode, info_of(decode))

    def hello(target: DecodeTarget) -> KvHello:
        return hello_of(prefill, receiver=target.incarnation, identity=identity)

    async with listening(kind, receiver, prefill) as (address, connect):
        sender = Sender(prefill, hello, TOKEN, timeouts, wrap(connect))
        try:
            yield Cluster(prefill, decode, sender, receiver, DecodeTarget(address, b"D" * 16), kind)
        finally:
            await sender.stop()
            receiver.stop()
            prefill.shared.close()
            decode.shared.close()
    assert leftover_tasks() == []


def leftover_tasks() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("kv-")]
