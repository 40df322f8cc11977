"""``tidelog export NAME --to TARGET``: Parquet files of a stream or a topic."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from tidelog.cli.connect import ANSWER_MS
from tidelog.cli.extras import needs
from tidelog.cli.fieldtypes import field_types
from tidelog.cli.lines import printable
from tidelog.cli.progress import Progress
from tidelog.operating.tables import counted, table
from tidelog.operating.terminal import echo
from tidelog.transport.access import Access
from tidelog.transport.errors import ReplyError

if TYPE_CHECKING:
    from tidelog.exporting.export import StreamExport


def export_files(
    name: str, url: str, target: str, types: Iterable[str], all_fields: bool, allow_gaps: bool, history: str,
    as_json: bool,
) -> None:  # fmt: skip
    """Run the command."""
    with needs("tidelog export --to", "arrow"):
        from tidelog.arrow.columns import MalformedError
        from tidelog.arrow.rows import EvictedError
        from tidelog.exporting.export import ExportOptions, export_table
        from tidelog.exporting.layout import ExportError
        from tidelog.exporting.target import ExportTarget
        from tidelog.history.errors import HistoryError
    access = Access.of(url).single_attempt(ANSWER_MS)
    try:
        options = ExportOptions(field_types(types), all_fields, allow_gaps, history)
        with Progress() as progress:
            found = export_table(access, name, ExportTarget(target), options, progress.counting("rows exported:"))
            done = list(found)
    except MalformedError as error:
        text = str(error)
        raise click.ClickException(f"{text.rpartition(' (')[0]}: use --type FIELD=string for this field") from None
    except ReplyError as error:
        raise click.ClickException(f"the server replied: {error}") from None
    except (ValueError, EvictedError, ExportError, HistoryError) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"no answer from {access.places}: {error.__cause__ or error}") from None
    _print(name, done, as_json)


def _print(name: str, done: list[StreamExport], as_json: bool) -> None:
    if as_json:
        echo(json.dumps([
            {"key": each.key, "rows": each.rows, "files": each.files, "evicted": each.evicted,
             "last": None if each.last is None else str(each.last)}
            for each in done
        ]))  # fmt: skip
        return
    table(
        ["stream", "rows", "files", "last ID"],
        [[printable(each.key), f"{each.rows:,}", f"{each.files:,}", str(each.last or "-")] for each in done],
    )
    for each in done:
        if each.evicted:
            echo(f"{printable(each.key)}: entries were evicted before they were exported", err=True)
    rows, files = sum(each.rows for each in done), sum(each.files for each in done)
    echo(f"{printable(name)}: {counted(rows, 'row')} in {counted(files, 'new file')}")
