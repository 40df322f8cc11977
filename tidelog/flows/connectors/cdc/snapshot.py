"""``TableSnapshot``: reads the rows of tables as of the creation of a replication slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tidelog.flows.connectors.cdc.columntext import converter
from tidelog.flows.connectors.cdc.preparation import CatalogDatabase, PublishedTable, quoted
from tidelog.flows.connectors.sql.database import DatabaseBusyError, RowRejectedError

PORTION: Final = 500  # rows that are fetched at a time
_CURSOR: Final = "tidelog_snapshot"


class TableSnapshot:
    """One transaction that reads one table after the other. All methods raise ConnectionError."""

    def __init__(self, database: CatalogDatabase, tables: Sequence[PublishedTable]) -> None:
        self._database = database
        self._left = list(tables)
        self._table: PublishedTable | None = None  # the one that is being read

    async def begin(self, snapshot: str) -> None:
        """Begin the transaction. ``snapshot``: the name of an exported one, which must exist during this call."""
        await self._database.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        await self._database.run(f"SET TRANSACTION SNAPSHOT '{snapshot}'")

    async def more(self) -> tuple[str, list[dict[str, Any]], int] | None:
        """Return (table, rows, size of their values as text in bytes), or None if all tables were read."""
        while True:
            if self._table is None:
                if not self._left:
                    return None
                self._table = self._left.pop(0)
                await self._declare(self._table)
            rows, size = await self._fetch()
            table = self._table
            if len(rows) < PORTION:
                self._table = None
                await self._database.run(f"CLOSE {_CURSOR}")
            if rows:
                return table.name, rows, size

    async def _declare(self, table: PublishedTable) -> None:
        (found,) = await self._database.rows(
            "SELECT c.relkind::text AS kind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = $1 AND c.relname = $2", table.schema, table.table,
        ) or ({"kind": "r"},)  # fmt: skip
        columns = ", ".join(map(quoted, table.columns)) or "*"
        only = "" if found["kind"] == "p" else "ONLY "  # the rows of tables that inherit are theirs
        where = "" if table.where is None else f" WHERE {table.where}"
        source = f"{only}{quoted(table.schema)}.{quoted(table.table)}"
        await self._database.run(f"DECLARE {_CURSOR} NO SCROLL CURSOR FOR SELECT {columns} FROM {source}{where}")

    async def _fetch(self) -> tuple[list[dict[str, Any]], int]:
        try:
            return await self._database.limited(self._rows())
        except (RowRejectedError, DatabaseBusyError) as error:
            raise ConnectionError(str(error)) from error

    async def _rows(self) -> tuple[list[dict[str, Any]], int]:
        cursor = await self._database.query(f"FETCH FORWARD {PORTION} FROM {_CURSOR}")
        result = cursor.pgresult
        assert result is not None  # noqa: S101 - of FETCH
        numbers = range(result.nfields)
        columns = [((result.fname(each) or b"").decode(), converter(result.ftype(each)), each) for each in numbers]
        rows: list[dict[str, Any]] = []
        size = 0
        for row in range(result.ntuples):
            values: dict[str, Any] = {}
            for name, convert, at in columns:
                value = result.get_value(row, at)
                size += len(value or b"")
                values[name] = None if value is None else convert(value.decode())
            rows.append(values)
        return rows, size
