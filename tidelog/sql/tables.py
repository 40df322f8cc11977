"""A stream or a topic as a dataset that DuckDB scans.

DuckDB passes the columns and filters of a query to ``scanner``. Only these columns are built, and only the part of each
stream is read that the filters on ``_ts``, ``_key``, and ``_partition`` need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidelog.arrow.rows import ArrowRows, Table
from tidelog.client import calls
from tidelog.client.entries import Info
from tidelog.client.steps import existing
from tidelog.sql.pruning import pruned
from tidelog.transport.access import Access
from tidelog.transport.leader import LeaderConnection

NAME: Final = "tidelog-sql"  # of the connections


class TableDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """The rows of a table. DuckDB recognizes the base class."""

    def __init__(
        self, access: Access, table: Table, read: Callable[[int], None], failed: Callable[[Exception], None],
        history: str,
    ) -> None:  # fmt: skip
        """``read`` is called with the number of rows of each batch that was read, ``failed`` with an error.
        ``history``: as for ``to_arrow``."""
        self._access = access
        self._table = table
        self._read = read
        self._failed = failed
        self._history = history

    @property
    def schema(self) -> pa.Schema:
        return self._table.schema

    def scanner(
        self, columns: list[str] | None = None, filter: pc.Expression | None = None, **_: Any  # noqa: A002
    ) -> ds.Scanner:  # fmt: skip
        """Return the rows that pass a filter, with these columns."""
        wanted = set(self.schema.names if columns is None else columns) | _named(filter, self.schema)
        schema = pa.schema([field for field in self.schema if field.name in wanted] or [self.schema.field("_id")])
        return ds.Scanner.from_batches(
            self._reported(schema, filter), schema=schema, columns=columns, filter=filter, use_threads=False
        )

    def _reported(self, schema: pa.Schema, filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:  # noqa: A002
        try:
            yield from self._batches(schema, filter)
        except Exception as error:
            self._failed(error)
            raise

    def _batches(self, schema: pa.Schema, filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:  # noqa: A002
        with closing(LeaderConnection(self._access, NAME)) as servers:
            keys = self._table.keys
            infos: list[Info | None] = [
                existing(key, reply)
                for key, reply in zip(keys, servers.ask(*map(calls.tinfo, keys)), strict=True)
            ]  # fmt: skip
        for number, (key, info) in enumerate(zip(keys, infos, strict=True)):
            if info is None or info.first is None:
                continue
            partition = number if self._table.topic else None
            times = pruned(filter, self.schema, key, partition, info.first.ms, info.last.ms)
            if times is None:
                continue
            end = info.last if times[1] >= info.last.ms else times[1]
            one = Table(self._table.name, (key,), self._table.topic, schema)
            for batch in ArrowRows(self._access, one, times[0], end, schema, "failfast", self._history):
                self._read(batch.num_rows)
                yield batch


def _named(filter: pc.Expression | None, schema: pa.Schema) -> set[str]:  # noqa: A002
    """Return at least the columns that a filter names: those whose names occur in its text."""
    text = "" if filter is None else str(filter)
    return {name for name in schema.names if name in text}
