"""The frame codec against the protobuf library, and against bytes that nobody should have sent."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.wire import convert_kv
from baton.wire.errors import TransferError
from baton.wire.pb import kvtransfer_pb2 as pb
from baton.wire.types import (
    Capabilities,
    Commit,
    FinishReason,
    FirstToken,
    FrameHeader,
    Identity,
    KvAnswer,
    KvHello,
    KvLayout,
    Token,
)
from kvtransfer import frames
from kvtransfer.frames import Frame

LAYOUT = KvLayout(num_layers=30, block_size=64, num_kv_heads=3, head_dim=64, dtype="float32")
uint32 = st.integers(0, 2**32 - 1)
headers = st.builds(
    FrameHeader,
    lease=st.binary(min_size=16, max_size=16),
    epoch=uint32,
    sequence=uint32,
    token_start=uint32,
    token_end=uint32,
    layer_start=uint32,
    layer_end=uint32,
    digest=st.integers(0, 2**64 - 1),
)
payloads = st.binary(max_size=300)
NUMBERS = ("epoch", "sequence", "token_start", "token_end", "layer_start", "layer_end", "digest")


def as_pb(header: FrameHeader, payload: bytes) -> pb.KvUp:
    numbers = {name: getattr(header, name) for name in NUMBERS}
    return pb.KvUp(frame=pb.KvFrame(header=pb.KvFrameHeader(lease=header.lease, **numbers), payload=payload))


def sealed(payload: bytes = b"kv" * 64) -> Frame:
    return frames.seal(FrameHeader(b"L" * 16, 1, 0, 0, 4, 0, 2), memoryview(payload))


def read_and_verify(message: bytes) -> None:
    found = frames.decode(message)
    assert isinstance(found, Frame)
    frames.verify(found)


@given(headers, payloads)
def test_both_codecs_write_the_same_bytes(header: FrameHeader, payload: bytes) -> None:
    ours = frames.encode(Frame(header, memoryview(payload)))
    assert ours == as_pb(header, payload).SerializeToString() or not payload
    assert pb.KvUp.FromString(ours).frame.header == as_pb(header, payload).frame.header
    assert pb.KvUp.FromString(ours).frame.payload == payload


@given(headers, payloads)
def test_we_read_what_the_library_writes(header: FrameHeader, payload: bytes) -> None:
    frame = frames.decode(as_pb(header, payload).SerializeToString())
    assert isinstance(frame, Frame)
    assert (frame.header, bytes(frame.payload)) == (header, payload)


def test_the_payload_is_read_in_place() -> None:
    message = frames.encode(sealed())
    frame = frames.decode(message)
    assert isinstance(frame, Frame)
    assert frame.payload.obj is message


def test_a_field_of_a_later_version_is_skipped() -> None:
    later = pb.KvFrameHeader(lease=b"L" * 16, epoch=7).SerializeToString() + b"\x78\x05" + b"\x82\x01\x02hi"
    frame = pb.KvFrame(payload=b"kv").SerializeToString() + b"\x0a" + bytes([len(later)]) + later
    decoded = frames.decode(b"\x12" + bytes([len(frame)]) + frame)
    assert isinstance(decoded, Frame)
    assert (decoded.header.epoch, bytes(decoded.payload)) == (7, b"kv")


@given(st.binary(max_size=200))
def test_garbage_is_a_transfer_error_and_nothing_else(garbage: bytes) -> None:
    for decode in (frames.decode, convert_kv.decode_hello, convert_kv.decode_commit, convert_kv.decode_down):
        with contextlib.suppress(TransferError):
            decode(garbage)


@given(st.data())
def test_a_damaged_message_is_malformed_or_fails_its_digest(data: st.DataObject) -> None:
    whole = frames.encode(sealed())
    at = data.draw(st.integers(0, len(whole) - 1))
    flip = data.draw(st.integers(1, 255))
    damaged = data.draw(st.sampled_from([whole[:at], whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :]]))
    with pytest.raises(TransferError) as caught:
        read_and_verify(damaged)
    assert caught.value.reason in ("malformed", "digest")


@pytest.mark.parametrize("field", ["epoch", "sequence", "token_start", "token_end", "layer_start", "layer_end"])
def test_the_digest_covers_every_field_of_the_header(field: str) -> None:
    frame = sealed()
    with pytest.raises(TransferError, match="digest"):
        frames.verify(Frame(replace(frame.header, **{field: getattr(frame.header, field) + 1}), frame.payload))
    with pytest.raises(TransferError, match="digest"):
        frames.verify(Frame(replace(frame.header, lease=b"M" * 16), frame.payload))


def test_the_commits_digest_depends_on_the_order() -> None:
    assert frames.digest_of([1, 2]) != frames.digest_of([2, 1])


@given(st.integers(0, 300), st.integers(0, 300), st.sampled_from([16, 64]), st.sampled_from([8, 64, 4096]))
def test_a_plan_covers_every_token_and_layer_once(start: int, size: int, block_size: int, head_dim: int) -> None:
    layout = replace(LAYOUT, block_size=block_size, head_dim=head_dim)
    cells: list[tuple[int, int]] = []
    for token_start, token_end, layer_start, layer_end in frames.plan(layout, start, start + size):
        assert token_start // block_size == (token_end - 1) // block_size
        assert (token_end - token_start) * (layer_end - layer_start) * 2 * layout.row_bytes <= frames.MAX_PAYLOAD
        cells += [(token, layer) for token in range(token_start, token_end) for layer in range(layer_start, layer_end)]
    expected = [(token, layer) for token in range(start, start + size) for layer in range(layout.num_layers)]
    assert sorted(cells) == expected


def test_frames_of_a_real_model_are_large() -> None:
    sizes = [(b - a) * (d - c) * 2 * LAYOUT.row_bytes for a, b, c, d in frames.plan(LAYOUT, 0, 640)]
    assert min(sizes) >= 360 << 10


def test_hello_commit_and_answer_come_back_whole() -> None:
    identity = Identity("llama", "w", "none", "float32", "default", "tok", "tpl", 2048)
    hello = KvHello(b"s" * 16, b"r" * 16, identity, Capabilities(LAYOUT))
    first = (FirstToken(0, Token(5, -0.5, ((5, -0.5), (6, -1.0)))), FirstToken(1, Token(6), FinishReason.STOP))
    commit = Commit(b"L" * 16, 2, 3, first, 64, 100, 30, 4, 2**64 - 1)
    answer = KvAnswer(b"L" * 16, 2, False, "digest")
    assert frames.decode(convert_kv.encode_hello(hello)) == hello
    assert frames.decode(frames.encode_commit(commit)) == commit
    assert pb.KvUp.FromString(frames.encode_commit(commit)).commit.first[1].token.id == 6
    assert convert_kv.decode_down(convert_kv.encode_answer(answer)) == (answer,)
    assert convert_kv.decode_down(convert_kv.OPEN) == ()


@given(st.data())
def test_a_damaged_commit_is_malformed(data: st.DataObject) -> None:
    whole = frames.encode_commit(Commit(b"L" * 16, 1, 0, (FirstToken(0, Token(300)),), 0, 5, 2, 3, 99))
    at = data.draw(st.integers(0, len(whole) - 1))
    flip = data.draw(st.integers(1, 255))
    with pytest.raises(TransferError) as caught:
        frames.decode(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
    assert caught.value.reason == "malformed"


def test_a_commit_with_an_unknown_finish_is_malformed() -> None:
    commit = pb.KvCommit(lease=b"L" * 16)
    commit.first.add(finish="tired")
    with pytest.raises(TransferError) as caught:
        convert_kv.decode_commit(commit.SerializeToString())
    assert caught.value.reason == "malformed"
