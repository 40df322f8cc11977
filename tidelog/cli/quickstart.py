"""``tidelog quickstart``: a server with sample data, and a console that shows it."""

from __future__ import annotations

import threading
import webbrowser
from pathlib import Path
from typing import Final

import click

from tidelog.cli.extras import needs
from tidelog.cli.logs import configure
from tidelog.operating.terminal import echo, try_echo

DIRECTORY: Final = "tidelog-quickstart"
_port = click.IntRange(1, 65535)


@click.command("quickstart")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=DIRECTORY,
    show_default=True,
    help="Directory of the data.",
)
@click.option("--temporary", is_flag=True, help="Use a temporary directory, and remove it at the end.")
@click.option("--port", type=_port, help="Port of the server. Default: 6379, or the next free one.")
@click.option("--console-port", type=_port, help="Port of the console. Default: 9899, or the next free one.")
@click.option("--open", "opens", is_flag=True, help="Open the console in a browser.")
def quickstart(directory: Path, temporary: bool, port: int | None, console_port: int | None, opens: bool) -> None:
    """Run a server with sample data, and a console for it, until Ctrl-C.

    \b
      tidelog quickstart                then open http://127.0.0.1:9899
      tidelog quickstart --temporary    leave nothing on the disk

    The sample data is a shop: a topic with orders, a worker that bills them, dead letters, a consumer group with lag
    and pending messages, and a stream with a retention policy. New entries are appended every second. The page "Next
    steps" of the console shows what to try.

    The server and the console listen on the loopback interface only. A second start with the same directory continues
    with its data. Ctrl-C stops all programs.
    """
    source = click.get_current_context().get_parameter_source("directory")
    if temporary and source is not None and source.name != "DEFAULT":
        raise click.UsageError("--temporary and --dir exclude each other")
    with needs("tidelog quickstart", "console"):
        from tidelog.quickstart.errors import QuickstartError
        from tidelog.quickstart.process import QuickstartOptions, run
    configure("warning", False)
    options = QuickstartOptions(None if temporary else directory, port, console_port)
    try:
        run(options, try_echo, _open if opens else lambda _: None)
    except QuickstartError as error:
        raise click.ClickException(str(error)) from None


def _open(url: str) -> None:
    """Open a browser. A text browser lasts until its user leaves it, so a thread waits for it."""
    threading.Thread(target=_browse, args=(url,), daemon=True).start()


def _browse(url: str) -> None:
    if not webbrowser.open(url):
        echo("No browser was found.", err=True)
