"""Builds the C++ library on first use into a private cache, or finds the one that was built ahead of time."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from baton.engine.errors import KernelsUnavailable

log = logging.getLogger(__name__)

SOURCE = Path(__file__).parent / "csrc"
AHEAD_OF_TIME = Path(__file__).parent / "lib"
COMMON = ("-std=c++20", "-O3", "-fPIC", "-shared", "-pthread", "-ffp-contract=off", "-fno-math-errno")
_AVX512 = (
    "-mavx512f",
    "-mavx512bw",
    "-mavx512vl",
    "-mavx512dq",
    "-mavx512vnni",
    "-mfma",
    "-mf16c",
    "-mprefer-vector-width=512",
)
FLAGS = {
    "amx": (*_AVX512, "-mamx-tile", "-mamx-int8"),
    "avx512": _AVX512,
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "scalar": (),
}
_HAS_AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"}
NEEDS = {
    "amx": {*_HAS_AVX512, "amx_tile", "amx_int8"},
    "avx512": _HAS_AVX512,
    "avx2": {"avx2", "fma", "f16c"},
    "scalar": set(),
}
BUILD_TIMEOUT_S = 300


def supported() -> tuple[str, ...]:
    """Instruction sets of this machine, best first. "scalar" is always there."""
    present = _cpu_flags()
    isas = (isa for isa, needs in NEEDS.items() if needs <= present)
    return tuple(isa for isa in isas if isa != "amx" or _may_use_tiles())


def load(isa: str) -> ctypes.CDLL:
    """The library for `isa`. Raises KernelsUnavailable if it has to be built and cannot be."""
    if isa not in supported():
        raise KernelsUnavailable(f"this CPU has no {isa}: it has {', '.join(supported())}")
    return _open(isa)


@cache
def _open(isa: str) -> ctypes.CDLL:
    ready = AHEAD_OF_TIME / f"libbaton_{isa}.so"
    return ctypes.CDLL(str(ready if ready.exists() else build(isa)))


def build(isa: str, directory: Path | None = None) -> Path:
    """Compiles for `isa` unless `directory` (default: the user's cache) has it; returns the library's path.

    The name carries compiler, flags and source, so that a change of any builds anew. Two processes may build at once: each
    writes a file of its own and renames it into place.
    """
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise KernelsUnavailable("no C++ compiler (g++ or clang++) was found: install one, or set CXX")
    flags = (*COMMON, *FLAGS[isa], f"-DBATON_ISA={isa}")
    directory = directory or _cache_directory()
    target = directory / f"libbaton_{isa}_{_fingerprint(compiler, flags)}.so"
    if not target.exists():
        _compile([compiler, *flags, str(SOURCE / "kernels.cpp")], target)
    return target


def _compile(command: list[str], target: Path) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, suffix=".so")
    os.close(handle)
    try:
        subprocess.run([*command, "-o", name], check=True, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
        Path(name).replace(target)
    except (OSError, subprocess.SubprocessError) as error:
        Path(name).unlink(missing_ok=True)
        raise KernelsUnavailable(f"the CPU kernels did not compile: {getattr(error, 'stderr', None) or error}") from error
    log.info("built CPU kernels: %s", target.name)


def _fingerprint(compiler: str, flags: tuple[str, ...]) -> str:
    version = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    ).stdout
    digest = hashlib.sha256("\0".join((version, *flags)).encode())
    for source in sorted(SOURCE.iterdir()):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _cache_directory() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = base / "baton" / "kernels"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.stat().st_uid != os.getuid() or directory.stat().st_mode & 0o022:
        raise KernelsUnavailable(
            f"{directory} can be written by others: a library there is not to be trusted; fix its owner and mode"
        )
    return directory


@cache
def _may_use_tiles() -> bool:
    """Asks Linux for the matrix unit's registers, given on demand: arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)."""
    return bool(ctypes.CDLL(None).syscall(158, 0x1023, 18) == 0)


@cache
def _cpu_flags() -> frozenset[str]:
    if platform.machine() not in ("x86_64", "AMD64"):
        return frozenset()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), []))
