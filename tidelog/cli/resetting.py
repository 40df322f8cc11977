"""What ``tidelog app reset``, ``tidelog jobs reset`` and ``tidelog flow reset`` have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from tidelog.client.entries import StreamId
from tidelog.operating.tables import table
from tidelog.options.start import StartPosition

F = TypeVar("F", bound=Callable[..., Any])
Cells = Mapping[str, Callable[[Any], object]]  # by heading: the value of a row


class _Position(click.ParamType[StartPosition]):
    name = "position"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> StartPosition:
        try:
            return StartPosition(value)
        except ValueError as error:
            self.fail(str(error).removeprefix("start "), param, ctx)


def reset_options(command: F) -> F:
    """Add --to, --dry-run and --yes to a command, which gets them as ``to``, ``dry_run`` and ``yes``."""
    for option in (
        click.option("--yes", is_flag=True, help="Don't ask for confirmation."),
        click.option("--dry-run", is_flag=True, help="Show how many entries would be read again, and change nothing."),
        click.option("--to", type=_Position(), required=True, metavar="earliest|latest|ID|TIME",
                     help="The new position; see above."),
    ):  # fmt: skip
        command = option(command)
    return command


def print_resets(found: Sequence[Any], first: Cells, last: Cells) -> None:
    """Print old and new positions. ``first``, ``last``: the columns before and after those of all engines."""
    columns: Cells = {
        **first, "position": lambda each: _shown(each.before), "new position": lambda each: _shown(each.after),
        "read again": lambda each: each.read_again, "skipped": lambda each: each.skipped, **last,
    }  # fmt: skip
    table(list(columns), [[_cell(value(each)) for value in columns.values()] for each in found])


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _shown(at: StreamId | None) -> str:
    return "-" if at is None else str(at) if at > StreamId(0) else "0"
