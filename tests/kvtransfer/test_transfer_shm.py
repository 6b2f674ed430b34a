"""Memory that is shared between processes: what is refused, what is noticed, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from transfer_support import FIRST, LEASE, TOKEN, Cluster, cluster, faulty

from baton.wire import convert_kv
from baton.wire.errors import TransferError
from baton.wire.types import FrameHeader, KvLayout
from kvtransfer import frames
from kvtransfer.memory import BlockMemory, SharedPool, map_pool
from kvtransfer.transports import shm
from kvtransfer.transports.messages import packed

LAYOUT = KvLayout(2, 4, 1, 2, "float32")
ROOT = Path(__file__).parents[2]


def test_a_shared_pool_can_neither_shrink_nor_grow() -> None:
    pool = SharedPool(8192)
    for size in (4096, 16384):
        with pytest.raises(PermissionError):
            os.ftruncate(pool.fileno, size)
    pool.close()


def test_another_process_cannot_write_what_it_mapped() -> None:
    pool = SharedPool(4096)
    with pytest.raises(TypeError):
        map_pool(pool.fileno, LAYOUT).read(FrameHeader(LEASE, 1, 0, 0, 4, 0, 2), 0)[0] = 1
    pool.close()


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_GROW])
def test_memory_that_could_shrink_is_refused(seals: int) -> None:
    descriptor = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 4096)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    with pytest.raises(TransferError, match="not sealed") as caught:
        map_pool(descriptor, LAYOUT)
    assert caught.value.reason == "shared_memory"
    os.close(descriptor)


def test_what_is_no_memory_is_refused() -> None:
    reading, writing = os.pipe()
    with pytest.raises(TransferError, match="cannot be mapped"):
        map_pool(reading, LAYOUT)
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("run", "block"),
    [((0, 4, 0, 2), 3), ((0, 4, 0, 3), 0), ((0, 4, 2, 2), 0), ((2, 6, 0, 2), 0), ((4, 4, 0, 2), 0), ((0, 5, 0, 1), 0)],
)
def test_a_run_outside_the_memory_is_refused(run: tuple[int, int, int, int], block: int) -> None:
    memory = BlockMemory(memoryview(bytes(3 * LAYOUT.block_bytes)), LAYOUT)
    memory.read(FrameHeader(LEASE, 1, 0, 8, 12, 0, 2), 2)
    with pytest.raises(TransferError) as caught:
        memory.read(FrameHeader(LEASE, 1, 0, *run), block)
    assert caught.value.reason == "malformed"


@pytest.mark.parametrize("decode_block", [16, 64])
async def test_kv_that_changes_after_its_digest_was_taken_is_refused(decode_block: int) -> None:
    running: list[Cluster] = []

    def scribble(message: bytes) -> list[bytes]:
        running[0].prefill.pool[1, 1, 0, 3] += 1
        return [message]

    async with cluster("shm", decode_block=decode_block, wrap=lambda connect: faulty(connect, scribble)) as both:
        running.append(both)
        with pytest.raises(TransferError) as caught:
            await both.begin(40).commit(0, FIRST)
        assert caught.value.reason == "digest"
        assert both.commits == []
        await both.receiver.close(LEASE)


async def test_a_block_that_the_sender_does_not_have_is_refused() -> None:
    def elsewhere(message: bytes) -> list[bytes]:
        found = frames.decode(message)
        if not isinstance(found, tuple):
            return [message]
        return [frames.encode_run(frames.Reference(one.header, 10_000) for one in found)]

    async with cluster("shm", wrap=lambda connect: faulty(connect, elsewhere)) as both:
        with pytest.raises(TransferError) as caught:
            await both.begin(16).commit(0, FIRST)
        assert caught.value.reason == "digest"
        assert not both.decode.pool.any()
        await both.receiver.close(LEASE)


async def test_a_sender_without_memory_is_told_so() -> None:
    async with cluster("shm") as both:
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX) as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, "\0" + both.target.address.partition("/")[2])
            hello = packed(TOKEN.encode()) + packed(convert_kv.encode_hello(both.hello))
            await loop.sock_sendall(sock, hello)
            refusal = convert_kv.decode_refusal((await loop.sock_recv(sock, 4096))[4:])
            assert isinstance(refusal, TransferError)
            assert refusal.reason == "shared_memory"
            assert await loop.sock_recv(sock, 1) == b""


async def test_another_users_process_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster("shm") as both:
        monkeypatch.setattr(shm.os, "getuid", lambda: 4711)
        with pytest.raises(TransferError, match="as user") as caught:
            await both.begin(16).commit(0, FIRST)
        assert caught.value.reason == "unauthenticated"
        await both.receiver.close(LEASE)


async def test_another_host_is_not_reachable() -> None:
    async with cluster("shm") as both:
        assert shm.reachable(both.target.address)
        assert not shm.reachable("other-" + both.target.address)


HOLD = """
import sys, time
from kvtransfer.memory import SharedPool
pool = SharedPool(1 << 20)
print(pool.fileno, flush=True)
time.sleep(600)
"""


def test_a_killed_process_leaves_nothing_behind() -> None:
    before = set(Path("/dev/shm").iterdir()) if Path("/dev/shm").exists() else set()
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, cwd=ROOT) as child:
        assert child.stdout is not None
        descriptor = int(child.stdout.readline())
        mapped = os.open(f"/proc/{child.pid}/fd/{descriptor}", os.O_RDONLY)
        child.send_signal(signal.SIGKILL)
    made = {path for path in set(Path("/dev/shm").iterdir()) - before if "baton" in path.name} if before else set()
    assert not made
    assert len(map_pool(mapped, LAYOUT).read(FrameHeader(LEASE, 1, 0, 0, 4, 0, 2), 0)) == LAYOUT.block_bytes
    os.close(mapped)
