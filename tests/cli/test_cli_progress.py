"""What a starting cluster shows, on a terminal and in a log."""

import io

from rich.console import Console
from rich.progress import Progress

from baton.cli.progress import TerminalView, open_view


def play(view):
    view.loading("decode-0", 0, 2_000_000)
    view.loading("decode-0", 1_000_000, 2_000_000)
    view.line("decode-0", "[bold]odd[/] words")
    view.ready("decode-0", "127.0.0.1:9")
    view.died("decode-0", "exit status -9", 0.5)


def test_a_log_gets_one_line_for_each_step():
    stream = io.StringIO()
    with open_view(stream) as view:
        play(view)
    loading, odd, ready, died = stream.getvalue().splitlines()
    assert loading == "decode-0 | loading 2 MB of weights"
    assert odd == "decode-0 | [bold]odd[/] words"
    assert ready.startswith("decode-0 | ready on 127.0.0.1:9 after ")
    assert died == "decode-0 | died (exit status -9); restarting in 0.5 s"


def test_a_terminal_gets_a_bar_until_the_process_is_ready():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with Progress(console=console, auto_refresh=False) as progress:
        view = TerminalView(console, progress)
        view.loading("decode-0", 0, 200)
        view.loading("decode-0", 50, 200)
        (bar,) = progress.tasks
        assert (bar.description, bar.completed, bar.total) == ("decode-0", 50, 200)
        view.ready("decode-0", "127.0.0.1:9")
        assert not progress.tasks
        view.line("decode-0", "[bold]odd[/] words")
    assert "[bold]odd[/] words" in console.file.getvalue()
