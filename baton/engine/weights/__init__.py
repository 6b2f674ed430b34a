"""Model files: opened, checked, and made into a decoder, a card and an identity."""

from baton.engine.weights.backend import KV_DTYPES
from baton.engine.weights.bundle import bundled
from baton.engine.weights.load import LoadedModel, load_model

__all__ = ["KV_DTYPES", "LoadedModel", "bundled", "load_model"]
