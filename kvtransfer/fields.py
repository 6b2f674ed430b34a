"""Protobuf fields written and read in place: bytes that are read are slices of the message.

Whatever is not well-formed raises TransferError("malformed"), and nothing else is ever raised.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from baton.wire.errors import TransferError

_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5  # wire types; the two of groups are refused
_FIXED = {_I64: struct.Struct("<Q"), _I32: struct.Struct("<I")}


def length(field: int, size: int) -> bytes:
    """The head of a field of `size` bytes, which follow."""
    return _varint(field << 3 | _LEN) + _varint(size)


def number(field: int, value: int) -> bytes:
    """An unsigned number; zero is not written."""
    return varint(field, value) if value else b""


def varint(field: int, value: int) -> bytes:
    """An unsigned number that is written though it be zero: its presence means something."""
    return _varint(field << 3 | _VARINT) + _varint(value)


def fixed64(field: int, value: int) -> bytes:
    """An unsigned number of 8 bytes; zero is not written."""
    return _varint(field << 3 | _I64) + _FIXED[_I64].pack(value) if value else b""


def fields(view: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """(number, value) of each field in turn: a slice of `view` for a field with a length, else an int."""
    at = 0
    while at < len(view):
        tag, at = _read_varint(view, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _read_varint(view, at)
            yield tag >> 3, value
        elif kind in _FIXED:
            piece, at = _read_bytes(view, at, _FIXED[kind].size)
            yield tag >> 3, _FIXED[kind].unpack(piece)[0]
        elif kind == _LEN:
            size, at = _read_varint(view, at)
            piece, at = _read_bytes(view, at, size)
            yield tag >> 3, piece
        else:
            raise malformed("a field of no known kind")


def as_bytes(value: int | memoryview) -> memoryview:
    """`value` if it is bytes."""
    if isinstance(value, int):
        raise malformed("a number where bytes belong")
    return value


def as_number(value: int | memoryview, bits: int) -> int:
    """`value` if it is a number of at most `bits` bits."""
    if not isinstance(value, int) or value >> bits:
        raise malformed(f"no number of {bits} bits where one belongs")
    return value


def malformed(what: str) -> TransferError:
    """The error for bytes that no sender of this protocol writes."""
    return TransferError("malformed", f"not a message of this protocol: {what}")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(view: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(view):
            raise malformed("a number past the end")
        byte, at = view[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise malformed("a number of more than ten bytes")


def _read_bytes(view: memoryview, at: int, size: int) -> tuple[memoryview, int]:
    if size > len(view) - at:
        raise malformed("a field past the end")
    return view[at : at + size], at + size
