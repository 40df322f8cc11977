"""``TableRows``: events as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidelog.flows.api.errors import RejectError
from tidelog.flows.connectors.sql.columnvalues import storable
from tidelog.flows.connectors.sql.options import SqlOptions
from tidelog.flows.connectors.sql.rowwrites import RowWrite
from tidelog.flows.connectors.sql.statements import MISSING, Dialect, insertion, lookup

STATEMENTS: Final = 1000  # that are stored: events may have many combinations of columns


class TableRows:
    """Creates the statements that insert events. Raises ConnectionError if the options name an unknown column."""

    def __init__(self, options: SqlOptions, dialect: Dialect, columns: Sequence[str]) -> None:
        """``columns``: of the table."""
        self._options = options
        self._dialect = dialect
        self._known = frozenset(columns)
        self._statements: dict[tuple[str, ...], str] = {}  # by their columns
        given = options.columns
        self._paths = dict(zip(given, given, strict=True)) if isinstance(given, list) else given
        for each in (*(self._paths or ()), *options.key):
            if each not in self._known:
                known = ", ".join(sorted(self._known))
                raise ConnectionError(f"the table {options.table} has no column {each!r}; it has {known}")

    def row(self, value: Any, meta: Mapping[str, Any]) -> RowWrite:
        """Return the statement for an event. Raises RejectError if it can't be a row of the table."""
        if not isinstance(value, Mapping):
            raise RejectError(f"a row is an object, not {type(value).__name__}")
        columns = self._columns(value, meta)
        return RowWrite([(self._insertion(tuple(columns)), tuple(storable(each) for each in columns.values()))])

    def _columns(self, value: Mapping[str, Any], meta: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._paths is not None:
            found = {column: lookup(path, value, meta) for column, path in self._paths.items()}
            return {column: None if each is MISSING else each for column, each in found.items()}
        if not value:
            raise RejectError("the row has no columns")
        for each in value:
            if each not in self._known:
                raise RejectError(f"the table {self._options.table} has no column {str(each)[:100]!r}")
        return value

    def _insertion(self, columns: tuple[str, ...]) -> str:
        found = self._statements.get(columns)
        if found is None:
            if len(self._statements) >= STATEMENTS:
                self._statements.clear()
            options = self._options
            mode = "upsert" if options.mode == "changes" else options.mode
            found = insertion(options.table or "", columns, mode, options.key, self._dialect)
            self._statements[columns] = found
        return found
