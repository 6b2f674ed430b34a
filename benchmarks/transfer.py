"""GB/s of a handoff over each transport beside the bare thing it is made of, between two processes on this machine.

python -m benchmarks.transfer [--mib 47] [--rounds 7]

shm beside a memcpy loop, tcp beside a raw socket loop, grpc beside a raw gRPC stream: the same bytes between the same pools, in
turns, medians. A handoff hashes on both sides, commits and is answered. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import statistics
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

import grpc
import grpc.aio
import numpy as np

from baton.engine.kv_pool import KvPool
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
from kvtransfer.memory import SharedPool
from kvtransfer.receiver import Receiver
from kvtransfer.sender import Sender
from kvtransfer.transports import grpc as kv_grpc
from kvtransfer.transports import tcp as kv_tcp
from kvtransfer.transports.base import Connect
from kvtransfer.transports.shm import ShmConnect, ShmServer
from kvtransfer.transports.tcp import TcpServer

LAYOUT = KvLayout(num_layers=30, block_size=64, num_kv_heads=3, head_dim=64, dtype="bfloat16")  # SmolLM2-135M
IDENTITY = Identity("llama", "w", "none", "float32", "default", "t", "c", 8192)
CARD = ModelCard("m", "", None, None, None, (), (), False, 8, 8)
INFO = WorkerInfo(b"D" * 16, Role.DECODE, IDENTITY, Capabilities(LAYOUT), CARD, 0, 0)
HELLO = KvHello(b"P" * 16, INFO.incarnation, IDENTITY, INFO.capabilities)
PIECE = 512 << 10
GRPC_PIECE = 960 << 10
TIMEOUTS = Timeouts(transfer_stall_s=30.0, connect_s=10.0)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the other process takes KV, and where it takes bare bytes."""

    shm: str
    tcp: str
    grpc: str
    socket: tuple[str, int]


# --- the receiving process -------------------------------------------------------------------------------------------


def receive(num_blocks: int, pipe: Connection) -> None:
    asyncio.run(_receive(num_blocks, pipe))


async def _receive(num_blocks: int, pipe: Connection) -> None:
    pool = KvPool(LAYOUT, num_blocks)
    pool.tensor.fill_(0)
    receiver = Receiver(pool, INFO)
    async with AsyncExitStack() as stack:
        shm = await stack.enter_async_context(ShmServer(receiver, "token", f"baton-bench-{os.getpid()}"))
        tcp = await stack.enter_async_context(TcpServer(receiver, "token", "127.0.0.1"))
        server = grpc.aio.server(options=server_options())
        bare = grpc.method_handlers_generic_handler("bare", {"Push": grpc.stream_stream_rpc_method_handler(_drain)})
        server.add_generic_rpc_handlers((kv_grpc.kv_handler(receiver, "token"), bare))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        with _socket_sink(num_blocks * LAYOUT.block_bytes) as address:
            pipe.send(Addresses(shm.endpoint.address, f"127.0.0.1{tcp.endpoint.address}", f"127.0.0.1:{port}", address))
            while (lease := await asyncio.to_thread(pipe.recv)) is not None:
                await _expect(receiver, lease, num_blocks, pipe)
        await server.stop(None)
    receiver.stop()


async def _expect(receiver: Receiver, lease: bytes, num_blocks: int, pipe: Connection) -> None:
    """Reserves for one handoff and waits until it is committed."""
    done = asyncio.Event()
    receiver.expect(lease, 1, range(num_blocks), 0, num_blocks * LAYOUT.block_size, 0, lambda commit: done.set())
    pipe.send("expected")
    await done.wait()
    await receiver.close(lease)


async def _drain(messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
    """The bare stream's end: takes every message, then answers once."""
    async for _ in messages:
        pass
    yield b"done"


@contextmanager
def _socket_sink(num_bytes: int) -> Iterator[tuple[str, int]]:
    """A thread that receives `num_bytes` into the same place again and again, and answers each time with a byte."""
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=_sink, args=(listener, num_bytes), daemon=True)
    thread.start()
    yield listener.getsockname()
    listener.close()


def _sink(listener: socket.socket, num_bytes: int) -> None:
    memory = memoryview(bytearray(num_bytes))
    connection, _ = listener.accept()
    with connection:
        while True:
            filled = 0
            while filled < num_bytes:
                some = connection.recv_into(memory[filled : filled + PIECE])
                if not some:
                    return
                filled += some
            connection.sendall(b"!")


