"""The bytes of a frame: a protobuf `KvUp{frame = 2: KvFrame{header = 1, payload = 2}}`, written and read without the library.

    length(2)  length(1) header  length(2) payload
    └ KvUp     └ KvFrame

The library would copy the payload twice on each side. Here it is copied once, into the message, and read in place. Where the
receiver can read the sender's pool the message names a block instead: length(1) header  number(3) block,
several of them in a `KvUp{run = 4: KvRun{frames = 1}}`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from xxhash import xxh3_64

from baton.wire import convert_kv
from baton.wire.errors import TransferError
from baton.wire.types import Commit, FrameHeader, KvHello, KvLayout
from kvtransfer.fields import as_bytes, as_number, fields, fixed64, length, malformed, number, varint

MAX_PAYLOAD = 1 << 20
"""Bytes of a frame's payload at most, unless one token of one layer is larger: gRPC streams best at 360 KiB to 1 MiB."""

_LEASE_BYTES = 16
_NUMBERS = ("epoch", "sequence", "token_start", "token_end", "layer_start", "layer_end")
_SIGNED = struct.Struct("<16s6I")  # lease, then _NUMBERS
_DIGEST = struct.Struct("<Q")

_HELLO, _FRAME, _COMMIT, _RUN = 1, 2, 3, 4  # of KvUp
_FRAMES = 1  # of KvRun
_HEADER, _PAYLOAD, _BLOCK = 1, 2, 3  # of KvFrame
_LEASE, _FIRST_NUMBER, _DIGEST_FIELD = 1, 2, 8  # of KvFrameHeader
_CHECK, _CHECK_BYTES = 10, 9  # of KvCommit: tag and 8 bytes


@dataclass(frozen=True, slots=True)
class Frame:
    """A header and its payload: a view of the pool before it is encoded, of the message after it was decoded."""

    header: FrameHeader
    payload: memoryview


@dataclass(frozen=True, slots=True)
class Reference:
    """A frame whose payload stays in `block` of the sender's pool."""

    header: FrameHeader
    block: int


@dataclass(frozen=True, slots=True)
class SharedFrame:
    """A frame whose payload the sender could still change: copy what `read` returns, then verify the copy.

    `read` runs on the KV thread; it raises TransferError for a run that the sender's pool does not have.
    """

    header: FrameHeader
    read: Callable[[], memoryview]


def hasher(header: FrameHeader) -> xxh3_64:
    """The digest's state before the payload: `update` it with that, in one piece or several."""
    return xxh3_64(_SIGNED.pack(header.lease, *(getattr(header, name) for name in _NUMBERS)))


def digest(header: FrameHeader, payload: memoryview) -> int:
    """xxh3-64 over the header's other fields, packed as `_SIGNED` says, and the payload."""
    state = hasher(header)
    state.update(payload)
    return state.intdigest()


def digest_of(digests: Iterable[int]) -> int:
    """The commit's digest: xxh3-64 over the frames' digests, 8 bytes each, little-endian, in sequence order."""
    return xxh3_64(b"".join(map(_DIGEST.pack, digests))).intdigest()


def seal(header: FrameHeader, payload: memoryview) -> Frame:
    """The frame with its digest filled in."""
    return Frame(replace(header, digest=digest(header, payload)), payload)


def verify(frame: Frame) -> None:
    """Raises TransferError("digest") unless the frame is what its sender sealed."""
    check(frame.header, digest(frame.header, frame.payload))


def check(header: FrameHeader, found: int) -> None:
    """Raises TransferError("digest") unless `found` is the digest that `header` names."""
    if found != header.digest:
        raise TransferError("digest", f"frame {header.sequence} does not have the digest that it names")


def payload_bytes(layout: KvLayout, header: FrameHeader) -> int:
    """Size of the payload that `header` names."""
    return (header.token_end - header.token_start) * (header.layer_end - header.layer_start) * 2 * layout.row_bytes


Run = tuple[int, int, int, int]
"""(token_start, token_end, layer_start, layer_end)."""


def plan(layout: KvLayout, start: int, end: int, max_payload: int = MAX_PAYLOAD) -> Iterator[Run]:
    """Tokens [start, end) as runs for frames, each out of one block of `layout` and of at most about `max_payload` bytes."""
    for block_start in range(start - start % layout.block_size, end, layout.block_size):
        yield from _cut(layout, max(block_start, start), min(block_start + layout.block_size, end), max_payload)


