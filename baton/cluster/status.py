"""Status lines: one JSON object a line on a process's stdout, for whoever launched it. Everything else goes to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

LOADING, READY, FAILED = "loading", "ready", "failed"

Status = Mapping[str, Any]
"""Has `status`: loading (bytes, total), ready (address, and what else its process tells), or failed (error)."""

OnStatus = Callable[[Status], None]


def report(status: str, **facts: Any) -> None:
    """Prints one status line. A launcher that has gone is no reason to fail."""
    try:
        print(json.dumps({"status": status, **facts}), flush=True)
    except BrokenPipeError:
        sys.stderr.write(f"nobody reads the status {status}\n")


def parse(line: str) -> Status | None:
    """The status that `line` holds, or None for any other text."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and isinstance(value.get("status"), str) else None
