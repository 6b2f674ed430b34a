"""The one validator of both doors: a request's fields in, complete GenerateRequests out, or InvalidRequest naming the field."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf

from baton.cluster.config import Limits
from baton.wire.errors import ContextOverflow, InvalidRequest, Unavailable, UnknownModel
from baton.wire.types import ModelCard
from router import schema
from router.model_text import ModelText, ModelTexts
from router.request import GenerateRequest, Service
from router.sampling import Asked, check_ids, read_asked
from router.schema import Fields, invalid
from router.text import ChoiceText


@dataclass(frozen=True, slots=True)
class RawRequest:
    """What a door read, before any check: OpenAI's field names, values as JSON has them.

    `default_max_tokens` None: what the context leaves.
    """

    fields: Mapping[str, object]
    chat: bool
    default_max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A valid request: one GenerateRequest per prompt, and how the client wants its answer."""

    requests: tuple[GenerateRequest, ...]
    text: ModelText
    stream: bool
    include_usage: bool
    timeline: bool

    @property
    def first(self) -> GenerateRequest:
        """Speaks for all: the requests differ in their prompts alone."""
        return self.requests[0]

    def make_text(self, request: GenerateRequest) -> Callable[[int], ChoiceText]:
        """Gives each choice of `request` a text of its own."""
        tokenizer = self.text.tokenizer
        return lambda choice: ChoiceText(tokenizer, request.params, request.stop, request.include_stop, request.skip_special)


class Validator:
    """Checks requests against the limits and the served models, and tokenises them once.

    Both doors of a process share one, so that the same fault has the same text at either and each tokenizer is built once.
    """

    def __init__(self, service: Service, limits: Limits, max_deadline_s: float = 600.0):
        self._service = service
        self._limits = limits
        self._max_deadline_s = max_deadline_s
        self._texts = ModelTexts(limits)

    async def prepare(self, raw: RawRequest) -> Prepared:
        """Raises InvalidRequest and its kinds; Unavailable while no model is known; Internal for an unusable model."""
        schema.check_names(raw.fields, schema.CHAT if raw.chat else schema.COMPLETION)
        fields = Fields(raw.fields)
        model, card = self._model(fields.text("model"))
        asked = read_asked(fields, card, self._limits, raw.chat)
        stream, timeline = fields.boolean("stream"), fields.boolean("timeline")
        include_usage = _include_usage(fields, stream)
        deadline_s = fields.number("deadline_s", 0, inf, 0) or self._max_deadline_s
        text = await self._texts.get(card)
        prompts = await self._prompts(fields, card, text, asked.n, raw.chat)
        limits = [_max_tokens(card, len(ids), asked, raw) for ids in prompts]
        requests = _requests(model, asked, min(deadline_s, self._max_deadline_s), prompts, limits)
        return Prepared(requests, text, stream, include_usage, timeline)

    def _model(self, name: str) -> tuple[str, ModelCard]:
        """The named model, or the only one."""
        models = self._service.models()
        if not models:
            raise Unavailable("No model is served yet: no worker is ready.", retry_after_s=1.0)
        if name and name not in models:
            raise UnknownModel(f"The model `{schema.shown(name)}` does not exist; served: {', '.join(models)}.", param="model")
        if not name and len(models) > 1:
            raise InvalidRequest(f"`model` must be one of {', '.join(models)}.", param="model")
        return (name, models[name]) if name else next(iter(models.items()))

    async def _prompts(self, fields: Fields, card: ModelCard, text: ModelText, n: int, chat: bool) -> list[tuple[int, ...]]:
        if chat:
            return [tuple(await text.encode_chat(fields.get("messages")))]
        prompts = _prompt_list(fields.get("prompt"), self._limits.num_prompts)
        if len(prompts) * n > self._limits.num_choices:
            raise invalid("n", f"times the number of prompts must be at most {self._limits.num_choices}", len(prompts) * n)
        return [tuple(await _prompt_ids(prompt, card, text)) for prompt in prompts]


def _requests(
    model: str, asked: Asked, deadline_s: float, prompts: list[tuple[int, ...]], limits: list[int]
) -> tuple[GenerateRequest, ...]:
    name = uuid.uuid4().hex
    return tuple(
        GenerateRequest(
            request_id=f"{name}-{i}" if i else name,
            model=model,
            prompt_ids=ids,
            params=replace(asked.params, max_tokens=max_tokens),
            n=asked.n,
            stop=asked.stop,
            include_stop=asked.include_stop,
            skip_special=asked.skip_special,
            seeded=asked.seeded,
            deadline_s=deadline_s,
        )
        for i, (ids, max_tokens) in enumerate(zip(prompts, limits, strict=True))
    )


def _prompt_list(value: object, num_prompts: int) -> list[object]:
    """The prompts of a completion, each a string or a list of ids."""
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        prompts: list[object] = value
    else:
        prompts = [value]
    if len(prompts) > num_prompts:
        raise invalid("prompt", f"must be at most {num_prompts} prompts", value)
    for prompt in prompts:
        if not isinstance(prompt, str | list) or not prompt:
            raise invalid("prompt", "must be text or token ids, or a list of either, and none of them empty", value)
    return prompts


async def _prompt_ids(prompt: object, card: ModelCard, text: ModelText) -> list[int]:
    if isinstance(prompt, str):
        return await text.encode(prompt)
    ids = prompt if isinstance(prompt, list) else []
    if len(ids) < card.max_model_len:  # a longer one is refused for its length, without a look at each id
        check_ids("prompt", ids, card)
    return ids


def _max_tokens(card: ModelCard, prompt_len: int, asked: Asked, raw: RawRequest) -> int:
    """Output tokens of one choice. Raises ContextOverflow naming the numbers, and InvalidRequest if min_tokens is above it."""
    param = "messages" if raw.chat else "prompt"
    context, room = card.max_model_len, card.max_model_len - prompt_len
    head = f"This model's maximum context length is {context} tokens, but "
    if not prompt_len:
        raise InvalidRequest(f"`{param}` has no tokens; say something.", param=param)
    if room <= 0:
        rule = "; shorten it, one token must have room." if room == 0 else "; shorten it."
        raise ContextOverflow(f"{head}the prompt has {prompt_len} tokens{rule}", param=param)
    if asked.max_tokens is not None and asked.max_tokens > room:
        total = f"the prompt's {prompt_len} tokens and max_tokens {asked.max_tokens} are {prompt_len + asked.max_tokens}"
        raise ContextOverflow(f"{head}{total}; ask for at most {room}.", param="max_tokens")
    max_tokens = min(asked.max_tokens or raw.default_max_tokens or room, room)
    if asked.params.min_tokens > max_tokens:
        raise invalid("min_tokens", f"must be at most max_tokens, {max_tokens} here", asked.params.min_tokens)
    return max_tokens


def _include_usage(fields: Fields, stream: bool) -> bool:
    options = fields.inner("stream_options")
    if fields.has("stream_options") and not stream:
        raise InvalidRequest("`stream_options` needs `stream` to be true.", param="stream_options")
    for name in options.names():
        if name != "include_usage" and options.get(name) not in (None, False):
            param = f"stream_options.{schema.shown(name)}"
            raise InvalidRequest(f"`{param}` is not supported; leave it out.", param=param)
    return options.boolean("include_usage")
