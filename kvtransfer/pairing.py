"""Whether two workers may hand KV over: asked once a channel, answered with the field and both values."""

from __future__ import annotations

import dataclasses

from baton.wire.errors import PairingRefused, TransferError
from baton.wire.types import Capabilities, KvHello, WorkerInfo


def check(hello: KvHello, info: WorkerInfo) -> None:
    """Raises TransferError("wrong_incarnation") for a sender that means another life of this worker, and PairingRefused for one
    whose identity, KV shape or protocol does not fit. Block sizes may differ."""
    if hello.receiver != info.incarnation:
        raise TransferError("wrong_incarnation", "this worker was restarted since the router named it")
    _same(hello.identity, info.identity, tuple(one.name for one in dataclasses.fields(info.identity)))
    theirs, ours = hello.capabilities, info.capabilities
    _same(theirs.layout, ours.layout, ("num_layers", "num_kv_heads", "head_dim", "dtype"))
    _overlap(theirs, ours)


def _same(theirs: object, ours: object, names: tuple[str, ...]) -> None:
    for name in names:
        sender, receiver = getattr(theirs, name), getattr(ours, name)
        if sender != receiver:
            raise PairingRefused(f"{name} differs: the sender has {sender!r}, the receiver {receiver!r}", param=name)


def _overlap(theirs: Capabilities, ours: Capabilities) -> None:
    if theirs.min_protocol > ours.protocol or ours.min_protocol > theirs.protocol:
        spoken = f"{theirs.min_protocol} to {theirs.protocol}, the receiver {ours.min_protocol} to {ours.protocol}"
        raise PairingRefused(f"protocol differs: the sender speaks {spoken}", param="protocol")
