"""``RowReader``: the rows of a query as events, and the cursor of the rows that are settled.

Rule 1: ``position`` is a value of the cursor up to which all rows are settled. With several rows of the same value, it
        stays at the value before until all of them are settled. For this, one row is always read in advance.
Rule 2: A query begins after the last row that was read, not after the last one that was settled, except after a
        restart of the process.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tidelog.flows.api.event import Event
from tidelog.flows.connectors.positionfile import load_position, save_position
from tidelog.flows.connectors.settledprefix import SettledPrefix
from tidelog.flows.connectors.sql.columnvalues import plain, size_of
from tidelog.flows.connectors.sql.database import DatabaseConnection, RowStream
from tidelog.flows.connectors.sql.options import SqlOptions
from tidelog.flows.connectors.sql.statements import Statement

PORTION: Final = 500  # rows that are fetched at a time

Cursor = int | float | str


class RowReader:
    """Reads the query of a source. Each row has a number, which is the ID of its event."""

    def __init__(self, options: SqlOptions) -> None:
        self._options = options
        self._path = None if options.position is None else Path(options.position)
        self._read: Cursor | None = options.start  # of the last row that was read
        self._rows: deque[dict[str, Any]] = deque()
        self._stream: RowStream | None = None
        self._number = 0
        self._prefix: SettledPrefix[Cursor | None] = SettledPrefix(options.start)
        self._saved: Cursor | None = None
        self._saving = asyncio.Lock()
        self._loaded = False

    @property
    def unsettled(self) -> int:
        return len(self._prefix) if self._path is not None else 0

    async def load(self) -> None:
        """Read the stored position, once. Raises ValueError if it is not valid."""
        if self._path is None or self._loaded:
            return
        found = await asyncio.to_thread(load_position, self._path, dict[str, Cursor])
        if found is not None:
            if "cursor" not in found:
                raise ValueError(f"{self._path} is not a position of sql; delete it to read from the beginning")
            self._read = self._saved = found["cursor"]
            self._prefix.restart(self._read)
        self._loaded = True

    @property
    def available(self) -> int:
        """The number of rows that ``take`` can return (Rule 1)."""
        return len(self._rows) if self._stream is None else max(0, len(self._rows) - 1)

    @property
    def reading(self) -> bool:
        """Return whether the result of a query has not ended."""
        return self._stream is not None

    async def fill(self, database: DatabaseConnection) -> int:
        """Read rows until some are available, or the result ends. Without a result, execute the query first.

        Return the size of the rows in bytes.
        """
        size = 0
        if self._stream is None:
            statement = Statement(self._options.query or "", database.dialect)
            self._stream = await database.read(statement.sql, [self._read] * len(statement.names))
        while self._stream is not None and not self.available:
            names, rows = await self._stream.fetch(PORTION)
            size += sum(map(size_of, rows))
            self._rows += (dict(zip(names, row, strict=True)) for row in rows)
            if len(rows) < PORTION:
                stream, self._stream = self._stream, None
                await stream.close()
        return size

    def take(self, limit: int) -> list[Event]:
        """Return at most ``limit`` rows. Raises ValueError if the cursor is not valid."""
        return [self._event(self._rows.popleft()) for _ in range(min(limit, self.available))]

    def forget(self) -> bool:
        """Forget a result that has not ended, because the connection is lost. Return whether there was one."""
        if self._stream is None:
            return False
        self._stream = None
        self._rows.clear()
        return True

    def _event(self, row: dict[str, Any]) -> Event:
        self._number += 1
        if self._options.cursor is not None:
            self._advance(row)
        return Event({name: plain(each) for name, each in row.items()}, None, self._number)

    def _advance(self, row: dict[str, Any]) -> None:
        name = self._options.cursor or ""
        before, value = self._read, _cursor(name, row)
        if isinstance(before, (int, float)) and isinstance(value, (int, float)) and value < before:
            raise ValueError(f"the cursor {name} decreases from {before} to {value}: query needs ORDER BY {name}")
        last = not self._rows or _cursor(name, self._rows[0]) != value
        self._prefix.add(self._number, value if last else before, 1)
        if last:
            self._read = value

    async def settled(self, numbers: Iterable[int]) -> None:
        """Settle rows, and store the position if it has changed."""
        self._prefix.settle_all(numbers)
        if self._path is None:
            return
        async with self._saving:
            position = self._prefix.position
            if position is not None and position != self._saved:
                await asyncio.to_thread(save_position, self._path, {"cursor": position})
                self._saved = position


def _cursor(name: str, row: dict[str, Any]) -> Cursor:
    if name not in row:
        raise ValueError(f"the result has no column {name!r}, which is the cursor; it has {', '.join(row)}")
    value = row[name]
    if isinstance(value, (bool, bytes, type(None), dict, list)):
        raise ValueError(f"the cursor {name} is {value!r}: it must be a number, text, or a time")
    return value if isinstance(value, (int, float, str)) else str(value)
