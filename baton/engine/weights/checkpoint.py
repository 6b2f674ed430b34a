"""What every kind of model file is opened into, and the one place that checks its tensors against what a decoder asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

import torch

from baton.engine.errors import CorruptModel, UnsupportedModel
from baton.engine.kernels.interface import Dense, Weight
from baton.engine.models.spec import ModelSpec
from baton.engine.models.tensors import to_dense

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all, after each tensor."""


@dataclass(frozen=True, slots=True)
class TextSide:
    """Tokenizer, template and end tokens, as ModelCard carries them."""

    tokenizer_json: str
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    eos_ids: tuple[int, ...]
    special_ids: tuple[int, ...]
    add_bos: bool


class Checkpoint(Protocol):
    """An opened model. Tensors go by their Hugging Face names whatever the file calls them."""

    @property
    def where(self) -> str:
        """The path, for messages."""
        ...

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def text(self) -> TextSide: ...

    @property
    def quantisation(self) -> str:
        """The number formats of the stored tensors, sorted and joined by "+"."""
        ...

    def names(self) -> Collection[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def num_bytes(self, name: str) -> int: ...

    def read(self, name: str) -> Weight:
        """One tensor in the file's own numbers. It may lie on the mapped file: whoever keeps it copies it."""
        ...

    def digest(self) -> str:
        """blake3 of the stored weights."""
        ...


class CheckedTensors:
    """A TensorSource over a checkpoint: shapes are checked, bytes counted, and at the end nothing may be left over."""

    def __init__(self, checkpoint: Checkpoint, progress: Progress | None = None):
        self._checkpoint = checkpoint
        self._progress = progress
        self._unread = set(checkpoint.names())
        self._total = sum(checkpoint.num_bytes(name) for name in self._unread)
        self._done = 0

    def matrix(self, name: str, rows: int, columns: int) -> Weight:
        return self._read(name, (rows, columns))

    def vector(self, name: str, size: int) -> torch.Tensor:
        weight = self._read(name, (size,))
        values = weight.data if isinstance(weight, Dense) else to_dense(weight)
        return values.to(torch.float32, copy=True)

    def finish(self) -> None:
        """Raises UnsupportedModel for a tensor that no one asked for: the model would do more than this decoder does."""
        if self._unread:
            first, *others = sorted(self._unread)
            more = f" (and {len(others)} more)" if others else ""
            raise UnsupportedModel(f"{self._checkpoint.where}: tensor {first}{more} is not part of this architecture as served")

    def _read(self, name: str, shape: tuple[int, ...]) -> Weight:
        if name not in self._unread:
            raise CorruptModel(f"{self._checkpoint.where}: tensor {name} is missing")
        found = self._checkpoint.shape(name)
        if found != shape:
            raise CorruptModel(f"{self._checkpoint.where}: tensor {name} has shape {list(found)}, not {list(shape)}")
        self._unread.remove(name)
        weight = self._checkpoint.read(name)
        self._done += self._checkpoint.num_bytes(name)
        if self._progress:
            self._progress(self._done, self._total)
        return weight
