"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

import time

from fastapi import APIRouter

from baton.wire.errors import UnknownModel
from baton.wire.types import ModelCard
from router.request import Service
from router.schema import shown


def model_routes(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/v1/models", tags=["models"])
    created = int(time.time())

    @routes.get("")
    async def list_models() -> dict[str, object]:
        """The models served here."""
        return {"object": "list", "data": [_entry(name, card, created) for name, card in service.models().items()]}

    @routes.get("/{name:path}")
    async def get_model(name: str) -> dict[str, object]:
        """One model."""
        card = service.models().get(name)
        if card is None:
            raise UnknownModel(f"The model `{shown(name)}` does not exist.", param="model")
        return _entry(name, card, created)

    return routes


def _entry(name: str, card: ModelCard, created: int) -> dict[str, object]:
    return {"id": name, "object": "model", "created": created, "owned_by": "baton", "max_model_len": card.max_model_len}
