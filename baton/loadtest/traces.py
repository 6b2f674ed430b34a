"""Recorded traffic: reads a trace and scales it to a machine. Prompts are made in workload; a trace has only lengths.

Mooncake    JSON lines: timestamp (ms), input_length, output_length, hash_ids (one a block of 512 tokens; equal ids, equal text)
Azure       CSV: TIMESTAMP, ContextTokens, GeneratedTokens
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from baton.loadtest.errors import BenchError

BLOCK_LEN = 512
"""Tokens that one of Mooncake's hash ids stands for."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A recorded request: seconds from the trace's first, lengths in tokens."""

    at_s: float
    input_len: int
    output_len: int
    hash_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Replay:
    """Part of a trace as it will be sent: lengths were divided by `shrink`, times multiplied by `stretch`.

    `block_len`: tokens of a hash id after scaling. `num_dropped`: requests that were too long even so.
    """

    entries: tuple[Entry, ...]
    shrink: float
    stretch: float
    block_len: int
    num_dropped: int


def read_trace(path: str) -> list[Entry]:
    """All entries of a `.jsonl` or `.csv` file, plain or gzipped, in order of time. Raises BenchError."""
    try:
        with _open(path) as file:
            entries = _mooncake(file) if ".jsonl" in Path(path).name else _azure(file)
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise BenchError(f"cannot read the trace {path}: {reason}") from error
    if not entries:
        raise BenchError(f"the trace {path} is empty")
    entries.sort(key=lambda entry: entry.at_s)
    return [Entry(e.at_s - entries[0].at_s, e.input_len, e.output_len, e.hash_ids) for e in entries]


def scale(
    entries: Sequence[Entry], *, num: int, skip: int, shrink: float, stretch: float | None, rate: float | None, max_len: int
) -> Replay:
    """The first `num` entries after `skip` that fit `max_len` (0: any) once scaled. Raises BenchError.

    Time is stretched by `stretch`, or so that the part sent has `rate` requests per second; neither leaves it as it was.
    """
    if shrink < 1:
        raise BenchError(f"lengths are divided by at least 1, not {shrink:g}")
    chosen: list[Entry] = []
    num_dropped = 0
    for entry in (_shrunk(recorded, shrink) for recorded in entries[skip:]):
        if len(chosen) == num:
            break
        if max_len and entry.input_len + entry.output_len > max_len:
            num_dropped += 1
        else:
            chosen.append(entry)
    if not chosen:
        raise BenchError("no request of the trace is left; skip fewer, shrink more or allow longer ones")
    factor = stretch or (_stretch_to(chosen, rate) if rate else 1.0)
    timed = tuple(replace(entry, at_s=(entry.at_s - chosen[0].at_s) * factor) for entry in chosen)
    return Replay(timed, shrink, factor, max(1, round(BLOCK_LEN / shrink)), num_dropped)


def _shrunk(entry: Entry, shrink: float) -> Entry:
    return replace(
        entry, input_len=max(1, round(entry.input_len / shrink)), output_len=max(1, round(entry.output_len / shrink))
    )


def _stretch_to(entries: Sequence[Entry], rate: float) -> float:
    span_s = entries[-1].at_s - entries[0].at_s
    if span_s <= 0:
        raise BenchError("this part of the trace has no length in time to stretch; take more of it")
    return (len(entries) - 1) / rate / span_s


def _mooncake(lines: Iterable[str]) -> list[Entry]:
    rows = [json.loads(line) for line in lines if line.strip()]
    return [
        Entry(row["timestamp"] / 1e3, row["input_length"], row["output_length"], tuple(row.get("hash_ids", ()))) for row in rows
    ]


def _azure(lines: Iterable[str]) -> list[Entry]:
    return [
        Entry(_seconds(row["TIMESTAMP"]), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        for row in csv.DictReader(lines)
    ]


def _seconds(stamp: str) -> float:
    """Azure writes seven digits after the second."""
    whole, _, fraction = stamp.partition(".")
    return datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp() + float(f"0.{fraction or 0}")


def _open(path: str) -> TextIO:
    return gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else open(path, encoding="utf-8", newline="")
