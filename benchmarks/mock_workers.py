"""Workers without an engine, for measuring what is in front of them: `python -m benchmarks.mock_workers --pairs 1`.

Real link servers over roles that answer at once: a reservation, a first token, then one token of every request a step.
Beside them a bare HTTP server that answers every request with one fixed stream: what a client can reach without a router.
Prints one JSON object, {"workers": [address, ...], "direct": port}, and serves until its stdin closes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterable

import uvloop
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from baton.wire.link_server import LinkServer
from baton.wire.records import LeaseRecord
from baton.wire.servers import WorkerServer
from baton.wire.types import (
    Capabilities,
    Fence,
    Fenced,
    Finished,
    FinishReason,
    HandedOff,
    Identity,
    KvLayout,
    LeaseId,
    LoadReport,
    ModelCard,
    RequestSpec,
    Reserved,
    Role,
    Spans,
    StartDecode,
    StartPrefill,
    Timeouts,
    Token,
    WorkerInfo,
)

TEXT = b" token"
STEP_S = 0.01
MAX_NUM_SEQS = 256
CAPACITY_TOKENS = 1 << 20
BLOCK = 64


def card() -> ModelCard:
    """A byte-level tokenizer in which every output token is TEXT."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    symbols = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(rest)}
    vocab = {symbols[byte]: byte for byte in range(256)} | {"".join(symbols[byte] for byte in TEXT): 256}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return ModelCard("mock", tokenizer.to_str(), None, None, None, (0,), (), False, 257, 4096)


class Decode:
    """Reserves at once; writes one token of each running request a step."""

    def __init__(self) -> None:
        self._reserved: dict[LeaseId, LeaseRecord] = {}
        self._running: dict[LeaseId, tuple[RequestSpec, int]] = {}
        self._stepping: asyncio.TimerHandle | None = None

    def start(self, record: LeaseRecord, command: StartDecode) -> None:
        self._reserved[command.lease] = record
        record.answer(Reserved(command.lease, command.epoch, 0))

    def commit(self, lease: LeaseId, spec: RequestSpec) -> None:
        """Prefill handed over: the request joins the batch, and its next token is there at once."""
        if lease in self._reserved and spec.params.max_tokens > 1:
            self._running[lease] = spec, 0
            self._token(lease)
            self._step_later()

    def fence(self, record: LeaseRecord, command: Fence) -> None:
        record.restart(command.epoch)
        record.answer(Fenced(command.lease, command.epoch, 0))

    def finish(self, lease: LeaseId, choices: Iterable[int]) -> None:
        self._running.pop(lease, None)

    def end(self, lease: LeaseId) -> None:
        self._running.pop(lease, None)
        self._reserved.pop(lease, None)

    def load(self) -> LoadReport:
        return LoadReport(len(self._running), num_leases=len(self._reserved), kv_blocks_total=CAPACITY_TOKENS // BLOCK)

    def _step_later(self) -> None:
        if self._stepping is None and self._running:
            self._stepping = asyncio.get_running_loop().call_later(STEP_S, self._step)

    def _step(self) -> None:
        self._stepping = None
        for lease in tuple(self._running):
            self._token(lease)
        self._step_later()

    def _token(self, lease: LeaseId) -> None:
        spec, index = self._running[lease][0], self._running[lease][1] + 1
        record = self._reserved[lease]
        for choice in spec.choices:
            record.output(choice, index, Token(256))
        self._running[lease] = spec, index
        if index + 1 == spec.params.max_tokens:
            del self._running[lease]
            for choice in spec.choices:
                record.answer(Finished(lease, record.epoch, choice, FinishReason.LENGTH, index + 1))


class Prefill:
    """Has the first token at once, and hands over by a call."""

    def __init__(self, decodes: dict[str, Decode]) -> None:
        self._decodes = decodes

    def start(self, record: LeaseRecord, command: StartPrefill) -> None:
        for choice in command.spec.choices:
            record.output(choice, 0, Token(256), Spans(num_computed=command.spec.total_len))
        record.answer(HandedOff(command.lease, command.epoch, Spans(transfer_bytes=1, transport="mock")))
        if command.decode is not None:
            self._decodes[command.decode.address].commit(command.lease, command.spec)

    def end(self, lease: LeaseId) -> None:
        """Nothing of a lease is kept here."""


class Direct(asyncio.Protocol):
    """Answers every POST with one fixed stream of two events."""

    EVENT = b'data: {"choices":[{"index":0,"text":" token"}]}\n\n'
    ANSWER = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (2 * len(EVENT), 2 * EVENT)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its base has it
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(self.ANSWER)


def info(role: Role) -> WorkerInfo:
    identity = Identity("mock", "0", "none", "f32", "plain", "t", "c", 4096)
    capabilities = Capabilities(KvLayout(2, BLOCK, 2, 8, "float32"))
    return WorkerInfo(os.urandom(16), role, identity, capabilities, card(), CAPACITY_TOKENS, MAX_NUM_SEQS)


async def serve(num_pairs: int, token: str) -> None:
    decodes: dict[str, Decode] = {}
    running = []
    for _ in range(num_pairs):
        decode, prefill = Decode(), Prefill(decodes)
        sides = (
            LinkServer(info(Role.DECODE), None, decode, decode.load, Timeouts()),
            LinkServer(
                info(Role.PREFILL), prefill, None, lambda: LoadReport(kv_blocks_total=CAPACITY_TOKENS // BLOCK), Timeouts()
            ),
        )
        servers = [WorkerServer("127.0.0.1", 0, token) for _ in sides]
        decodes[servers[0].address] = decode
        for server, side in zip(servers, sides, strict=True):
            await server.start(side)
        running += servers
    direct = await asyncio.get_running_loop().create_server(Direct, "127.0.0.1", 0)
    print(
        json.dumps({"workers": [server.address for server in running], "direct": direct.sockets[0].getsockname()[1]}),
        flush=True,
    )
    await asyncio.to_thread(sys.stdin.read)
    for server in running:
        await server.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1)
    uvloop.run(serve(parser.parse_args().pairs, os.environ["BATON_CLUSTER_TOKEN"]))
