"""The KV channel's messages but frames (see kvtransfer/frames.py): types <-> protobuf bytes."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from baton.wire.convert_event import pack_first, unpack_first
from baton.wire.convert_model import pack_capabilities, pack_identity, unpack_capabilities, unpack_identity
from baton.wire.errors import BatonError, PairingRefused, TransferError
from baton.wire.flat import pack_flat, unpack_flat
from baton.wire.pb import kvtransfer_pb2 as pb
from baton.wire.types import Commit, KvAnswer, KvEndpoint, KvHello


def encode_hello(value: KvHello) -> bytes:
    """A channel's first message."""
    return pb.KvUp(hello=_pack_hello(value)).SerializeToString()


def encode_bare_hello(value: KvHello) -> bytes:
    """A KvHello alone, as Offer takes it."""
    return _pack_hello(value).SerializeToString()


def _pack_hello(value: KvHello) -> pb.KvHello:
    return pb.KvHello(
        sender=value.sender,
        receiver=value.receiver,
        identity=pack_identity(value.identity),
        capabilities=pack_capabilities(value.capabilities),
    )


def decode_hello(message: bytes) -> KvHello:
    """Reads a KvHello. TransferError("malformed") for any other bytes."""
    try:
        hello = pb.KvHello.FromString(message)
    except DecodeError as error:
        raise TransferError("malformed", f"not a hello: {error}") from error
    identity, capabilities = unpack_identity(hello.identity), unpack_capabilities(hello.capabilities)
    return KvHello(hello.sender, hello.receiver, identity, capabilities)


def encode_commit(value: Commit) -> bytes:
    """A KvCommit without its check, which the caller appends."""
    commit = pb.KvCommit(
        lease=value.lease,
        epoch=value.epoch,
        index=value.index,
        first=[pack_first(first) for first in value.first],
        cover_start=value.cover_start,
        cover_end=value.cover_end,
        num_layers=value.num_layers,
        num_frames=value.num_frames,
        digest=value.digest,
    )
    return commit.SerializeToString()


def decode_commit(message: bytes) -> Commit:
    """Reads a KvCommit, whose check the caller verified. TransferError("malformed") for any other bytes."""
    try:
        return _unpack_commit(pb.KvCommit.FromString(message))
    except (DecodeError, ValueError) as error:
        raise TransferError("malformed", f"not a commit: {error}") from error


def _unpack_commit(commit: pb.KvCommit) -> Commit:
    return Commit(
        lease=commit.lease,
        epoch=commit.epoch,
        index=commit.index,
        first=tuple(unpack_first(first) for first in commit.first),
        cover_start=commit.cover_start,
        cover_end=commit.cover_end,
        num_layers=commit.num_layers,
        num_frames=commit.num_frames,
        digest=commit.digest,
    )


OPEN = pb.KvDown(open=True).SerializeToString()
"""The receiver's first message: it took the hello."""


def encode_answer(value: KvAnswer) -> bytes:
    return pb.KvDown(answers=[pack_flat(value, pb.KvAnswer)]).SerializeToString()


def decode_down(message: bytes) -> tuple[KvAnswer, ...]:
    """The answers in a receiver's message: none in its first. TransferError("malformed") for any other bytes."""
    try:
        return tuple(unpack_flat(answer, KvAnswer) for answer in pb.KvDown.FromString(message).answers)
    except DecodeError as error:
        raise TransferError("malformed", f"not an answer: {error}") from error


def encode_refusal(error: BatonError) -> bytes:
    """The receiver's last message where the transport has no status of its own."""
    reason = error.reason if isinstance(error, TransferError) else error.code or ""
    return pb.KvDown(refusal=pb.KvRefusal(reason=reason, message=error.message)).SerializeToString()


def decode_refusal(message: bytes) -> PairingRefused | TransferError | None:
    """The refusal in a receiver's message, if it is one. TransferError("malformed") is raised for bytes without a meaning."""
    try:
        down = pb.KvDown.FromString(message)
    except DecodeError as error:
        raise TransferError("malformed", f"not an answer: {error}") from error
    if not down.HasField("refusal"):
        return None
    if down.refusal.reason == PairingRefused.code:
        return PairingRefused(down.refusal.message)
    return TransferError(down.refusal.reason, down.refusal.message)


def encode_offers(endpoints: Sequence[KvEndpoint]) -> bytes:
    return pb.KvOffers(endpoints=[pack_flat(one, pb.KvEndpoint) for one in endpoints]).SerializeToString()


def decode_offers(message: bytes) -> tuple[KvEndpoint, ...]:
    """What a receiver offers. TransferError("malformed") for any other bytes."""
    try:
        return tuple(unpack_flat(one, KvEndpoint) for one in pb.KvOffers.FromString(message).endpoints)
    except DecodeError as error:
        raise TransferError("malformed", f"no offers: {error}") from error
