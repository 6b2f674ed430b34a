"""Whether workers can serve one model together: identities compared field by field, then what they negotiate. Pure."""

from __future__ import annotations

from dataclasses import fields

from baton.wire.types import Capabilities, Identity, KvLayout, WorkerInfo

LAYOUT_FIELDS = ("num_layers", "num_kv_heads", "head_dim", "dtype")
"""What two pools must share. Block sizes may differ: the receiver scatters."""


def mismatch(info: WorkerInfo, peer: WorkerInfo) -> str | None:
    """Why `info` cannot hand over to or take over from `peer`, naming the field and both values; None: it can."""
    return (
        _identity_mismatch(info.identity, peer.identity)
        or _layout_mismatch(info.capabilities.layout, peer.capabilities.layout)
        or _transport_mismatch(info.capabilities, peer.capabilities)
        or _protocol_mismatch(info.capabilities, peer.capabilities)
    )


def unspoken(info: WorkerInfo) -> str | None:
    """Why this router cannot talk to `info`; None: it can."""
    return _protocol_mismatch(info.capabilities, Capabilities(info.capabilities.layout))


def _identity_mismatch(mine: Identity, theirs: Identity) -> str | None:
    return _first_difference("identity", mine, theirs, tuple(field.name for field in fields(Identity)))


def _layout_mismatch(mine: KvLayout, theirs: KvLayout) -> str | None:
    return _first_difference("layout", mine, theirs, LAYOUT_FIELDS)


def _first_difference(what: str, mine: object, theirs: object, names: tuple[str, ...]) -> str | None:
    for name in names:
        here, there = getattr(mine, name), getattr(theirs, name)
        if here != there:
            return f"{what}.{name} is {here!r} here and {there!r} there"
    return None


def _transport_mismatch(mine: Capabilities, theirs: Capabilities) -> str | None:
    if set(mine.transports) & set(theirs.transports):
        return None
    return f"capabilities.transports are {mine.transports!r} here and {theirs.transports!r} there: none is shared"


def _protocol_mismatch(mine: Capabilities, theirs: Capabilities) -> str | None:
    if mine.min_protocol <= theirs.protocol and theirs.min_protocol <= mine.protocol:
        return None
    return (
        f"capabilities.protocol is {mine.min_protocol} to {mine.protocol} here "
        f"and {theirs.min_protocol} to {theirs.protocol} there"
    )
