"""What a frame looks like on each transport: how large, how many are read from the blocks at once, and its message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvtransfer import frames
from kvtransfer.frames import Frame, Reference

Sealed = tuple[Frame, int]
"""A frame with its digest, and the block that it lies in."""


@dataclass(frozen=True, slots=True)
class Form:
    """`piece_bytes`: of a payload at most. `num_pieces`: sealed in one go on the KV thread. `pack`: the messages of sealed
    frames, each with its block, made on the KV thread."""

    piece_bytes: int
    num_pieces: int
    pack: Callable[[Sequence[Sealed]], list[bytes]]


def _copied(sealed: Sequence[Sealed]) -> list[bytes]:
    return [frames.encode(frame) for frame, _ in sealed]


def _referred(sealed: Sequence[Sealed]) -> list[bytes]:
    return [frames.encode_run(Reference(frame.header, block) for frame, block in sealed)]


COPIED = Form(frames.MAX_PAYLOAD, 1, _copied)
PIECES = Form(512 << 10, 2, _copied)
"""A piece stays in the second-level cache from the digest to the socket and from there to the digest."""

REFERRED = Form(2 << 20, 8, _referred)
"""Nothing of it moves with the message: whole blocks, several a message, cost the least."""

_FORMS = {"shm": REFERRED, "local": REFERRED, "tcp": PIECES}


def form_of(transport: str) -> Form:
    """How `transport` has its frames."""
    return _FORMS.get(transport, COPIED)
