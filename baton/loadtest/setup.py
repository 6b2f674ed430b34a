"""Facts about where and with what a load test ran."""

from __future__ import annotations

import asyncio
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

GIT_S = 5.0
PACKAGES = ("baton-serve", "httptools", "uvloop", "orjson")


def setup_facts() -> Mapping[str, str]:
    """Of the harness's side: when, versions, machine."""
    versions = [f"{name} {found}" for name in PACKAGES if (found := _version(name))]
    commit = _commit()
    return {
        "time": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": ", ".join([*versions, *([f"commit {commit}"] if commit else []), f"Python {platform.python_version()}"]),
        "event loop": type(asyncio.get_running_loop()).__module__.partition(".")[0],
        "machine": f"{_cpu()}, {len(os.sched_getaffinity(0))} cores, {platform.system()} {platform.release()}",
        "command": shlex.join(["baton", *_unsecret(sys.argv[1:])]),
    }


def _unsecret(arguments: list[str]) -> list[str]:
    """A key given on the command line stays out of the report."""
    hidden = ["…" if before == "--api-key" else given for before, given in zip(["", *arguments], arguments, strict=False)]
    return ["--api-key=…" if given.startswith("--api-key=") else given for given in hidden]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _commit() -> str:
    """Of the checkout that this runs from; empty where it is installed without one."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=GIT_S, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
