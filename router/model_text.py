"""What the router needs of a served model to turn requests to ids and ids to text, built once per model card."""

from __future__ import annotations

import asyncio

from baton.cluster.config import Limits
from baton.wire.errors import Internal
from baton.wire.types import ModelCard
from router.messages import fence, read_messages
from router.template import ChatTemplate
from router.tokenizer import Tokenizer

INLINE_CHARS = 1024
"""Text up to this length is encoded on the event loop: it takes about 2 ms of it."""


class ModelText:
    """A model's tokenizer and chat template. Long texts are encoded on a thread, so that nobody's stream waits for them."""

    def __init__(self, card: ModelCard, limits: Limits):
        self.tokenizer = Tokenizer(card)
        self._template = ChatTemplate(card, limits.template_s, limits.template_bytes)

    async def encode(self, text: str) -> list[int]:
        """Ids of plain text, with the model's BOS."""
        if len(text) <= INLINE_CHARS:
            return self.tokenizer.encode(text)
        return await asyncio.to_thread(self.tokenizer.encode, text)

    async def encode_chat(self, value: object) -> list[int]:
        """Ids of a chat's messages as a client sent them. Raises InvalidRequest."""
        messages = read_messages(value)
        num_chars = sum(len(message["content"]) for message in messages)
        fenced, mark = fence(messages, self.tokenizer)
        if mark is None and num_chars <= INLINE_CHARS:
            return self._encode_rendered(fenced, None)
        return await asyncio.to_thread(self._encode_rendered, fenced, mark)

    def _encode_rendered(self, messages: list[dict[str, object]], mark: str | None) -> list[int]:
        return self.tokenizer.encode_chat(self._template.render(messages), mark)


class ModelTexts:
    """The ModelText of each served model, by name; built again when a name's card changes."""

    def __init__(self, limits: Limits):
        self._limits = limits
        self._built: dict[str, tuple[ModelCard, ModelText]] = {}
        self._building = asyncio.Lock()

    async def get(self, card: ModelCard) -> ModelText:
        """Raises Internal if the model's tokenizer or template cannot be used."""
        built = self._built.get(card.name)
        if built is not None and built[0] == card:
            return built[1]
        async with self._building:
            built = self._built.get(card.name)
            if built is None or built[0] != card:
                built = self._built[card.name] = card, await asyncio.to_thread(self._build, card)
            return built[1]

    def _build(self, card: ModelCard) -> ModelText:
        try:
            return ModelText(card, self._limits)
        except ValueError as error:
            raise Internal(f"The tokenizer of model {card.name} cannot be used: {error}") from error
