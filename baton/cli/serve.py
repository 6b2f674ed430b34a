"""`baton serve`: starts a cluster on this machine, shows how far it is, then how to use it."""

from __future__ import annotations

import asyncio
import os
import sys

from baton.cli.options import Given
from baton.cli.progress import open_view
from baton.cluster.config import ServeConfig
from baton.cluster.launch import LocalLauncher
from baton.cluster.lifecycle import Shutdown, fail, run
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
    """Runs the cluster until `shutdown`. Raises StartupError; whatever happens, no process is left."""
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
        await cluster.stop()


async def _live(cluster: LocalCluster) -> None:
    doors = await cluster.start()
    print(usage(doors), flush=True)
    await cluster.keep()


def usage(doors: Doors) -> str:
    """What to do now, as lines that work when pasted."""
    url = f"http://{doors.http}"
    body = """{"messages": [{"role": "user", "content": "What is the capital of France?"}]}"""
    code = (
        f"from openai import OpenAI; print(OpenAI(base_url='{url}/v1', api_key='none').chat.completions.create("
        "model='', messages=[{'role': 'user', 'content': 'What is the capital of France?'}]).choices[0].message.content)"
    )
    return f"""
Baton is ready: OpenAI-compatible HTTP at {url}/v1, gRPC at {doors.grpc}. Ctrl-C stops it.

  curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'

  {sys.executable if os.path.isabs(sys.executable) else "python3"} -c "{code}"
"""
