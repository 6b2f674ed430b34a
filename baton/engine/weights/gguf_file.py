"""The GGUF container: metadata and a table of tensors, every length held against the file's own before it is used."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from baton.engine.errors import CorruptModel

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4
MIN_KEY_BYTES = 8 + 4 + 1
MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8

_STRING, _ARRAY = 8, 9
_NUMBERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "|b1", 10: "<u8", 11: "<i8", 12: "<f8"}


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor in the file. `shape` has the outermost extent first; `offset` counts from the file's start."""

    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


class GgufFile:
    """Maps the file and keeps it mapped. `metadata` holds numbers, strings and lists of them; `tensors` go by name."""

    def __init__(self, path: Path):
        reader = _Reader(path)
        num_tensors, num_keys = _read_counts(reader)
        self.path = path
        self.metadata = _read_metadata(reader, num_keys)
        self.tensors = _read_tensors(reader, num_tensors, self.metadata.get("general.alignment", DEFAULT_ALIGNMENT))
        self._bytes = reader.data

    def data(self, tensor: Stored) -> np.ndarray:
        """The tensor's bytes: a read-only view of the mapped file."""
        return self._bytes[tensor.offset : tensor.offset + tensor.num_bytes]


class _Reader:
    """A position in the mapped file that never passes its end."""

    def __init__(self, path: Path):
        self._path = path
        with path.open("rb") as file:
            if not path.stat().st_size:
                raise self.wrong("file", "is empty")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.data = np.frombuffer(self._map, np.uint8)
        self.position = 0

    @property
    def remaining(self) -> int:
        return len(self._map) - self.position

    def wrong(self, field: str, problem: str) -> CorruptModel:
        return CorruptModel(f"{self._path}: {field} {problem}")

    def take(self, num_bytes: int, field: str) -> bytes:
        start = self._skip(num_bytes, field)
        return self._map[start : start + num_bytes]

    def uint(self, num_bytes: int, field: str) -> int:
        return int.from_bytes(self.take(num_bytes, field), "little")

    def string(self, field: str) -> str:
        raw = self.take(self.uint(8, field), field)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.wrong(field, "is not UTF-8") from error

    def numbers(self, kind: int, count: int, field: str) -> list[Any]:
        if kind not in _NUMBERS:
            raise self.wrong(field, f"is of value type {kind}, which is not known here")
        dtype = np.dtype(_NUMBERS[kind])
        start = self._skip(count * dtype.itemsize, field)
        values: list[Any] = np.frombuffer(self._map, dtype, count, start).tolist()
        return values

    def strings(self, count: int, field: str) -> list[str]:
        if count * 8 > self.remaining:
            raise self.wrong(field, f"names {count} strings where the file has {self.remaining} bytes left")
        return [self.string(field) for _ in range(count)]

    def _skip(self, num_bytes: int, field: str) -> int:
        if num_bytes > self.remaining:
            raise self.wrong(field, f"needs {num_bytes} bytes where the file has {self.remaining} left")
        self.position += num_bytes
        return self.position - num_bytes


def _read_counts(reader: _Reader) -> tuple[int, int]:
    if reader.take(len(MAGIC), "magic") != MAGIC:
        raise reader.wrong("magic", "is not GGUF")
    if (version := reader.uint(4, "version")) not in VERSIONS:
        raise reader.wrong("version", f"is {version}; little-endian files of versions 2 and 3 are read")
    num_tensors, num_keys = reader.uint(8, "n_tensors"), reader.uint(8, "n_kv")
    for field, count, least in (("n_tensors", num_tensors, MIN_TENSOR_BYTES), ("n_kv", num_keys, MIN_KEY_BYTES)):
        if count * least > reader.remaining:
            raise reader.wrong(field, f"is {count}, more than {reader.remaining} bytes can hold")
    return num_tensors, num_keys


def _read_metadata(reader: _Reader, num_keys: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(num_keys):
        key = reader.string(f"key {index}")
        if key in metadata:
            raise reader.wrong(key, "is there twice")
        metadata[key] = _read_value(reader, key)
    return metadata


def _read_value(reader: _Reader, key: str) -> Any:
    kind = reader.uint(4, key)
    if kind == _STRING:
        return reader.string(key)
    if kind != _ARRAY:
        return reader.numbers(kind, 1, key)[0]
    kind, count = reader.uint(4, key), reader.uint(8, key)
    return reader.strings(count, key) if kind == _STRING else reader.numbers(kind, count, key)


def _read_tensors(reader: _Reader, num_tensors: int, alignment: Any) -> dict[str, Stored]:
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1) or alignment > len(reader.data):
        raise reader.wrong("general.alignment", f"is {alignment!r}, where a power of two within the file is needed")
    relative: dict[str, Stored] = {}
    for index in range(num_tensors):
        name = reader.string(f"name of tensor {index}")
        if name in relative:
            raise reader.wrong(f"tensor {name}", "is there twice")
        relative[name] = _read_tensor(reader, f"tensor {name}", alignment)
    start = -(-reader.position // alignment) * alignment
    tensors = {name: Stored(t.kind, t.shape, start + t.offset, t.num_bytes) for name, t in relative.items()}
    _check_places(reader, tensors)
    return tensors


def _read_tensor(reader: _Reader, field: str, alignment: int) -> Stored:
    num_dims = reader.uint(4, f"{field} n_dims")
    if not 1 <= num_dims <= MAX_DIMS:
        raise reader.wrong(f"{field} n_dims", f"is {num_dims}, not 1 to {MAX_DIMS}")
    innermost_first = [reader.uint(8, f"{field} shape") for _ in range(num_dims)]
    number, offset = reader.uint(4, f"{field} type"), reader.uint(8, f"{field} offset")
    try:
        kind = GGMLQuantizationType(number)
    except ValueError as error:
        raise reader.wrong(f"{field} type", f"is {number}, which is not known here") from error
    group_size, group_bytes = GGML_QUANT_SIZES[kind]
    if innermost_first[0] % group_size:
        raise reader.wrong(f"{field} shape", f"is {innermost_first}, whose rows are no whole groups of {group_size}")
    if offset % alignment:
        raise reader.wrong(f"{field} offset", f"{offset} is not a multiple of the alignment {alignment}")
    return Stored(kind, tuple(reversed(innermost_first)), offset, prod(innermost_first) // group_size * group_bytes)


def _check_places(reader: _Reader, tensors: dict[str, Stored]) -> None:
    """Every tensor lies within the file and in none other."""
    end, before = 0, ""
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].offset):
        if tensor.offset < end:
            raise reader.wrong(f"tensor {name}", f"overlaps {before}")
        end, before = tensor.offset + tensor.num_bytes, name
        if end > len(reader.data):
            raise reader.wrong(f"tensor {name}", f"ends at byte {end} of a file of {len(reader.data)}")
