"""One Parquet file while it is written: the rows of one stream and one day.

Rule: a row group has about GROUP bytes, so the memory does not depend on the size of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.client.entries import StreamId
from tidelog.exporting.layout import ExportedFile

GROUP: Final = 32 << 20  # bytes of a row group before compression
MICROSECONDS_OF_DAY: Final = 86_400_000_000
FULL: Final = 128 << 20  # bytes of a file, at least, before the next one begins


class ParquetPart:
    """The file. Rows are added in the order of their IDs."""

    def __init__(self, path: Path, key: str, schema: pa.Schema) -> None:
        self.rows = 0
        self._path = path
        self._key = key
        self._schema = schema
        self._writer = pq.ParquetWriter(path, schema, compression="zstd")
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0  # of the waiting rows
        self._day: int | None = None
        self._first = self._last = ""

    def takes(self, rows: pa.RecordBatch) -> bool:
        """Return whether rows belong to this file: they are of its day, and it is not full."""
        return _day(rows, 0) == self._day and self._path.stat().st_size < FULL

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows of one day."""
        ids = rows.column("_id")
        if not self.rows:
            self._first, self._day = ids[0].as_py(), _day(rows, 0)
        self._last = ids[-1].as_py()
        self.rows += rows.num_rows
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= GROUP:
            self._write()

    def end(self) -> ExportedFile:
        """Complete the file. Return what it contains."""
        self._write()
        file = ExportedFile(self._key, StreamId.parse(self._first), StreamId.parse(self._last))
        facts = {"key": file.key, "first": self._first, "last": self._last}
        self._writer.add_key_value_metadata({f"tidelog.{name}": value for name, value in facts.items()})
        self.close()
        return file

    def close(self) -> None:
        """Close the file, which may be incomplete. Can be called several times."""
        self._writer.close()

    def _write(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema), row_group_size=1 << 30)
            self._waiting.clear()
            self._bytes = 0


def by_day(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Divide rows, which are in the order of their IDs, where the UTC day changes."""
    if _day(rows, 0) == _day(rows, -1):
        yield rows
        return
    days = rows.column("_ts").cast(pa.date32()).cast(pa.int32()).to_pylist()
    begins = [0, *(at for at in range(1, len(days)) if days[at] != days[at - 1]), len(days)]
    for begin, end in pairwise(begins):
        yield rows.slice(begin, end - begin)


def _day(rows: pa.RecordBatch, at: int) -> int | None:
    """Return the days since 1970 of a row; None if its time exceeds the range of a timestamp."""
    time = rows.column("_ts")[at].cast(pa.int64()).as_py()
    return None if time is None else time // MICROSECONDS_OF_DAY
