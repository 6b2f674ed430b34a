"""From a worker to itself: both roles over one pool. No wire; blocks are hashed, copied and verified as on any other."""

from __future__ import annotations

from baton.wire import convert_kv
from baton.wire.types import KvHello, Timeouts
from kvtransfer import frames
from kvtransfer.memory import BlockMemory
from kvtransfer.transports.base import Sink
from kvtransfer.transports.fake import FakeChannel
from kvtransfer.transports.shm import deliver


class LocalConnect:
    """A Connect to `sink`, whose sender's pool is `pool`."""

    def __init__(self, sink: Sink, pool: BlockMemory) -> None:
        self._sink = sink
        self._pool = pool

    async def __call__(self, address: str, hello: KvHello, token: str, timeouts: Timeouts) -> FakeChannel:
        self._sink.open(frames.greeting(convert_kv.encode_hello(hello)))
        return FakeChannel(self._sink, "local", lambda message: deliver(self._pool, message))
