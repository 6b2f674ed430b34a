"""What a frame looks like on each transport: how large, how many are read from the blocks at once, and its message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvtransfer import frames
from kvtransfer.frames import Frame


@dataclass(frozen=True, slots=True)
class Form:
    """`piece_bytes`: of a payload at most. `num_pieces`: sealed in one go on the KV thread. `pack`: the message of a sealed
    frame out of a block, made on the KV thread."""

    piece_bytes: int
    num_pieces: int
    pack: Callable[[Frame, int], bytes]


def _copied(frame: Frame, block: int) -> bytes:
    return frames.encode(frame)


def _referred(frame: Frame, block: int) -> bytes:
    return frames.encode_reference(frame.header, block)


COPIED = Form(frames.MAX_PAYLOAD, 1, _copied)
PIECES = Form(512 << 10, 2, _copied)
"""A piece stays in the second-level cache from the digest to the socket and from there to the digest."""

REFERRED = Form(512 << 10, 8, _referred)

_FORMS = {"shm": REFERRED, "local": REFERRED, "tcp": PIECES}


def form_of(transport: str) -> Form:
    """How `transport` has its frames."""
    return _FORMS.get(transport, COPIED)
