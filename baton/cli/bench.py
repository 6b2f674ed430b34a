"""`baton bench`: the options of a load test. What runs it is imported when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="Load-test an OpenAI-compatible server.", invoke_without_command=True, pretty_exceptions_enable=False)

TARGET, LOAD, LENGTHS, OUTPUT = "Server", "Load", "Requests", "Report"


@app.callback()
def bench(
    context: typer.Context,
    url: Annotated[str, typer.Option(help="Address of the server.", rich_help_panel=TARGET)] = "",
    model: Annotated[str, typer.Option(help="Model; default: the first one served.", rich_help_panel=TARGET)] = "",
    chat: Annotated[
        bool, typer.Option("--chat", help="Use chat completions, not completions.", rich_help_panel=TARGET)
    ] = False,
    grpc: Annotated[bool, typer.Option("--grpc", help="Drive Baton's gRPC door at --url.", rich_help_panel=TARGET)] = False,
    api_key: Annotated[
        str, typer.Option(help="Bearer key.", envvar="OPENAI_API_KEY", show_default=False, rich_help_panel=TARGET)
    ] = "",
    ignore_eos: Annotated[
        bool, typer.Option(help="Ask for answers of full length, as vLLM, SGLang and Baton can.", rich_help_panel=TARGET)
    ] = True,
    timeout: Annotated[float, typer.Option(help="Seconds after which a request has failed.", rich_help_panel=TARGET)] = 600.0,
    concurrency: Annotated[
        int | None, typer.Option(help="Closed loop: requests always under way.", rich_help_panel=LOAD)
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Open loop: requests per second.", rich_help_panel=LOAD)] = None,
    sweep: Annotated[str, typer.Option(help="Open loops, one run each, such as 1,2,4,8.", rich_help_panel=LOAD)] = "",
    arrival: Annotated[
        str, typer.Option(help="poisson, gamma, constant or trace; default: poisson, a trace's own.", rich_help_panel=LOAD)
    ] = "",
    burstiness: Annotated[
        float, typer.Option(help="For gamma: 1 is Poisson, above comes in bursts.", rich_help_panel=LOAD)
    ] = 4.0,
    requests: Annotated[int, typer.Option(help="Requests a run.", rich_help_panel=LOAD)] = 100,
    duration: Annotated[float, typer.Option(help="Stop sending after so many seconds; 0: never.", rich_help_panel=LOAD)] = 0.0,
    warmup: Annotated[int, typer.Option(help="Requests before the first run, not counted.", rich_help_panel=LOAD)] = 4,
    seed: Annotated[
        int | None,
        typer.Option(help="Repeats prompts and arrivals (a prefix cache may know them); default: drawn.", rich_help_panel=LOAD),
    ] = None,
    input_len: Annotated[str, typer.Option(help="Tokens of a prompt: 512, or 256:1024.", rich_help_panel=LENGTHS)] = "256",
    output_len: Annotated[str, typer.Option(help="Tokens of an answer: 64, or 16:128.", rich_help_panel=LENGTHS)] = "64",
    prefix_len: Annotated[int, typer.Option(help="Tokens that all prompts begin with.", rich_help_panel=LENGTHS)] = 0,
    ids: Annotated[bool, typer.Option("--ids", help="Send token ids: exact lengths.", rich_help_panel=LENGTHS)] = False,
    trace: Annotated[
        str, typer.Option(help="Replay a trace: Mooncake .jsonl or Azure .csv, also .gz.", rich_help_panel=LENGTHS)
    ] = "",
    skip: Annotated[int, typer.Option(help="Requests of the trace to skip.", rich_help_panel=LENGTHS)] = 0,
    shrink: Annotated[float, typer.Option(help="Divide the trace's lengths.", rich_help_panel=LENGTHS)] = 1.0,
    stretch: Annotated[
        float | None, typer.Option(help="Multiply the trace's times; --rate does it for you.", rich_help_panel=LENGTHS)
    ] = None,
    max_len: Annotated[
        int, typer.Option(help="Leave out what is longer, prompt and answer, once shrunk; 0: nothing.", rich_help_panel=LENGTHS)
    ] = 0,
    slo: Annotated[
        list[str] | None, typer.Option(help="Longest times in ms: ttft:500,itl:50,pause:…,tpot:…,e2e:…", rich_help_panel=OUTPUT)
    ] = None,
    out: Annotated[
        str, typer.Option(help="Write FILE.json, FILE.csv and FILE.html.", metavar="FILE", rich_help_panel=OUTPUT)
    ] = "",
    title: Annotated[str, typer.Option(help="Title of the report.", rich_help_panel=OUTPUT)] = "Load test",
    limits: Annotated[
        bool, typer.Option(help="First measure what the harness can drive (3 s).", rich_help_panel=OUTPUT)
    ] = True,
) -> None:
    """Load-test an OpenAI-compatible server: latencies, throughput and goodput, as a table and as a page."""
    if context.invoked_subcommand is not None:
        return
    from baton.cli.bench_run import main

    raise typer.Exit(main(context.params))


@app.command("compare")
def compare(
    a: Annotated[str, typer.Argument(help="A result, FILE.json of --out.", metavar="A")],
    b: Annotated[str, typer.Argument(help="Another, of the same load.", metavar="B")],
) -> None:
    """Show how two results differ, and how sure that is."""
    from baton.cli.bench_run import main_compare

    raise typer.Exit(main_compare(a, b))
