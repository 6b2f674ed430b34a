"""GB/s of a handoff over gRPC beside a bare gRPC stream of the same bytes, two processes on this machine.

python benchmarks/transfer.py [MiB]
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from multiprocessing.connection import Connection

import grpc
import grpc.aio

from baton.wire.channel import channel_options, server_options
from baton.wire.types import (
    Capabilities,
    DecodeTarget,
    FirstToken,
    Identity,
    KvHello,
    KvLayout,
    ModelCard,
    Role,
    Timeouts,
    Token,
    WorkerInfo,
)
from kvtransfer.receiver import Receiver
from kvtransfer.sender import Sender
from kvtransfer.transports.grpc import connect, kv_handler

LAYOUT = KvLayout(num_layers=30, block_size=64, num_kv_heads=3, head_dim=64, dtype="float32")  # SmolLM2-135M
IDENTITY = Identity("llama", "w", "none", "float32", "default", "t", "c", 8192)
INFO = WorkerInfo(
    b"D" * 16, Role.DECODE, IDENTITY, Capabilities(LAYOUT), ModelCard("m", "", None, None, None, (), (), False, 8, 8), 0, 0
)
FRAME_BYTES = 960 << 10
LEASE = b"L" * 16


class FlatStore:
    """A BlockStore over one bytearray: whole blocks only, so that every layer range is one run of bytes."""

    def __init__(self, num_blocks: int) -> None:
        self.layout = LAYOUT
        self._bytes = memoryview(bytearray(os.urandom(1 << 20) * (num_blocks * LAYOUT.block_bytes // (1 << 20) + 1)))

    def _run(self, block_ids: Sequence[int], token_start: int, layer_start: int, layer_end: int) -> slice:
        layer_bytes = LAYOUT.block_bytes // LAYOUT.num_layers
        base = block_ids[token_start // LAYOUT.block_size] * LAYOUT.block_bytes
        return slice(base + layer_start * layer_bytes, base + layer_end * layer_bytes)

    def gather(
        self, block_ids: Sequence[int], token_start: int, token_end: int, layer_start: int, layer_end: int
    ) -> memoryview:
        return self._bytes[self._run(block_ids, token_start, layer_start, layer_end)]

    def scatter(
        self, block_ids: Sequence[int], token_start: int, token_end: int, layer_start: int, layer_end: int, payload: memoryview
    ) -> None:
        self._bytes[self._run(block_ids, token_start, layer_start, layer_end)] = payload


async def drain(messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
    """The bare stream's server: takes every message, then answers once."""
    async for _ in messages:
        pass
    yield b"done"


async def serve(num_blocks: int, pipe: Connection) -> None:
    receiver = Receiver(FlatStore(num_blocks), INFO)
    server = grpc.aio.server(options=server_options())
    bare = grpc.method_handlers_generic_handler("bare", {"Push": grpc.stream_stream_rpc_method_handler(drain)})
    server.add_generic_rpc_handlers((kv_handler(receiver, "token"), bare))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    for n in range(ROUNDS):
        receiver.expect(bytes([n]) * 16, 1, range(num_blocks), 0, num_blocks * LAYOUT.block_size, 0, lambda commit: None)
    pipe.send(port)
    await asyncio.to_thread(pipe.recv)
    for n in range(ROUNDS):
        await receiver.close(bytes([n]) * 16)
    await server.stop(None)
    receiver.stop()


ROUNDS = 5


async def handoff(address: str, num_blocks: int, lease: bytes, sender: Sender) -> None:
    outgoing = sender.begin(
        lease, 1, DecodeTarget(address, INFO.incarnation), range(num_blocks), 0, num_blocks * LAYOUT.block_size
    )
    await outgoing.commit(0, (FirstToken(0, Token(1)),))


async def bare_stream(address: str, num_bytes: int) -> None:
    message = os.urandom(FRAME_BYTES)
    async with grpc.aio.insecure_channel(address, options=channel_options()) as channel:
        call = channel.stream_stream("/bare/Push", None, None)(None)
        for _ in range(num_bytes // FRAME_BYTES):
            await call.write(message)
        await call.done_writing()
        await call.read()


async def best(run: Callable[[int], Awaitable[None]]) -> float:
    """Shortest of the rounds, in seconds."""
    spent = []
    for n in range(ROUNDS):
        started = time.perf_counter()
        await run(n)
        spent.append(time.perf_counter() - started)
    return min(spent)


async def measure(address: str, num_blocks: int) -> None:
    num_bytes = num_blocks * LAYOUT.block_bytes
    hello = KvHello(b"P" * 16, INFO.incarnation, IDENTITY, INFO.capabilities)
    sender = Sender(FlatStore(num_blocks), lambda target: hello, "token", Timeouts(), connect)
    ours = await best(lambda n: handoff(address, num_blocks, bytes([n]) * 16, sender))
    await sender.stop()
    bare = await best(lambda n: bare_stream(address, num_bytes))
    rates = f"handoff {num_bytes / ours / 1e9:.2f} GB/s, bare gRPC {num_bytes / bare / 1e9:.2f} GB/s"
    print(f"{num_bytes >> 20} MiB, best of {ROUNDS}: {rates}")


def main() -> None:
    num_blocks = max(1, (int(sys.argv[1]) if len(sys.argv) > 1 else 256) * (1 << 20) // LAYOUT.block_bytes)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    child = multiprocessing.get_context("spawn").Process(target=run_server, args=(num_blocks, theirs))
    child.start()
    try:
        asyncio.run(measure(f"127.0.0.1:{ours.recv()}", num_blocks))
    finally:
        ours.send("stop")
        child.join(10)


def run_server(num_blocks: int, pipe: Connection) -> None:
    asyncio.run(serve(num_blocks, pipe))


if __name__ == "__main__":
    main()
