"""The decoder and the description that configures it."""

from baton.engine.models.decoder import Decoder
from baton.engine.models.spec import ModelSpec, Rope

__all__ = ["Decoder", "ModelSpec", "Rope"]
