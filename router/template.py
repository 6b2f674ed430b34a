"""A model's chat template: messages in, the text of the prompt out, in Jinja's immutable sandbox with caps on time and size."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn, cast

from jinja2 import Environment, TemplateError, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import pass_context

from baton.wire.errors import Internal, InvalidRequest
from baton.wire.types import ModelCard

WATCH = "_baton_watch"
"""Name of the context variable that holds a rendering's watch."""

Message = Mapping[str, Any]


class ChatTemplate:
    """One model's template, compiled once. The template comes from the model's files, never from a request."""

    def __init__(self, card: ModelCard, max_s: float = 1.0, max_bytes: int = 2 << 20):
        self._names = {"bos_token": card.bos_token or "", "eos_token": card.eos_token or ""}
        self._max_s, self._max_bytes = max_s, max_bytes
        self._template = _compile(card.chat_template) if card.chat_template else None

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt's text, up to where the assistant answers. Raises InvalidRequest, as the template does or over a cap."""
        if self._template is None:
            raise InvalidRequest("This model has no chat template; use /v1/completions.", param="messages")
        watch = Watch(self._max_s, self._max_bytes)
        names = {**self._names, WATCH: watch, "messages": messages, "add_generation_prompt": True}
        try:
            return watch.joined(self._template.generate(names | {"tools": None, "documents": None}))
        except (TemplateError, RecursionError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise InvalidRequest(f"The model's chat template refused the messages: {error}", param="messages") from error


class Watch:
    """Keeps one rendering within its caps: asked at every turn of a loop and every piece of output."""

    def __init__(self, max_s: float, max_bytes: int):
        self._max_s, self._max_bytes = max_s, max_bytes
        self._until = time.monotonic() + max_s

    def joined(self, pieces: Iterable[str]) -> str:
        """The whole output. Raises InvalidRequest over either cap."""
        taken, num_bytes = [], 0
        for piece in self.each(pieces):
            num_bytes += len(piece.encode())
            if num_bytes > self._max_bytes:
                raise InvalidRequest(f"The chat renders to more than {self._max_bytes} bytes; shorten it.", param="messages")
            taken.append(piece)
        return "".join(taken)

    def each(self, items: Iterable[Any]) -> Iterator[Any]:
        """`items`, as long as there is time. Raises InvalidRequest after it."""
        for item in items:
            if time.monotonic() > self._until:
                raise InvalidRequest(f"Rendering the chat took longer than {self._max_s:g} s; shorten it.", param="messages")
            yield item


class GenerationTag(Extension):
    """`{% generation %}` marks the assistant's part for training; here its body is rendered as it is."""

    def __init__(self, environment: Environment):
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@pass_context
def _watched(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    return cast(Watch, context.resolve(WATCH)).each(items)


def _compile(source: str) -> Any:
    """The template with every loop watched. Raises Internal: the model's own file is at fault, not a request."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, LoopControlExtension]
    )
    environment.filters |= {"tojson": _to_json, "watched": _watched}
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    try:
        tree = environment.parse(source)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = nodes.Filter(loop.iter, "watched", [], [], None, None)
        return environment.template_class.from_code(environment, environment.compile(tree), environment.make_globals(None))
    except TemplateError as error:
        raise Internal(f"The model's chat template cannot be compiled: {error}") from error


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(style: str) -> str:
    return datetime.now().strftime(style)  # the server's local date, as templates expect


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as templates for tools expect it: not escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