def _cut(layout: KvLayout, start: int, end: int, max_payload: int) -> Iterator[Run]:
    layer_bytes = 2 * layout.row_bytes  # of one token
    tokens = max(1, min(end - start, max_payload // layer_bytes))
    layers = max(1, max_payload // (layer_bytes * tokens))
    for token in range(start, end, tokens):
        for layer in range(0, layout.num_layers, layers):
            yield token, min(token + tokens, end), layer, min(layer + layers, layout.num_layers)


def encode(frame: Frame) -> bytes:
    """The message of a sealed frame, holding a copy of its payload."""
    header = _encode_header(frame.header)
    head = length(_HEADER, len(header)) + header + length(_PAYLOAD, frame.payload.nbytes)
    return b"".join((length(_FRAME, len(head) + frame.payload.nbytes), head, frame.payload))


def encode_run(references: Iterable[Reference]) -> bytes:
    """The message of sealed frames whose payloads the receiver reads in the sender's blocks."""
    bodies = [_encode_reference(reference) for reference in references]
    run = b"".join(part for body in bodies for part in (length(_FRAMES, len(body)), body))
    return length(_RUN, len(run)) + run


def _encode_reference(reference: Reference) -> bytes:
    header = _encode_header(reference.header)
    return b"".join((length(_HEADER, len(header)), header, varint(_BLOCK, reference.block)))


def _encode_header(header: FrameHeader) -> bytes:
    numbers = (number(field, getattr(header, name)) for field, name in enumerate(_NUMBERS, _FIRST_NUMBER))
    return b"".join((length(_LEASE, len(header.lease)), header.lease, *numbers, fixed64(_DIGEST_FIELD, header.digest)))


def encode_commit(commit: Commit) -> bytes:
    """The message of a commit, whose check covers every byte before it: first tokens must not change on the way either."""
    body = convert_kv.encode_commit(commit)
    check = _check(body)
    return b"".join((length(_COMMIT, len(body) + len(check)), body, check))


def _check(body: bytes) -> bytes:
    return fixed64(_CHECK, xxh3_64(body).intdigest())


def greeting(message: bytes) -> KvHello:
    """A channel's first message. TransferError("malformed") for any other."""
    hello = decode(message)
    if not isinstance(hello, KvHello):
        raise malformed("a channel begins with hello")
    return hello


def delivery(message: bytes | memoryview) -> Frame | Commit:
    """Any later message whose payload is in it. TransferError("malformed") for any other."""
    found = decode(message)
    if not isinstance(found, Frame | Commit):
        raise malformed("neither a frame with its payload nor a commit")
    return found


def decode(message: bytes | memoryview) -> KvHello | Frame | tuple[Reference, ...] | Commit:
    """What a sender wrote. A frame's payload is a slice of `message`. TransferError("malformed") for any other bytes."""
    found = list(fields(memoryview(message)))
    if len(found) != 1:
        raise malformed(f"{len(found)} fields where one belongs")
    field, value = found[0]
    if field == _FRAME:
        return _decode_frame(as_bytes(value))
    if field == _COMMIT:
        return _decode_commit(bytes(as_bytes(value)))
    if field == _HELLO:
        return convert_kv.decode_hello(bytes(as_bytes(value)))
    if field == _RUN:
        return tuple(_decode_run(as_bytes(value)))
    raise malformed("neither hello, frame, run nor commit")


def _decode_commit(message: bytes) -> Commit:
    body, check = message[:-_CHECK_BYTES], message[-_CHECK_BYTES:]
    if check != _check(body):
        raise malformed("a commit that does not have the check that it names")
    return convert_kv.decode_commit(body)


def _decode_frame(view: memoryview) -> Frame:
    header, payload = memoryview(b""), memoryview(b"")
    for field, value in fields(view):
        if field == _HEADER:
            header = as_bytes(value)
        elif field == _PAYLOAD:
            payload = as_bytes(value)
    return Frame(_decode_header(header), payload)


def _decode_run(view: memoryview) -> Iterator[Reference]:
    for field, body in fields(view):
        if field != _FRAMES:
            raise malformed("a run is frames alone")
        yield _decode_reference(as_bytes(body))


def _decode_reference(view: memoryview) -> Reference:
    found = dict(fields(view))
    if found.keys() != {_HEADER, _BLOCK}:
        raise malformed("a frame of a run is its header and its block")
    return Reference(_decode_header(as_bytes(found[_HEADER])), as_number(found[_BLOCK], 32))


def _decode_header(view: memoryview) -> FrameHeader:
    lease, digest, numbers = b"", 0, dict.fromkeys(_NUMBERS, 0)
    for field, value in fields(view):
        if field == _LEASE:
            lease = bytes(as_bytes(value))
        elif field == _DIGEST_FIELD:
            digest = as_number(value, 64)
        elif _FIRST_NUMBER <= field < _DIGEST_FIELD:
            numbers[_NUMBERS[field - _FIRST_NUMBER]] = as_number(value, 32)
    if len(lease) != _LEASE_BYTES:
        raise malformed(f"a lease of {len(lease)} bytes")
    return FrameHeader(lease=lease, digest=digest, **numbers)
