"""A gate that another process passes, before every engine step or KV message: held, slowed, limited and counted by the test."""

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
_FORMAT = struct.Struct("dQQQQ")  # seconds to sleep before a step; steps begun, come for, that may begin; whether one fails
_DELAY, _STEPS, _COME, _LIMIT, _FAILING = (struct.calcsize("d" + "Q" * i) - 8 for i in range(5))
_NO_LIMIT = 2**64 - 1
_AT_GATE_S = 30.0


class Gate:
    """The test's end opens, holds, limits and slows; the worker's end calls `step` before each step, on a thread of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        new = not path.exists()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._barrier = os.open(path.with_name(path.name + ".limit"), os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._file, _FORMAT.size)
        self._memory = mmap.mmap(self._file, _FORMAT.size)
        if new:
            self._put(_LIMIT, _NO_LIMIT)

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
        struct.pack_into("d", self._memory, _DELAY, seconds)
        try:
            yield
        finally:
            struct.pack_into("d", self._memory, _DELAY, 0.0)

    @contextlib.contextmanager
    def limited(self, num_steps: int) -> Iterator[None]:
        """At most `num_steps` more steps begin inside this block; the next one waits for its end."""
        fcntl.flock(self._barrier, fcntl.LOCK_EX)
        self._put(_LIMIT, self.steps + num_steps)
        try:
            yield
        finally:
            self.lift()

    def allow(self, num_steps: int) -> None:
        """Inside `limited`: that many more steps from now on. A step that waits already goes on waiting."""
        self._put(_LIMIT, self.steps + num_steps)

    def lift(self) -> None:
        """Ends a limit early."""
        self._put(_LIMIT, _NO_LIMIT)
        fcntl.flock(self._barrier, fcntl.LOCK_UN)

    def fail(self) -> None:
        """The next step ends in an exception on the engine's thread; the worker's next life steps as ever."""
        self._put(_FAILING, 1)

    @property
    def steps(self) -> int:
        """Steps begun by all lives of the worker."""
        return self._get(_STEPS)

    @property
    def occupied(self) -> bool:
        """A step waits here, or is about to begin."""
        return self._get(_COME) > self.steps

    def wait_occupied(self) -> None:
        """Returns once a step waits at the gate: it is held, or has reached its limit."""
        deadline = time.monotonic() + _AT_GATE_S
        while not self.occupied:
            assert time.monotonic() < deadline, f"nothing came to {self.path.name}"
            time.sleep(0.002)

    def open(self) -> None:
        """The worker's end, first of all: an earlier life may have died at the gate."""
        self._put(_COME, self.steps)
        self._put(_FAILING, 0)

    def step(self) -> None:
        self._put(_COME, self.steps + 1)
        self._pass(self._file)
        if self._get(_FAILING):
            raise RuntimeError("the test breaks the engine")
        if self.steps >= self._get(_LIMIT):
            self._pass(self._barrier)
        delay_s = struct.unpack_from("d", self._memory, _DELAY)[0]
        self._put(_STEPS, self.steps + 1)
        time.sleep(delay_s)

    @staticmethod
    def _pass(lock: int) -> None:
        fcntl.flock(lock, fcntl.LOCK_SH)
        fcntl.flock(lock, fcntl.LOCK_UN)

    def _get(self, offset: int) -> int:
        return int(struct.unpack_from("Q", self._memory, offset)[0])

    def _put(self, offset: int, value: int) -> None:
        struct.pack_into("Q", self._memory, offset, value)
