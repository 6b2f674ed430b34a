"""The `baton` command. Each sub-command imports what it needs when it runs, so that `--help` is quick and needs no torch."""

from __future__ import annotations

from typing import Annotated

import typer

from baton.cli.bench import app as bench
from baton.cli.options import Given, with_options
from baton.cluster.config import RouterConfig, ServeConfig, WorkerConfig
from baton.wire.types import Role

app = typer.Typer(
    name="baton",
    help="Serve large language models with prefill and decode on separate workers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command("serve")
@with_options(ServeConfig, argument="model")
def serve(flags: Given, config: str | None) -> None:
    """Serve MODEL on this machine: a router, prefill workers and decode workers."""
    from baton.cli.serve import main

    raise typer.Exit(main(flags, config))


@app.command("router")
@with_options(RouterConfig)
def router(flags: Given, config: str | None) -> None:
    """Run the router alone, in front of the workers it is told of."""
    from baton.cli.roles import run_router

    raise typer.Exit(run_router(flags, config))


@app.command("prefill")
@with_options(WorkerConfig, argument="model", without=("role",))
def prefill(flags: Given, config: str | None) -> None:
    """Run one prefill worker: it reads whole prompts and hands their KV cache to decode workers."""
    from baton.cli.roles import run_worker

    raise typer.Exit(run_worker(Role.PREFILL, flags, config))


@app.command("decode")
@with_options(WorkerConfig, argument="model", without=("role",))
def decode(flags: Given, config: str | None) -> None:
    """Run one decode worker: it takes over KV caches and writes answers token by token."""
    from baton.cli.roles import run_worker

    raise typer.Exit(run_worker(Role.DECODE, flags, config))


@app.command("chat")
def chat(
    prompt: Annotated[str | None, typer.Argument(help="Say this once and leave; default: talk until Ctrl-D.")] = None,
    url: Annotated[str, typer.Option(help="Address of a running server.", envvar="BATON_URL")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(help="Model to talk to; default: the first one served.")] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer in tokens.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature; default: the server's.")] = None,
) -> None:
    """Talk to a running server."""
    from baton.cli.chat import ChatOptions, main

    raise typer.Exit(main(ChatOptions(url, model, system, max_tokens, temperature), prompt))


app.add_typer(bench, name="bench")


@app.command("version")
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    typer.echo(f"baton {installed('baton-serve')}")


if __name__ == "__main__":
    app()
