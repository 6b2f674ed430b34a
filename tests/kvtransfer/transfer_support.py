"""A pool of numpy memory and a wire that can be told to misbehave, for the transfer's tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from baton.wire.errors import TransferError
from baton.wire.types import Capabilities, Identity, KvAnswer, KvHello, KvLayout, ModelCard, Role, Timeouts, WorkerInfo
from kvtransfer.transports.base import Channel, Connect

IDENTITY = Identity("llama", "weights", "none", "float32", "default", "tokenizer", "template", 2048)
CARD = ModelCard("m", "{}", None, None, None, (), (), False, 8, 2048)


class NumpyStore:
    """A BlockStore of zeros. `fill` makes a request's KV different at every token, layer and head."""

    def __init__(
        self, num_blocks: int = 64, block_size: int = 16, num_layers: int = 3, num_kv_heads: int = 2, head_dim: int = 4
    ):
        self.layout = KvLayout(num_layers, block_size, num_kv_heads, head_dim, "float32")
        self.pool = np.zeros((num_blocks, num_layers, 2, block_size, num_kv_heads, head_dim), np.float32)

    def gather(
        self, block_ids: Sequence[int], token_start: int, token_end: int, layer_start: int, layer_end: int
    ) -> memoryview:
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


SHORT = replace(Timeouts(), transfer_stall_s=0.3, connect_s=1.0)
