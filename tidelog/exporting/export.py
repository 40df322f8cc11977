"""``export_table``: write the entries of a stream or a topic to Parquet files, each entry once.

Rule 1: the names of the files have the IDs of their first and last entries. The next export continues after the last
        entry of each stream. There is no other state, so an export that was killed has left nothing to clean up.
Rule 2: an export contains the entries that exist when it begins to read their stream.
Rule 3: a column keeps its type from the first export on. New fields are added at the end of the columns.
Rule 4: entries that were evicted before they were exported are an error, unless the caller allows gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from tidelog.arrow.rows import ArrowRows, Table, changed, open_table
from tidelog.client import calls
from tidelog.client.entries import StreamId
from tidelog.client.steps import existing
from tidelog.exporting.layout import ExportedFile, ExportError, check_key
from tidelog.exporting.parquet import ParquetPart, by_day
from tidelog.exporting.target import ExportTarget
from tidelog.history import choice
from tidelog.transport.access import Access
from tidelog.transport.leader import LeaderConnection

NAME: Final = "tidelog-export"  # of the connections
FIELDS: Final = pa.field("fields", pa.map_(pa.string(), pa.binary()))


@dataclass(frozen=True)
class ExportOptions:
    """How a table is exported."""

    types: Mapping[str, str]  # types by field, as in ``to_arrow``
    all_fields: bool = False  # a column ``fields`` with all fields of each entry
    allow_gaps: bool = False  # continue if entries were evicted before they were exported
    history: str = choice.AUTO  # as for ``to_arrow``


@dataclass
class StreamExport:
    """What was exported from one stream."""

    key: str
    rows: int = 0
    files: int = 0
    last: StreamId | None = None  # the last entry that any export contains
    evicted: bool = False  # entries were evicted before they were exported


def export_table(
    access: Access, name: str, target: ExportTarget, options: ExportOptions,
    read: Callable[[int], None] = lambda _: None,
) -> Iterator[StreamExport]:  # fmt: skip
    """Export the new entries of a stream or a topic, and yield the result of each stream when it is complete.

    ``read`` is called with the number of rows of each batch. Raises ExportError, EvictedError, NoSuchStreamError,
    MalformedError if a value does not have the type of its column, ValueError for an invalid type, OSError if no server
    answers, and ReplyError.
    """
    table = open_table(access, name)
    for key in table.keys:
        check_key(key)
    newest = _newest(target, table)
    schema = _schema(target, table, newest, options)
    for key in table.keys:
        file = newest.get(key)
        done = StreamExport(key, last=None if file is None else file.last)
        rows = _NewRows(access, Table(table.name, (key,), table.topic, schema), done, options)
        with target.scratch() as path:
            _write(rows.batches(read), path, schema, target, done)
        yield done


def _newest(target: ExportTarget, table: Table) -> dict[str, ExportedFile]:
    """Return the newest file of each stream. Raises ExportError for files that this export can't continue."""
    newest: dict[str, ExportedFile] = {}
    for file in target.files():
        if file.key not in table.keys:
            raise ExportError(f"{target.shown} has files of {file.key!r}: export {table.name!r} to another directory")
        before = newest.get(file.key)
        if before is not None and file.first <= before.last:
            raise ExportError(
                f"{target.shown} has two files with the same entries: {before.name} and {file.name}. Remove one of them"
            )
        newest[file.key] = file
    return newest


def _schema(
    target: ExportTarget, table: Table, newest: Mapping[str, ExportedFile], options: ExportOptions
) -> pa.Schema:  # fmt: skip
    """Return the columns of new files. Raises ExportError if a type differs from that in earlier files."""
    fields = {field.name: field for field in changed(table, options.types)}
    if options.all_fields:
        fields[FIELDS.name] = FIELDS
    if not newest:
        return pa.schema(list(fields.values()))
    earlier = target.schema(max(newest.values(), key=lambda file: file.last))
    for field in earlier:
        if field.name in options.types and fields[field.name].type != field.type:
            raise ExportError(
                f"field {field.name!r} is {field.type} in the files of {target.shown}: omit its type, or export to"
                " another directory"
            )
    return pa.schema([*earlier, *(field for name, field in fields.items() if name not in earlier.names)])


def _write(
    batches: Iterator[pa.RecordBatch], path: Path, schema: pa.Schema, target: ExportTarget, done: StreamExport
) -> None:  # fmt: skip
    """Write the rows of one stream to as many files as are needed."""

    def complete(part: ParquetPart) -> None:
        file = part.end()
        target.add(path, file)
        done.rows += part.rows
        done.files += 1
        done.last = file.last

    part: ParquetPart | None = None
    try:
        for batch in batches:
            for rows in by_day(batch):
                if part is not None and not part.takes(rows):
                    complete(part)
                    part = None
                part = part or ParquetPart(path, done.key, schema)
                part.add(rows)
        if part is not None:
            complete(part)
    finally:
        if part is not None:
            part.close()


class _NewRows:
    """The rows of one stream that no earlier export contains."""

    def __init__(self, access: Access, table: Table, done: StreamExport, options: ExportOptions) -> None:
        self._access = access
        self._table = table
        self._done = done
        self._options = options
        self._before = done.last  # the last entry of earlier exports

    def batches(self, read: Callable[[int], None]) -> Iterator[pa.RecordBatch]:
        before = self._before
        self._check()
        found = ArrowRows(
            self._access, self._table, "-" if before is None else f"({before}", "+", self._table.schema, "failfast",
            self._options.history,
        )  # fmt: skip
        for number, batch in enumerate(found):
            if not number:
                self._check()  # entries may have been evicted between the first check and this read
            read(batch.num_rows)
            yield batch

    def _check(self) -> None:
        """Raise an error if entries after the last exported one can't be read any more."""
        before, key = self._before, self._done.key
        with closing(LeaderConnection(self._access, NAME)) as servers:
            (reply,) = servers.ask(calls.tinfo(key))
        info = existing(key, reply)
        if before is None or info is None:
            return
        if info.last < before:
            raise ExportError(
                f"stream {key!r} ends with {info.last}, before the last exported entry {before}: it was deleted or"
                " restored. Export it to another directory"
            )
        if info.evicted_to > before:
            self._done.evicted = True
            if not self._options.allow_gaps:
                raise ExportError(
                    f"stream {key!r}: entries between {before}, the last exported one, and {info.evicted_to} were"
                    " evicted before they were exported. --allow-gaps continues with the entries that exist"
                )
