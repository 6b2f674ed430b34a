"""A Hugging Face directory: `config.json`, safetensors in one file or in shards with an index, and a tokenizer."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from safetensors import SafetensorError, safe_open

from baton.engine.errors import CorruptModel, ModelNotFound, UnsupportedModel
from baton.engine.kernels.interface import Dense, Weight
from baton.engine.weights.checkpoint import TextSide
from baton.engine.weights.fields import read_json
from baton.engine.weights.hf_config import read_spec
from baton.engine.weights.hf_text import read_text

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


class HfCheckpoint:
    """Opens every shard at once; the library checks each header against its file's length."""

    def __init__(self, directory: Path):
        self.where = str(directory)
        self._directory = directory
        self._config = read_json(directory / "config.json")
        self.spec = read_spec(str(directory / "config.json"), self._config)
        self._shards = {path: _open(path) for path in _shard_paths(directory)}
        self._owner = self._index_tensors()
        self._formats = {name: str(self._slice(name).get_dtype()) for name in self._owner}
        for name, kind in self._formats.items():
            if kind not in _ITEM_BYTES:
                raise UnsupportedModel(f"{self.where}: tensor {name} is of type {kind}; served are {', '.join(_ITEM_BYTES)}")

    @cached_property
    def text(self) -> TextSide:
        return read_text(self._directory, self._config)

    @property
    def quantisation(self) -> str:
        return "+".join(sorted(set(self._formats.values())))

    def names(self) -> Collection[str]:
        return self._owner.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def num_bytes(self, name: str) -> int:
        size = _ITEM_BYTES[self._formats[name]]
        for extent in self.shape(name):
            size *= extent
        return size

    def read(self, name: str) -> Weight:
        tensor: torch.Tensor = self._shards[self._owner[name]].get_tensor(name)
        return Dense(tensor)

    def digest(self) -> str:
        """Over the shards in the order of their names."""
        total = blake3(max_threads=blake3.AUTO)
        for path in sorted(self._shards):
            total.update_mmap(path)
        return total.hexdigest()

    def _slice(self, name: str) -> Any:
        return self._shards[self._owner[name]].get_slice(name)

    def _index_tensors(self) -> dict[str, Path]:
        """Which shard holds which tensor, without those that say nothing new (a tied head, tables that rope computes)."""
        owner: dict[str, Path] = {}
        for path, shard in self._shards.items():
            names: list[str] = shard.keys()
            for name in names:
                if name in owner:
                    raise CorruptModel(f"{path}: tensor {name} is in {owner[name].name} too")
                if not (name.endswith("rotary_emb.inv_freq") or (self.spec.tied and name == "lm_head.weight")):
                    owner[name] = path
        return owner


def _shard_paths(directory: Path) -> list[Path]:
    index = directory / INDEX
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CorruptModel(f"{index}: field weight_map is missing")
        return [_shard_path(index, name) for name in sorted({str(name) for name in weight_map.values()})]
    if (directory / SINGLE).is_file():
        return [directory / SINGLE]
    raise ModelNotFound(f"{directory}: neither {SINGLE} nor {INDEX}; pickled weights are not read, convert them to safetensors")


def _shard_path(index: Path, name: str) -> Path:
    """A shard named by the index: a plain file name beside it, nothing that leads elsewhere."""
    if name != Path(name).name or not name.endswith(".safetensors"):
        raise CorruptModel(f"{index}: shard {name!r} is not the plain name of a safetensors file")
    path = index.parent / name
    if not path.is_file():
        raise ModelNotFound(f"{index}: shard {name} is missing")
    return path


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise CorruptModel(f"{path}: {error}") from error
