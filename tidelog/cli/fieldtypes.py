"""The options ``--type`` and ``--history`` of commands that read streams as columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import click

from tidelog.history import choice

TYPE_HELP: Final = (
    "Type of a field: int, double, bool, string, binary, date, timestamp, or decimal(9,2). Default: that of the topic,"
    " or of the first and last entries of the stream."
)

history_option = click.option(
    "--history", type=click.Choice(choice.CHOICES), default=choice.AUTO, show_default=True,
    help="Where to read entries that were copied to an object store: from there (direct), or from the server.",
)  # fmt: skip


def field_types(given: Iterable[str]) -> dict[str, str]:
    """Return types by field. Raises ValueError."""
    found = {}
    for each in given:
        name, equals, kind = each.rpartition("=")
        if not equals or not name:
            raise ValueError(f"--type {each}: write FIELD=TYPE")
        found[name] = kind
    return found
