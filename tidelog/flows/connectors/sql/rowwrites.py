"""Executes a statement for each event, and finds the outcome of each.

Rule 1: A batch is one transaction. If the database rejects a row, the batch is divided in halves, each of which is a
        transaction, down to the row that causes the error. The other rows are committed.
Rule 2: The order of the events is preserved, unless several connections write at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from tidelog.flows.api.connector import Outcome
from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import OK, REJECT, RETRY
from tidelog.flows.connectors.batchmembers import members
from tidelog.flows.connectors.sql.columnvalues import plain, size_of
from tidelog.flows.connectors.sql.database import DatabaseBusyError, DatabaseConnection, RowRejectedError

SqlCall = tuple[str, tuple[Any, ...]]  # a statement and its parameters


@dataclass
class RowWrite:
    """The statements for one event, which are executed in one transaction."""

    calls: list[SqlCall]  # empty: it is already rejected
    outcome: tuple[int, str] = (RETRY, "it was not written")
    rows: list[Any] = field(default_factory=list)  # the result of the statement, if it is wanted


EventWrites = list[RowWrite] | RowWrite  # of a batch, or of a single event
MakeWrite = Callable[[Any, Mapping[str, Any]], RowWrite]  # of a value and its metadata; raises RejectError


class RowWrites:
    """The connections of a sink."""

    def __init__(
        self, databases: Sequence[DatabaseConnection], sent: Callable[[int], None], max_rows: int | None = None,
        *, stops: bool = False,
    ) -> None:  # fmt: skip
        """sent: counts the bytes of parameters. max_rows: maximum number of rows of a result; None: results are not
        wanted. stops: after a statement that must be executed again, the later ones of a batch are not executed before
        it.
        """
        self._sent = sent
        self._max_rows = max_rows
        self._stops = stops
        self._free: asyncio.Queue[DatabaseConnection] = asyncio.Queue()  # connections without a transaction
        for each in databases:
            self._free.put_nowait(each)

    async def write(self, made: Sequence[EventWrites]) -> Exception | None:
        """Execute the statements of a batch, and set their outcomes. Return the error if the connection is lost."""
        rows = [row for row in rows_of(made) if row.calls]
        database = await self._free.get()
        try:
            await self._write(database, rows)
        except ConnectionError as error:
            return error
        finally:
            self._free.put_nowait(database)
        return None

    async def _write(self, database: DatabaseConnection, rows: Sequence[RowWrite]) -> bool:
        """Return whether rows that follow can be written."""
        if not rows:
            return True
        try:
            await self._execute(database, rows)
        except RowRejectedError as error:
            if len(rows) == 1:
                rows[0].outcome = (REJECT, str(error))
                return True
            middle = len(rows) // 2
            return await self._write(database, rows[:middle]) and await self._write(database, rows[middle:])
        except (DatabaseBusyError, ConnectionError) as error:
            for each in rows:
                each.outcome = (RETRY, str(error))
            if isinstance(error, ConnectionError):
                raise
            return not self._stops
        for each in rows:
            each.outcome = (OK, "")
        return True

    async def _execute(self, database: DatabaseConnection, rows: Sequence[RowWrite]) -> None:
        self._sent(sum(size_of(parameters) for each in rows for _, parameters in each.calls))
        if self._max_rows is not None:
            parameters = [each.calls[0][1] for each in rows]
            found = await database.answers(rows[0].calls[0][0], parameters, self._max_rows)
            for each, those in zip(rows, found, strict=True):
                each.rows = plain(those)
        else:
            groups = groupby((call for each in rows for call in each.calls), lambda call: call[0])
            await database.execute([(sql, [each for _, each in some]) for sql, some in groups])


def rows_of(made: Sequence[EventWrites]) -> list[RowWrite]:
    return [row for each in made for row in (each if isinstance(each, list) else [each])]


def writes_of(event: Event, make: MakeWrite) -> EventWrites:
    """Return the statement of an event, or for a batch those of its members."""
    batch = members(event)
    if batch is None:
        return _checked(make, event.value, event.meta)
    return [_checked(make, each.value, each.event.meta) for each in batch]


def _checked(make: MakeWrite, value: Any, meta: Mapping[str, Any]) -> RowWrite:
    try:
        return make(value, meta)
    except RejectError as error:
        return RowWrite([], (REJECT, str(error)))


def outcomes_of(made: Sequence[EventWrites]) -> list[Outcome]:
    return [[row.outcome for row in each] if isinstance(each, list) else each.outcome for each in made]
