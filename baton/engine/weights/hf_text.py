"""The text side of a Hugging Face directory: its tokenizer as it is, its template, its end tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from baton.engine.errors import CorruptModel, ModelNotFound
from baton.engine.weights.checkpoint import TextSide
from baton.engine.weights.fields import read_json


def read_text(directory: Path, config: dict[str, Any]) -> TextSide:
    """Raises ModelError if there is no `tokenizer.json`, or a file contradicts itself."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ModelNotFound(f"{directory}: no tokenizer.json; save the model's fast tokenizer there")
    tokenizer = read_json(path)
    settings = {**read_json(directory / "special_tokens_map.json"), **read_json(directory / "tokenizer_config.json")}
    bos_token, eos_token = _token(settings.get("bos_token")), _token(settings.get("eos_token"))
    ids = _ids(path, tokenizer)
    return TextSide(
        tokenizer_json=path.read_text(encoding="utf-8"),
        chat_template=_chat_template(directory, settings),
        bos_token=bos_token,
        eos_token=eos_token,
        eos_ids=_eos_ids(directory, config) or tuple(ids[token] for token in (eos_token,) if token in ids),
        special_ids=tuple(sorted(token["id"] for token in tokenizer.get("added_tokens") or () if token.get("special"))),
        add_bos=_adds_bos(tokenizer, settings, bos_token),
    )


def _token(value: Any) -> str | None:
    """A token as a plain string, or as an object with its content."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def _ids(path: Path, tokenizer: dict[str, Any]) -> dict[str, int]:
    vocab = (tokenizer.get("model") or {}).get("vocab")
    if not vocab:
        raise CorruptModel(f"{path}: field model.vocab is missing")
    added = {token["content"]: token["id"] for token in tokenizer.get("added_tokens") or ()}
    return {**vocab, **added} if isinstance(vocab, dict) else added


def _chat_template(directory: Path, settings: dict[str, Any]) -> str | None:
    """A file of its own wins over the settings, where several may be named, "default" among them."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        template = {entry.get("name"): entry.get("template") for entry in template}.get("default")
    return template if isinstance(template, str) else None


def _eos_ids(directory: Path, config: dict[str, Any]) -> tuple[int, ...]:
    for source in (read_json(directory / "generation_config.json"), config):
        given = source.get("eos_token_id")
        ids = given if isinstance(given, list) else [given]
        if ids and all(isinstance(token, int) for token in ids):
            return tuple(dict.fromkeys(ids))
    return ()


def _adds_bos(tokenizer: dict[str, Any], settings: dict[str, Any], bos_token: str | None) -> bool:
    """What encoding plain text does: `add_bos_token` where it is said, else the post-processor's template."""
    if bos_token is None:
        return False
    if isinstance(said := settings.get("add_bos_token"), bool):
        return said
    processor = tokenizer.get("post_processor") or {}
    steps = processor.get("processors", [processor])
    starts = [step["single"][0] for step in steps if step.get("type") == "TemplateProcessing" and step.get("single")]
    return any((start.get("SpecialToken") or {}).get("id") == bos_token for start in starts)
