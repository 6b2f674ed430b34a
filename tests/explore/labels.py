"""Messages in few words, for the story of a violation."""

from __future__ import annotations

from typing import Any

_SHOWN = (
    "lease",
    "epoch",
    "sequence",
    "choice",
    "index",
    "num_cached",
    "output_ids",
    "ok",
    "reason",
    "retryable",
    "num_tokens",
)


def short(message: Any) -> str:
    parts = []
    for name in _SHOWN:
        value = getattr(message, name, None)
        if value is not None and value != () and value != "":
            parts.append(f"{name}={value.decode() if isinstance(value, bytes) else value}")
    tokens = getattr(message, "tokens", ())
    ids = f" ids={[token.id for token in tokens]}" if tokens else ""
    return f"{type(message).__name__}({', '.join(parts)}{ids})"
