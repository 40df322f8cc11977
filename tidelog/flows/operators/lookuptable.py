"""The table of ``enrich``: the rows of a file by key.

    CSV          the first line has the names of the fields; all values are strings
    JSON         a list of objects, or an object whose fields are the keys
    JSON lines   an object per line

Rule 1: A table is complete: ``load`` raises ValueError for anything that is not valid, and then changes nothing.
Rule 2: A file that is written in place is read when it has been the same for one interval. One that was replaced is
        complete, so it is read immediately.
Rule 3: ``load`` and ``discard`` run in a thread, and work on one row at a time, so that the event loop runs in between.

Decision: rows are stored as JSON, and decoded when an event needs them, in 1 to 2 us. As objects, 130,000 rows of 140
bytes with a list and an object took 139 MB rather than 40 MB, and each reload stopped the event loop for 80 to 135 ms
rather than 12 to 28 ms, because the cyclic garbage collector tracks objects, and not bytes.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from tidelog.options.units import excerpt

FileFormat: TypeAlias = Literal["csv", "json", "jsonl"]
Table: TypeAlias = dict[str, bytes]  # rows by key, as JSON

_SUFFIXES: Final[dict[str, FileFormat]] = {
    ".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl",
}  # fmt: skip
_BOM: Final = b"\xef\xbb\xbf"


class FileState(NamedTuple):
    """What differs between two versions of a file."""

    inode: tuple[int, int]
    modified: int  # ns since 1970
    size: int  # bytes

    @classmethod
    def of(cls, path: str) -> FileState:
        """Return the state of a file. Raises OSError."""
        found = os.stat(path)
        return cls((found.st_dev, found.st_ino), found.st_mtime_ns, found.st_size)


def file_format(path: str) -> FileFormat:
    """Return the format for the suffix of a path. Raises ValueError if it is not known."""
    found = _SUFFIXES.get(Path(path).suffix.lower())
    if found is None:
        raise ValueError(f"the format of {path!r} is not known: set format to csv, json, or jsonl")
    return found


def key_of(value: Any) -> str | None:
    """Return a key as text: a number equals its text. None: there is no key. Raises ValueError for other types."""
    if isinstance(value, str):
        return value
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"the key is {excerpt(value)}: it must be a string or a number")
    return str(int(value)) if value == value // 1 else str(value)


def load(path: str, kind: FileFormat, by: str | None, delimiter: str, most: int) -> tuple[FileState, Table]:
    """Read a file. Raises OSError, or ValueError if it is too large, not valid, or was changed meanwhile."""
    before = FileState.of(path)
    if before.size > most:
        raise ValueError(f"the file has {before.size:,} bytes: max_bytes is {most:,}")
    with open(path, "rb") as file:
        data = file.read(most + 1).removeprefix(_BOM)
    if FileState.of(path) != before:
        raise ValueError("the file was changed while it was read")
    table: Table = {}
    for number, (key, row) in enumerate(_rows(data, kind, by, delimiter), 1):
        text = key_of(key)
        if text is None:
            raise ValueError(f"row {number} has no {by}")
        if text in table:
            raise ValueError(f"row {number}: there is another row with the key {excerpt(text)}")
        table[text] = row
    return before, table


def row_of(table: Table, key: str) -> Any:
    """Return the row of a key, decoded. Raises KeyError."""
    return msgspec.json.decode(table[key])


def discard(table: Table) -> None:
    """Release the memory of a table."""
    while table:
        table.popitem()  # clear() would stop the event loop while it releases all rows


def _rows(data: bytes, kind: FileFormat, by: str | None, delimiter: str) -> Iterator[tuple[Any, bytes]]:
    """Yield the keys and rows."""
    if kind == "csv":
        yield from _csv(data, by, delimiter)
        return
    try:
        if kind == "jsonl":
            for line in data.splitlines():
                if line.strip():
                    yield _key(msgspec.json.decode(line), by), line
            return
        whole = msgspec.json.decode(data, type=list[msgspec.Raw] | dict[str, msgspec.Raw])
        if isinstance(whole, dict):
            if by is not None:
                raise ValueError("the file is an object, so its fields are the keys: omit by")
            for name, raw in whole.items():
                msgspec.json.decode(raw)  # raises an error now rather than for an event
                yield name, bytes(raw)
        else:
            for raw in whole:
                yield _key(msgspec.json.decode(raw), by), bytes(raw)
    except msgspec.DecodeError as error:
        raise ValueError(f"not valid: {error}") from None


def _key(row: Any, by: str | None) -> Any:
    if by is None:
        raise ValueError("the file is a list of rows: set by to the name of the field that is their key")
    if not isinstance(row, dict):
        raise ValueError(f"a row is {excerpt(row)}: it must be an object")
    return row.get(by)


def _csv(data: bytes, by: str | None, delimiter: str) -> Iterator[tuple[str, bytes]]:
    try:
        rows = csv.reader(io.StringIO(data.decode(), newline=""), delimiter=delimiter, strict=True)
        names = next(rows, None)
        if not names:
            raise ValueError("the file has no header")
        if by not in names:
            raise ValueError(f"there is no column {by!r}: the columns are {', '.join(names)}")
        at = names.index(by)
        for row in rows:
            if not row:
                continue
            if len(row) != len(names):
                raise ValueError(f"line {rows.line_num} has {len(row)} fields for {len(names)} columns")
            yield row[at], msgspec.json.encode(dict(zip(names, row, strict=True)))
    except csv.Error as error:
        raise ValueError(f"not CSV: {error}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error.reason} at byte {error.start}") from None