# --- the sending process ---------------------------------------------------------------------------------------------


async def measure(addresses: Addresses, num_blocks: int, rounds: int, pipe: Connection) -> dict[str, float]:
    """Median GB/s of each, taken in turns."""
    shared = SharedPool(num_blocks * LAYOUT.block_bytes)
    np.frombuffer(shared.memory, np.uint8)[:] = np.random.default_rng(0).integers(0, 256, len(shared.memory), np.uint8)
    store = KvPool(LAYOUT, num_blocks, shared.memory)
    num_bytes = num_blocks * LAYOUT.block_bytes
    ways: dict[str, tuple[str, Connect]] = {
        "shm": (addresses.shm, ShmConnect(shared)),
        "tcp": (addresses.tcp, kv_tcp.connect),
        "grpc": (addresses.grpc, kv_grpc.connect),
    }
    senders = {name: Sender(store, lambda target: HELLO, "token", TIMEOUTS, way) for name, (_, way) in ways.items()}
    source, copy = np.frombuffer(shared.memory, np.uint8), np.zeros(num_bytes, np.uint8)
    bare_socket = socket.create_connection(addresses.socket)

    spent: dict[str, list[float]] = {}

    async def timed(name: str, run: Callable[[], Awaitable[None]]) -> None:
        started = time.perf_counter()
        await run()
        spent.setdefault(name, []).append(time.perf_counter() - started)

    async def timed_handoff(name: str) -> None:
        lease = os.urandom(16)
        pipe.send(lease)
        pipe.recv()
        target = DecodeTarget(ways[name][0], INFO.incarnation)

        async def run() -> None:
            outgoing = senders[name].begin(lease, 1, target, range(num_blocks), 0, num_blocks * LAYOUT.block_size)
            await outgoing.commit(0, (FirstToken(0, Token(1)),))

        await timed(name, run)

    for _ in range(rounds + 1):  # the first one warms up
        await timed("memcpy", lambda: _memcpy(copy, source))
        await timed_handoff("shm")
        await timed("socket", lambda: asyncio.to_thread(_socket_loop, bare_socket, memoryview(shared.memory)))
        await timed_handoff("tcp")
        await timed("raw_grpc", lambda: _bare_stream(addresses.grpc, memoryview(shared.memory)))
        await timed_handoff("grpc")
    for sender in senders.values():
        await sender.stop()
    bare_socket.close()
    return {name: num_bytes / statistics.median(times[1:]) / 1e9 for name, times in spent.items()}


async def _memcpy(copy: np.ndarray, source: np.ndarray) -> None:
    for start in range(0, len(copy), PIECE):
        copy[start : start + PIECE] = source[start : start + PIECE]


def _socket_loop(connection: socket.socket, memory: memoryview) -> None:
    for start in range(0, len(memory), PIECE):
        connection.sendall(memory[start : start + PIECE])
    connection.recv(1)


async def _bare_stream(address: str, memory: memoryview) -> None:
    async with grpc.aio.insecure_channel(address, options=channel_options()) as channel:
        call = channel.stream_stream("/bare/Push", None, None)(None)
        for start in range(0, len(memory), GRPC_PIECE):
            await call.write(bytes(memory[start : start + GRPC_PIECE]))
        await call.done_writing()
        await call.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=45, help="size of the prompt's KV: 45 is 2,048 tokens of the bundled model")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    num_blocks = max(1, (args.mib << 20) // LAYOUT.block_bytes)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=receive, args=(num_blocks, theirs))
    child.start()
    try:
        rates = asyncio.run(measure(ours.recv(), num_blocks, args.rounds, ours))
    finally:
        ours.send(None)
        child.join(10)
    for name, rate in rates.items():
        print(f"{name:>9} {rate:6.2f} GB/s")
    ratios = {
        "shm_vs_memcpy": rates["shm"] / rates["memcpy"],
        "tcp_vs_socket": rates["tcp"] / rates["socket"],
        "grpc_vs_raw": rates["grpc"] / rates["raw_grpc"],
    }
    print(json.dumps({key: round(value, 3) for key, value in (ratios | {f"{k}_gb_s": v for k, v in rates.items()}).items()}))


if __name__ == "__main__":
    main()
