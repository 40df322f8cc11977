"""``ChangeRows``: the changes of the rows of one table, applied to another table. This is ``mode: changes`` of ``sql``.

    read, insert   the new row is inserted, or updates the row with the same key
    update         the same; if the key has changed, the row with the old key is deleted first
    delete         the row with the old key is deleted
    truncate       all rows are deleted

Rule 1: Each change can be applied several times, and also after later changes if these are then applied again. The
        result is that of applying each change once.
Rule 2: Columns in ``unchanged`` keep their values. PostgreSQL does not send large values that have not changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidelog.flows.api.errors import RejectError
from tidelog.flows.connectors.sql.columnvalues import storable
from tidelog.flows.connectors.sql.options import SqlOptions
from tidelog.flows.connectors.sql.rowwrites import RowWrite, SqlCall
from tidelog.flows.connectors.sql.statements import MISSING, Dialect, lookup
from tidelog.flows.connectors.sql.tablerows import TableRows

RowKey = tuple[Any, ...]  # the values of the key columns

OPERATIONS: Final = ("read", "insert", "update", "delete", "truncate")


class ChangeRows(TableRows):
    """Creates the statements that apply changes. Raises ConnectionError if the options name an unknown column."""

    def __init__(self, options: SqlOptions, dialect: Dialect, columns: Sequence[str]) -> None:
        super().__init__(options, dialect, columns)
        self._table = dialect.table(options.table or "")
        self._key = [(name, (self._paths or {}).get(name, name)) for name in options.key]

    def row(self, value: Any, meta: Mapping[str, Any]) -> RowWrite:
        """Return the statements for a change. Raises RejectError if it can't be applied."""
        operation = value.get("operation") if isinstance(value, Mapping) else None
        if operation not in OPERATIONS:
            raise RejectError(f"a change is an object with operation, before and after, not {str(value)[:100]!r}")
        if operation == "truncate":
            return RowWrite([(f"DELETE FROM {self._table}", ())])
        if operation == "delete":
            return RowWrite([self._deletion(self._key_of(value, "before", meta))])
        after = value.get("after")
        new = self._key_of(value, "after", meta)
        old = self._key_of(value, "before", meta) if operation == "update" and value.get("before") else new
        if unchanged := value.get("unchanged"):
            if not isinstance(unchanged, list) or not all(isinstance(each, str) for each in unchanged):
                raise RejectError("unchanged must be a list of names of columns")
            return RowWrite(self._partial(old, new, after, meta, unchanged))
        calls = [] if old == new else [self._deletion(old)]
        return RowWrite([*calls, *super().row(after, meta).calls])

    def _key_of(self, value: Mapping[str, Any], side: str, meta: Mapping[str, Any]) -> RowKey:
        """Return the key of the row before or after a change."""
        row = value.get(side)
        found = [lookup(path, row, meta) for _, path in self._key]
        for (name, path), each in zip(self._key, found, strict=True):
            if each is MISSING or each is None:
                hint = ": key must be the primary key of the source, or its table needs REPLICA IDENTITY FULL"
                raise RejectError(f"{side} has no {path!r} for the key column {name!r}{hint * (side == 'before')}")
        return tuple(storable(each) for each in found)

    # -- statements ------------------------------------------------------------------------------------------
    def _deletion(self, key: RowKey) -> SqlCall:
        return f"DELETE FROM {self._table} WHERE {self._match(1)}", key

    def _partial(
        self, old: RowKey, new: RowKey, after: Any, meta: Mapping[str, Any], unchanged: Sequence[str]
    ) -> list[SqlCall]:
        """Update the known columns of a row. If it does not exist, insert it with null in the others."""
        given = self._columns(dict.fromkeys(unchanged) | after, meta)
        paths = self._paths or {}
        others = [name for name in given if paths.get(name, name).split(".")[0] in unchanged]
        columns = {name: storable(each) for name, each in given.items() if name not in others}
        calls: list[SqlCall] = []
        size = len(self._key)
        if old != new:  # move the row, so that it keeps the other columns, unless the change was applied before
            names = ", ".join(self._assigned(name, at) for at, (name, _) in enumerate(self._key, 1))
            where = f"{self._match(size + 1)} AND {self._absent(2 * size + 1)}"
            calls = [(f"UPDATE {self._table} SET {names} WHERE {where}", (*new, *old, *new)), self._deletion(old)]
        names = ", ".join(self._assigned(name, at) for at, name in enumerate(columns, 1))
        values = tuple(columns.values())
        match, absent = self._match(len(values) + 1), self._absent(len(values) + 1)
        marks = ", ".join([*map(self._mark, range(1, len(values) + 1)), *["NULL"] * len(others)])
        into = f"{self._table} ({', '.join(map(self._dialect.name, [*columns, *others]))})"
        calls.append((f"UPDATE {self._table} SET {names} WHERE {match}", (*values, *new)))
        calls.append((f"INSERT INTO {into} SELECT {marks} FROM (SELECT 1) AS one WHERE {absent}", (*values, *new)))
        return calls

    def _mark(self, number: int) -> str:
        return self._dialect.placeholder.format(n=number)

    def _assigned(self, column: str, number: int) -> str:
        return f"{self._dialect.name(column)} = {self._mark(number)}"

    def _match(self, number: int) -> str:
        """Return the condition for a row with a key, whose parameters begin with ``number``."""
        return " AND ".join(self._assigned(name, at) for at, (name, _) in enumerate(self._key, number))

    def _absent(self, number: int) -> str:
        """Return the condition that no row has a key. Without the derived table, MySQL refuses to read a table that it
        changes.
        """
        return f"NOT EXISTS (SELECT 1 FROM (SELECT DISTINCT 1 FROM {self._table} WHERE {self._match(number)}) AS found)"
