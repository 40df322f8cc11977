"""``sql``: rows of a query, and of a table, in PostgreSQL, MySQL or MariaDB, and SQLite.

A source executes a query, once or periodically; its rows are events. With a ``cursor``, each row is delivered at least
once, and not again after it is settled. A sink inserts events into a table in batches, with an outcome for each row.

Rule: Changes are applied in their order (``mode: changes``). A write that fails is repeated here until it succeeds. If
the source retried the event, it would be written after later changes of the same row.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidelog.flows.api.connector import Outcome, Sink, Source
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import RETRY, Token
from tidelog.flows.connectors.ongoingread import OngoingRead
from tidelog.flows.connectors.sql.changerows import ChangeRows
from tidelog.flows.connectors.sql.database import DatabaseBusyError, DatabaseConnection, RowRejectedError
from tidelog.flows.connectors.sql.options import SqlOptions
from tidelog.flows.connectors.sql.rowreader import RowReader
from tidelog.flows.connectors.sql.rowwrites import EventWrites, RowWrites, outcomes_of, rows_of, writes_of
from tidelog.flows.connectors.sql.tablerows import TableRows
from tidelog.transport.backoff import Backoff, Delays

log = logging.getLogger("tidelog.flows")

REPEATS: Final = Backoff(first=0.1, most=5.0)  # of a write of ``mode: changes`` that the database could not execute


class SqlConnector(Source, Sink):
    """Sets ``event.id`` to the number of the row since the start."""

    type = "sql"
    Options = SqlOptions

    @classmethod
    def option_errors(cls, options: SqlOptions, *, source: bool) -> list[str]:
        found = options.driver_errors()
        if source and options.query is None:
            found.append("query is missing: a source needs one")
        if not source and options.table is None:
            found.append("table is missing: a sink needs one; sql_query executes a query for each event")
        return found

    @classmethod
    def option_warnings(cls, options: SqlOptions, *, source: bool) -> list[str]:
        directory = None if options.position is None else Path(options.position).absolute().parent
        if source and directory is not None and not directory.is_dir():
            return [f"position is {options.position!r}: there is no directory {directory}"]
        return []

    def __init__(self, options: SqlOptions) -> None:
        super().__init__()
        self._options = options
        self.concurrency = options.concurrency
        self._reading: DatabaseConnection | None = None  # the connection of the source
        self._open: list[DatabaseConnection] = []
        self._rows: TableRows | None = None
        self._writes: RowWrites | None = None
        self._ordered = options.mode == "changes"
        self._writable = asyncio.Event()  # the sink is connected
        self._reader = RowReader(options)
        self._pull: OngoingRead[None] = OngoingRead(self.wait)
        self._next = 0.0  # loop time of the next query
        self._ran = False  # the query was executed
        self._finished = False  # and will not be executed again

    async def connect(self) -> None:
        name = f"tidelog {self.context.flow}.{self.context.name}"
        if self.context.source is not None:
            await self._reader.load()
            self._reading = await self._opened(name)
        if self.context.sink is not None:
            databases = [await self._opened(name) for _ in range(self._options.concurrency)]
            columns = await databases[0].columns(self._options.table or "")
            kind = ChangeRows if self._ordered else TableRows
            self._rows = kind(self._options, databases[0].dialect, columns)
            self._writes = RowWrites(databases, self.context.sent, stops=self._ordered)
            self._writable.set()

    async def _opened(self, name: str) -> DatabaseConnection:
        database = self._options.database(name)
        self._open.append(database)
        await database.open()
        return database

    async def close(self) -> None:
        self._writable.clear()
        await self._pull.cancel()
        if self._reader.forget():  # execute the query again
            self._ran, self._next = False, 0.0
        self._reading = None
        opened, self._open = self._open, []
        for each in opened:
            await each.close()

    # -- source ----------------------------------------------------------------------------------------------
    @property
    def room(self) -> int | None:
        """Limit the rows after the stored position."""
        return self._options.max_unsettled - self._reader.unsettled

    async def pull(self, limit: int) -> list[Event] | None:
        reader = self._reader
        if not reader.available:
            if not (reader.reading or await self._due()):
                return None if self._finished else []
            try:
                await self._pull.result(self._fill)
            except (RowRejectedError, DatabaseBusyError) as error:
                raise ConnectionError(str(error)) from error
        return reader.take(limit)

    async def _due(self) -> bool:
        """Wait for the time of the next query. Return False if there is none, or if the pull was interrupted."""
        loop = asyncio.get_running_loop()
        if self._ran and self._options.every is None:
            self._finished = True
            return False
        if loop.time() < self._next and not await self.wait(asyncio.sleep(self._next - loop.time())):
            return False
        self._next = loop.time() + (self._options.every or 0)
        self._ran = True
        return True

    async def _fill(self) -> None:
        if self._reading is None:
            raise ConnectionError("not connected")
        self.context.received(await self._reader.fill(self._reading))

    async def settled(self, tokens: Sequence[Token]) -> None:
        await self._reader.settled([token.key for token in tokens])

    # -- sink ------------------------------------------------------------------------------------------------
    async def write(self, events: list[Event]) -> Sequence[Outcome]:
        if self._rows is None or self._writes is None:
            raise ConnectionError("not connected")
        make = self._rows.row
        made = [writes_of(each, make) for each in events]
        error = await self._writes.write(made)
        if error is not None:
            self._writable.clear()
            self.context.disconnected(error)  # rows that were committed before have their own outcomes
        if self._ordered:
            await self._repeat(made, error)
        return outcomes_of(made)

    async def _repeat(self, made: Sequence[EventWrites], error: Exception | None) -> None:
        """Write the rows that were not written, until the database has accepted or rejected each of them."""
        delays = Delays(REPEATS, random.random)
        while left := [row for row in rows_of(made) if row.outcome[0] == RETRY]:
            self.context.count("repeated")
            if error is None:
                log.warning("%s: %s: %s", self.context.flow, self.context.name, left[0].outcome[1])
                await asyncio.sleep(delays.next())
            await self._writable.wait()
            assert self._writes is not None  # noqa: S101 - it is connected
            error = await self._writes.write(left)
            if error is not None:
                self._writable.clear()
                self.context.disconnected(error)
