"""A gate before every engine step of another process: held by a file lock, slowed and counted over shared memory."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

GATE_VARIABLE = "TEST_STEP_GATE"
_FORMAT = struct.Struct("dQ")  # seconds to sleep before a step; steps begun


class Gate:
    """The test's end opens, holds and slows; the worker's end calls `step` on its engine thread before each step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._file, _FORMAT.size)
        self._memory = mmap.mmap(self._file, _FORMAT.size)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """No engine step begins inside this block; one that runs already may end."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def slowed(self, seconds: float) -> Iterator[None]:
        """Every step inside this block begins `seconds` late."""
        struct.pack_into("d", self._memory, 0, seconds)
        try:
            yield
        finally:
            struct.pack_into("d", self._memory, 0, 0.0)

    @property
    def steps(self) -> int:
        """Steps begun by all lives of the worker."""
        return int(_FORMAT.unpack_from(self._memory)[1])

    def step(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_SH)
        fcntl.flock(self._file, fcntl.LOCK_UN)
        delay_s, steps = _FORMAT.unpack_from(self._memory)
        struct.pack_into("Q", self._memory, struct.calcsize("d"), steps + 1)
        time.sleep(delay_s)
