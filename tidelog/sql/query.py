"""``SqlSession``: queries in which streams and topics are tables.

>>> with SqlSession("redis://localhost:6379") as session:
...     session.run("select city, avg(celsius) from weather group by city").to_pandas()

Rule 1: a query can read files and use DuckDB's functions, but its tables are on the server, which it does not change.
Rule 2: the rows of a query are those that exist when DuckDB begins to scan each table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import duckdb
import pyarrow as pa

from tidelog.arrow.rows import NoSuchStreamError, Table, changed, open_table
from tidelog.history import choice
from tidelog.sql.names import SqlError, tables_of
from tidelog.sql.tables import TableDataset
from tidelog.transport.access import Access

if TYPE_CHECKING:
    import pandas

Types = Mapping[str, "pa.DataType | str"]


@contextmanager
def _explained(failures: list[Exception], missing: Sequence[str] = ()) -> Iterator[None]:
    """Convert errors of DuckDB. ``failures``: errors of reading the tables, of which DuckDB keeps only the text.
    ``missing``: tables that are no stream and no topic."""
    failures.clear()
    try:
        yield
    except duckdb.Error as error:
        if failures:
            raise failures[0] from None
        for name in missing:
            if f"Table with name {name} does not exist" in str(error):
                raise SqlError(f"there is no stream, topic, or file {name!r}") from None
        raise SqlError(str(error)) from None


class SqlResult:
    """The rows of a query. They are read once: by an iteration, or by one of the methods.

    These raise SqlError if the query fails, MalformedError if a value does not have the type of its column,
    EvictedError, OSError if no server answers, and ReplyError.
    """

    def __init__(self, relation: duckdb.DuckDBPyRelation, failures: list[Exception]) -> None:
        self._relation = relation
        self._failures = failures

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self._relation.columns)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        with _explained(self._failures):
            yield from self._relation.to_arrow_reader()

    def to_table(self) -> pa.Table:
        """Return all rows as a table in memory."""
        with _explained(self._failures):
            return self._relation.to_arrow_reader().read_all()

    def to_pandas(self) -> pandas.DataFrame:
        """Return all rows as a DataFrame of pandas."""
        return self.to_table().to_pandas()

    def write(self, path: Path) -> None:
        """Write the rows to a file, whose name ends with .parquet or .csv. The file is complete, or it is not created.

        Raises ValueError for another name.
        """
        if path.suffix not in (".parquet", ".csv"):
            raise ValueError(f"{path.name}: the name of the file must end with .parquet or .csv")
        half = path.with_name(f".{path.name}.incomplete")
        try:
            with _explained(self._failures):
                if path.suffix == ".csv":
                    self._relation.to_csv(str(half))
                else:
                    self._relation.to_parquet(str(half), compression="zstd")
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)


class SqlSession:
    """A DuckDB in memory. Use it in one thread."""

    def __init__(
        self, where: str | Access, types: Types | None = None, read: Callable[[int], None] = lambda _: None,
        history: str = choice.AUTO,
    ) -> None:  # fmt: skip
        """Initialize. ``types``: types of fields, as ``schema`` of ``to_arrow``; of one table as ``table.field``.

        ``read`` is called with the number of rows of each batch that was read. ``history``: as for ``to_arrow``.
        """
        self._access = Access.of(where) if isinstance(where, str) else where
        self._types = dict(types or {})
        self._read = read
        self._history = choice.check(history)
        self._failures: list[Exception] = []
        self.connection = duckdb.connect(":memory:")
        self.connection.execute("set timezone = 'UTC'")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Free the memory."""
        self.connection.close()

    def run(self, query: str) -> SqlResult:
        """Return the result of a SELECT. Its rows are read when the result is used, once.

        Raises SqlError, ValueError for an invalid type, OSError if no server answers, and ReplyError if the server
        refuses a command.
        """
        missing = []
        for name in sorted(tables_of(self.connection, query)):
            try:
                table = open_table(self._access, name)
            except NoSuchStreamError:
                missing.append(name)  # perhaps a file, which DuckDB reads
                continue
            dataset = TableDataset(self._access, self._typed(table), self._read, self._failures.append, self._history)
            self.connection.register(name, dataset)
        with _explained(self._failures, missing):
            return SqlResult(self.connection.sql(query), self._failures)

    def _typed(self, table: Table) -> Table:
        """Return the table with the types that the user named for it."""
        types = {
            name.removeprefix(f"{table.name}."): kind
            for name, kind in self._types.items()
            if name.startswith(f"{table.name}.") or name in table.schema.names
        }
        return Table(table.name, table.keys, table.topic, changed(table, types)) if types else table
