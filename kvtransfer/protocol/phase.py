"""Where a coordinator stands; coordinator.py draws the way between."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    NEW = "new"
    PLACING = "placing"
    RESERVING = "reserving"
    RUNNING = "running"
    FENCING = "fencing"
    DONE = "done"
