"""`baton serve`: starts a cluster on this machine, shows how far it is, then how to use it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shlex
import sys

from baton.cli.options import Given
from baton.cli.progress import open_view
from baton.cluster.config import ServeConfig
from baton.cluster.launch import LocalLauncher
from baton.cluster.lifecycle import RunError, Shutdown, fail, run
from baton.cluster.local import Doors, LocalCluster
from baton.cluster.sources import ConfigError, load
from baton.cluster.supervise import View


def main(flags: Given, file: str | None) -> int:
    """The exit status of the whole command."""
    try:
        config = load(ServeConfig, flags, file)
    except ConfigError as error:
        fail(str(error), told=False)
        return 2
    with open_view(sys.stderr) as view:
        return run(lambda shutdown: serve(config, view, shutdown), log_level=config.log_level, told=False)


async def serve(config: ServeConfig, view: View, shutdown: Shutdown) -> None:
    """Runs the cluster until `shutdown`. Raises StartupError, RunError; whatever happens, no process is left."""
    cluster = LocalCluster(config, LocalLauncher(), view)
    life = asyncio.create_task(_live(cluster), name="cluster")
    stop = asyncio.create_task(shutdown.wait(), name="shutdown")
    try:
        await asyncio.wait({life, stop}, return_when=asyncio.FIRST_COMPLETED)
        if life.done():
            await life
    finally:
        for task in (life, stop):
            task.cancel()
        await asyncio.gather(life, stop, return_exceptions=True)
        codes = await cluster.stop()
    if failed := [f"{name} ended with exit status {code}" for name, code in codes.items() if code]:
        raise RunError("; ".join(failed))


async def _live(cluster: LocalCluster) -> None:
    doors = await cluster.start()
    print(usage(doors), flush=True)
    await cluster.keep()


QUESTION = "What is the capital of France?"
SHELL_SPECIAL = frozenset('"$`\\!')


def usage(doors: Doors) -> str:
    """What to do now, as lines that work when pasted."""
    url = f"http://{doors.http}"
    message = {"role": "user", "content": QUESTION}
    body = json.dumps({"model": doors.model, "messages": [message], "temperature": 0, "stream": True})
    return f"""
Baton serves {doors.model}: OpenAI-compatible HTTP at {url}/v1, gRPC at {doors.grpc}. Ctrl-C stops it.

  curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' -d {shlex.quote(body)}

  {shlex.quote(sys.executable)} -c {_quoted(_python(url, doors.model))}
"""


def _python(url: str, model: str) -> str:
    """One line of Python: with OpenAI's client where it is installed, else with what every Python has."""
    messages = f"[dict(role='user', content={QUESTION!r})]"
    if importlib.util.find_spec("openai"):
        client = f"from openai import OpenAI; chat = OpenAI(base_url={url + '/v1'!r}, api_key='none').chat"
        answer = f"chat.completions.create(model={model!r}, messages={messages}, temperature=0)"
        return f"{client}; print({answer}.choices[0].message.content)"
    body = f"json.dumps(dict(model={model!r}, messages={messages}, temperature=0)).encode()"
    request = f"r.Request({url + '/v1/chat/completions'!r}, {body}, {{'Content-Type': 'application/json'}})"
    return f"import json, urllib.request as r; print(json.load(r.urlopen({request}))['choices'][0]['message']['content'])"


def _quoted(code: str) -> str:
    """For a shell: in double quotes if that is safe, since the code has single ones."""
    return shlex.quote(code) if SHELL_SPECIAL & set(code) else f'"{code}"'
