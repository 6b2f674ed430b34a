"""Worker-to-router events: types <-> protobuf. Tokens are the hot path: one per running choice and engine step."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from baton.wire.flat import pack_flat, unpack_flat
from baton.wire.pb import worker_pb2 as pb
from baton.wire.types import (
    Committed,
    Event,
    Failed,
    Fenced,
    Finished,
    FinishReason,
    FirstToken,
    Gone,
    HandedOff,
    Preempted,
    Refused,
    Reserved,
    Spans,
    Token,
    Tokens,
)

_PLAIN: dict[type[Any], str] = {
    Reserved: "reserved",
    Refused: "refused",
    Failed: "failed",
    Fenced: "fenced",
    Gone: "gone",
    Preempted: "preempted",
}


def pack_event(value: Event, out: pb.Event) -> None:
    """Writes into `out`, an event of the message that is sent: a message built apart would be copied."""
    match value:
        case Tokens():
            _pack_tokens(value, out.tokens)
        case Finished():
            _pack_finished(value, out.finished)
        case HandedOff(lease, epoch, spans):
            out.handed_off.lease, out.handed_off.epoch = lease, epoch
            _pack_spans(spans, out.handed_off)
        case Committed(lease, epoch, index, first):
            taken = pb.Committed(lease=lease, epoch=epoch, index=index, first=[pack_first(token) for token in first])
            out.committed.CopyFrom(taken)
        case _:
            field = getattr(out, _PLAIN[type(value)])
            field.CopyFrom(pack_flat(value, type(field)))


def _pack_tokens(value: Tokens, out: pb.Tokens) -> None:
    out.lease, out.epoch, out.choice, out.index = value.lease, value.epoch, value.choice, value.index
    for token in value.tokens:
        if token.logprob is None:
            out.tokens.add(id=token.id)
        else:
            out.tokens.append(pack_token(token))
    _pack_spans(value.spans, out)


def _pack_finished(value: Finished, out: pb.Finished) -> None:
    out.lease, out.epoch, out.choice = value.lease, value.epoch, value.choice
    out.reason, out.num_tokens = value.reason.value, value.num_tokens
    _pack_spans(value.spans, out)


def _pack_spans(spans: Spans | None, out: pb.Tokens | pb.Finished | pb.HandedOff) -> None:
    if spans is not None:
        out.spans.CopyFrom(pack_flat(spans, pb.Spans))


def pack_token(value: Token) -> pb.Token:
    ids = [token_id for token_id, _ in value.top]
    return pb.Token(id=value.id, logprob=value.logprob, top_ids=ids, top_logprobs=[logprob for _, logprob in value.top])


def pack_first(value: FirstToken) -> pb.FirstToken:
    finish = value.finish.value if value.finish is not None else ""
    return pb.FirstToken(choice=value.choice, token=pack_token(value.token), finish=finish)


_plain_token = lru_cache(maxsize=1 << 17)(Token)
"""Tokens without logprobs: the same object for the same id."""


def unpack_token(message: pb.Token) -> Token:
    if not message.HasField("logprob"):
        return _plain_token(message.id)
    return Token(message.id, message.logprob, tuple(zip(message.top_ids, message.top_logprobs, strict=True)))


def unpack_first(message: pb.FirstToken) -> FirstToken:
    finish = FinishReason(message.finish) if message.finish else None
    return FirstToken(message.choice, unpack_token(message.token), finish)


def unpack_event(message: pb.Event) -> Event:
    """Raises ValueError for an event that is not known."""
    unpack = _UNPACK.get(message.WhichOneof("kind") or "")
    if unpack is None:
        raise ValueError("unknown event")
    return unpack(message)


def _unpack_tokens(message: pb.Event) -> Tokens:
    tokens = message.tokens
    ids = tuple([unpack_token(token) for token in tokens.tokens])
    return Tokens(tokens.lease, tokens.epoch, tokens.choice, tokens.index, ids, _unpack_spans(tokens))


def _unpack_finished(message: pb.Event) -> Finished:
    ended = message.finished
    reason = FinishReason(ended.reason)
    return Finished(ended.lease, ended.epoch, ended.choice, reason, ended.num_tokens, _unpack_spans(ended))


def _unpack_handed_off(message: pb.Event) -> HandedOff:
    done = message.handed_off
    return HandedOff(done.lease, done.epoch, _unpack_spans(done))


def _unpack_committed(message: pb.Event) -> Committed:
    taken = message.committed
    return Committed(taken.lease, taken.epoch, taken.index, tuple(unpack_first(first) for first in taken.first))


def _unpack_spans(message: pb.Tokens | pb.Finished | pb.HandedOff) -> Spans | None:
    return unpack_flat(message.spans, Spans) if message.HasField("spans") else None


def _plain(kind: type[Any], field: str) -> Callable[[pb.Event], Event]:
    def unpack(message: pb.Event) -> Event:
        event: Event = unpack_flat(getattr(message, field), kind)
        return event

    return unpack


_UNPACK: dict[str, Callable[[pb.Event], Event]] = {
    "tokens": _unpack_tokens,
    "finished": _unpack_finished,
    "handed_off": _unpack_handed_off,
    "committed": _unpack_committed,
    **{field: _plain(kind, field) for kind, field in _PLAIN.items()},
}
