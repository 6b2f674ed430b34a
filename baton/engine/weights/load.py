"""From a path to everything that a worker needs of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from blake3 import blake3

from baton.engine.errors import CorruptModel, ModelError, ModelNotFound, UnsupportedModel
from baton.engine.kernels.interface import Kernels
from baton.engine.models import ModelSpec
from baton.engine.weights.backend import AnyDecoder, decoder_for
from baton.engine.weights.checkpoint import CheckedTensors, Checkpoint, Progress, TextSide
from baton.engine.weights.gguf import GgufCheckpoint
from baton.engine.weights.hf import HfCheckpoint
from baton.wire.types import Identity, ModelCard


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A decoder, what routers need to know of it, and what peers must agree on."""

    model: AnyDecoder
    card: ModelCard
    identity: Identity


def load_model(
    path: str | Path,
    *,
    dtype: str = "float32",
    max_model_len: int | None = None,
    served_name: str | None = None,
    kernels: Kernels | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Loads a Hugging Face directory or a GGUF file. `progress(bytes_done, bytes_total)` is called after each tensor.

    Raises ModelError naming the file and the field, tensor or kind that is wrong or not served.
    """
    checkpoint = _open(Path(path))
    spec = _served_spec(checkpoint, max_model_len)
    text = _checked(checkpoint, checkpoint.text)
    tensors = CheckedTensors(checkpoint, progress)
    decoder = decoder_for(spec, tensors, dtype, kernels, "Q" in checkpoint.quantisation)
    tensors.finish()
    name = served_name or Path(path).resolve().name.removesuffix(".gguf")
    return LoadedModel(decoder, _card(name, spec, text), _identity(checkpoint, decoder, text))


def _open(path: Path) -> Checkpoint:
    if path.is_dir() and (path / "config.json").is_file():
        return HfCheckpoint(path)
    if path.is_file() and path.suffix == ".gguf":
        return GgufCheckpoint(path)
    raise ModelNotFound(f"{path}: neither a directory with config.json nor a .gguf file")


def _served_spec(checkpoint: Checkpoint, max_model_len: int | None) -> ModelSpec:
    spec = checkpoint.spec
    if problem := spec.problem():
        raise UnsupportedModel(f"{checkpoint.where}: {problem}")
    if max_model_len is None:
        return spec
    if not 1 <= max_model_len <= spec.max_model_len:
        raise ModelError(f"max_model_len {max_model_len} is not between 1 and the model's own {spec.max_model_len}")
    return replace(spec, max_model_len=max_model_len)


def _checked(checkpoint: Checkpoint, text: TextSide) -> TextSide:
    for token in text.eos_ids:
        if not 0 <= token < checkpoint.spec.vocab_size:
            raise CorruptModel(
                f"{checkpoint.where}: end token {token} is not within the vocabulary of {checkpoint.spec.vocab_size}"
            )
    return text


def _card(name: str, spec: ModelSpec, text: TextSide) -> ModelCard:
    return ModelCard(
        name=name,
        tokenizer_json=text.tokenizer_json,
        chat_template=text.chat_template,
        bos_token=text.bos_token,
        eos_token=text.eos_token,
        eos_ids=text.eos_ids,
        special_ids=text.special_ids,
        add_bos=text.add_bos,
        vocab_size=spec.vocab_size,
        max_model_len=spec.max_model_len,
    )


def _identity(checkpoint: Checkpoint, decoder: AnyDecoder, text: TextSide) -> Identity:
    return Identity(
        architecture=decoder.spec.describe(),
        weights_digest=checkpoint.digest(),
        quantisation=checkpoint.quantisation,
        recipe=decoder.recipe,
        rope=str(decoder.spec.rope),
        tokenizer_digest=_digest(text.tokenizer_json),
        template_digest=_digest(text.chat_template or ""),
        max_model_len=decoder.spec.max_model_len,
    )


def _digest(text: str) -> str:
    return blake3(text.encode()).hexdigest()
