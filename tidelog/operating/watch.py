"""The options ``--watch``, ``--interval`` and ``--json`` of status commands, and the loop that they control."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import click

from tidelog.operating.terminal import echo

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
SHORTEST: Final = 0.1  # seconds between two readings


class StatusOptions(NamedTuple):
    """The values of the options."""

    watch: bool
    interval: float  # seconds
    as_json: bool


def status_options(command: F) -> F:
    """Add the options to a status command; it gets them as ``watch``, ``interval`` and ``as_json``."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object per reading."),
        click.option("--interval", type=click.FloatRange(0.0), default=1.0, show_default=True,
                     help="Seconds between two readings."),
        click.option("--watch", is_flag=True, help="Repeat until Ctrl-C."),
    ):  # fmt: skip
        command = option(command)
    return command


def show_status(options: StatusOptions, read: Callable[[], T], show: Callable[[T], None], to_json: Callable[[T], str],
                first_wait: float = 0.0) -> None:  # fmt: skip
    """Read and print a status, repeatedly with ``watch`` until Ctrl-C. On a terminal, each reading replaces the last.

    first_wait: seconds before the first reading.
    """
    try:
        time.sleep(first_wait)
        while True:
            seen = read()
            if options.watch and not options.as_json and sys.stdout.isatty():
                click.clear()
            if options.as_json:
                echo(to_json(seen))
            else:
                show(seen)
            if not options.watch:
                return
            if not options.as_json:
                echo()
            time.sleep(max(options.interval, SHORTEST))
    except KeyboardInterrupt:
        return
