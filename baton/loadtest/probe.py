"""Finds out what an HTTP server is called and what it can count, before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from baton.loadtest.client_http import HttpDriver, HttpTarget
from baton.loadtest.errors import BenchError, RequestFailed
from baton.loadtest.record import Answer, Request


async def open_http(url: str, model: str, chat: bool, api_key: str, ignore_eos: bool) -> tuple[HttpDriver, Mapping[str, str]]:
    """A driver that asks for exact token counts if the server has them, and facts about the server. Raises BenchError."""
    target = HttpTarget(url, model, chat, api_key, ignore_eos)
    if not model:
        target = replace(target, model=await _first_model(target))
    exact = replace(target, exact_usage=True)
    if await _takes(exact):
        target = exact
    path = "chat/completions" if chat else "completions"
    facts = {"server": url, "door": f"HTTP, /v1/{path}", "model": target.model}
    return HttpDriver(target), facts | {"end token": "ignored" if ignore_eos else "ends an answer"}


async def _first_model(target: HttpTarget) -> str:
    driver = HttpDriver(target)
    try:
        models = await driver.models()
    except RequestFailed as error:
        raise BenchError(f"cannot list the models at {target.url}: {error}; is a server running there?") from error
    finally:
        await driver.close()
    if not models:
        raise BenchError(f"{target.url} serves no model yet")
    return models[0]


async def _takes(target: HttpTarget) -> bool:
    """Whether the server answers a request of this form. What is wrong for other reasons shows at the first request."""
    driver = HttpDriver(target)
    try:
        await driver.generate(Request(0, "time year people", 3, 1), Answer([]))
    except RequestFailed:
        return False
    finally:
        await driver.close()
    return True
