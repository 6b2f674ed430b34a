"""A scripted core behind the doors: the next token depends on the last one only, as in the `scripted` checkpoint."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from itertools import pairwise

import uvicorn
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as HfTokenizer

from baton.cluster.config import Limits, RouterConfig
from baton.wire.errors import BatonError
from baton.wire.types import ModelCard, Token
from router.http.app import create_app
from router.http.protocol import HttpProtocol
from router.request import GenerateRequest, Pieces, TextMaker, TimelineView, Usage

SPECIAL = ["<s>", "</s>", "<|eot|>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>"]
BOS, END, SECOND_END = 256, 257, 258
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@cache
def tokenizer_json() -> str:
    """Token id == byte value, then the control tokens."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    symbols = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(rest)}
    tokenizer = HfTokenizer(models.BPE(vocab={symbols[byte]: byte for byte in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    return tokenizer.to_str()


def scripted_card(**overrides: object) -> ModelCard:
    fields: dict[str, object] = {
        "name": "scripted",
        "tokenizer_json": tokenizer_json(),
        "chat_template": TEMPLATE,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "eos_ids": (END, SECOND_END),
        "special_ids": tuple(range(BOS, BOS + len(SPECIAL))),
        "add_bos": True,
        "vocab_size": BOS + len(SPECIAL),
        "max_model_len": 4096,
    }
    return ModelCard(**(fields | overrides))  # type: ignore[arg-type]


@cache
def successors() -> Mapping[int, int]:
    following = dict.fromkeys(range(BOS + len(SPECIAL)), ord("."))
    scripts = [[*script.encode(), END] for script in ("Abcdefghij", "#🌶辣!", "\nOK.", "$")]
    for script in [*scripts, [*b"01234567890"], [ord("%"), SECOND_END]]:
        following.update(pairwise(script))
    return following


class FakeGeneration:
    """Pushes scripted tokens through each choice's text, one token of every unfinished choice a step."""

    def __init__(self, service: FakeService, request: GenerateRequest, make_text: Callable[[int], TextMaker]):
        self._service = service
        self._request = request
        self._texts = {choice: make_text(choice) for choice in range(request.n)}
        self._num_tokens = 0

    async def __aiter__(self) -> AsyncIterator[Pieces]:
        last = dict.fromkeys(self._texts, self._request.prompt_ids[-1])
        for step in range(self._request.params.max_tokens):
            await self._service.before_step(step)
            pieces: Pieces = []
            for choice in list(last):
                last[choice] = successors()[last[choice]]
                piece = self._texts[choice].push(self._token(last[choice]))
                self._num_tokens += 1
                pieces.append((choice, piece))
                if piece.finish:
                    del last[choice]
            yield pieces
            if not last:
                return

    def _token(self, token_id: int) -> Token:
        num = self._request.params.num_logprobs
        if num is None:
            return Token(token_id)
        rivals = ((token_id, -0.25), (ord("x"), -1.5), (ord("y"), -2.5))
        return Token(token_id, -0.25, rivals[:num])

    @property
    def usage(self) -> Usage:
        return Usage(len(self._request.prompt_ids), self._num_tokens, 1)

    @property
    def timeline(self) -> TimelineView:
        return TimelineView((("queue", 0.25), ("prefill", 0.5)), 0.75, 0.5, 2.0, 4096, "grpc", 1)


class FakeService:
    """The core. `gate`: steps wait for it. `fail_at`, `error`: what is raised before that step."""

    def __init__(self, card: ModelCard | None = None, fail_at: int = -1, error: BatonError | None = None):
        self.cards = {"scripted": card or scripted_card()}
        self.gate = asyncio.Event()
        self.gate.set()
        self.reason: str | None = None
        self.requests: list[GenerateRequest] = []
        self.running = 0
        self.ended = asyncio.Condition()
        self.started = asyncio.Event()
        self.num_steps = 0
        self._fail_at, self._error = fail_at, error

    @asynccontextmanager
    async def generate(self, request: GenerateRequest, make_text: Callable[[int], TextMaker]) -> AsyncIterator[FakeGeneration]:
        self.requests.append(request)
        self.running += 1
        self.started.set()
        try:
            yield FakeGeneration(self, request, make_text)
        finally:
            self.running -= 1
            async with self.ended:
                self.ended.notify_all()

    async def before_step(self, step: int) -> None:
        self.num_steps += 1
        if step == self._fail_at and self._error is not None:
            raise self._error
        await asyncio.sleep(0)
        await self.gate.wait()

    async def idle(self) -> None:
        """Returns when nothing runs."""
        async with asyncio.timeout(30), self.ended:
            await self.ended.wait_for(lambda: self.running == 0)

    def models(self) -> Mapping[str, ModelCard]:
        return self.cards

    def ready(self) -> str | None:
        return self.reason

    def metrics(self) -> bytes:
        return b"# HELP up Whether it runs.\n"


@asynccontextmanager
async def serve_http(service: FakeService, **limits: int) -> AsyncIterator[str]:
    """The HTTP door behind a real server on a free port; yields its base URL."""
    app = create_app(service, RouterConfig(limits=Limits(**limits)))
    server = uvicorn.Server(uvicorn.Config(app, http=HttpProtocol, ws="none", lifespan="off", log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve([listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


def events_of(body: str) -> list[str]:
    """The data of each server-sent event."""
    assert body.endswith("\n\n")
    lines = body.removesuffix("\n\n").split("\n\n")
    assert all(line.startswith("data: ") for line in lines)
    return [line.removeprefix("data: ") for line in lines]
