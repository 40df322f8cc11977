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


def show_rates(options: StatusOptions, read: Callable[[], T], show: Callable[[T, T | None], None],
               to_json: Callable[[T, T | None], str]) -> None:  # fmt: skip
    """As ``show_status``, for rates: ``show`` and ``to_json`` get each reading with the one before it.

    The first two readings are ``interval`` seconds apart. With the interval 0, there is one reading, without another.
    Raises UsageError for ``watch`` with the interval 0.
    """
    if options.watch and not options.interval:
        raise click.UsageError("--watch needs an --interval")
    last = read()

    def two() -> tuple[T, T | None]:
        nonlocal last
        if not options.interval:
            return last, None
        before, last = last, read()
        return last, before

    show_status(options, two, lambda seen: show(*seen), lambda seen: to_json(*seen), first_wait=options.interval)


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
