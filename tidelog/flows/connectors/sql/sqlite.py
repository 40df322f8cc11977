"""SQLite, with the module ``sqlite3`` in a thread of its own."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from tidelog.flows.connectors.sql.database import (
    DatabaseBusyError,
    DatabaseConnection,
    RowRejectedError,
    Rows,
    RowStream,
    one_line,
    too_many,
)
from tidelog.flows.connectors.sql.statements import Dialect

T = TypeVar("T")
MEMORY: Final = ":memory:"


class SqliteDatabase(DatabaseConnection):
    """A connection to a file. While another process writes, operations wait for up to ``timeout`` seconds."""

    dialect = Dialect('"', "?{n}")

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__(timeout)
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def open(self) -> None:
        self._thread = ThreadPoolExecutor(1, "sqlite")
        try:
            self._connection = await self.call(self._connect)
        except sqlite3.Error as error:
            raise ConnectionError(f"{self._path}: {one_line(error)}") from error

    def _connect(self) -> sqlite3.Connection:
        made = sqlite3.connect(self._path, timeout=self.timeout / 2, isolation_level=None, check_same_thread=False)
        try:
            made.execute("SELECT count(*) FROM sqlite_master").fetchone()  # reads the file: it may be no database
        except BaseException:
            made.close()
            raise
        return made

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        connection, self._connection = self._connection, None
        if thread is not None:
            if connection is not None:
                connection.interrupt()
                thread.submit(connection.close)
            thread.shutdown(wait=False)

    async def call(self, work: Callable[..., T], *arguments: Any) -> T:
        """Call a function in the thread, and wait for its end even if this is cancelled."""
        if self._thread is None:
            raise ConnectionError("not connected")
        done = asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            self.abort()
            await asyncio.gather(done, return_exceptions=True)
            raise

    def abort(self) -> None:
        if self._connection is not None:
            self._connection.interrupt()

    def translated(self, error: Exception) -> Exception:
        if isinstance(error, (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError)):
            return RowRejectedError(one_line(error))
        if isinstance(error, (OverflowError, UnicodeError)):
            return RowRejectedError(one_line(error))
        if isinstance(error, sqlite3.ProgrammingError) and "bind" in str(error):
            return RowRejectedError(one_line(error))
        return DatabaseBusyError(one_line(error)) if isinstance(error, sqlite3.Error) else error

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise ConnectionError("not connected")
        return self._connection

    async def _execute(self, groups: Sequence[tuple[str, list[tuple[Any, ...]]]]) -> None:
        def work(connection: sqlite3.Connection) -> None:
            for sql, rows in groups:
                connection.executemany(sql, rows)

        await self.call(_in_transaction, self._opened(), work)

    async def _answers(self, sql: str, parameters: Sequence[tuple[Any, ...]], most: int) -> list[Rows]:
        def work(connection: sqlite3.Connection) -> list[Rows]:
            found: list[Rows] = []
            for each in parameters:
                cursor = connection.execute(sql, each)
                rows = cursor.fetchmany(most + 1)
                if len(rows) > most:
                    raise too_many(most)
                found.append([dict(zip(_names(cursor), row, strict=True)) for row in rows])
            return found

        return await self.call(_in_transaction, self._opened(), work)

    async def _read(self, sql: str, parameters: Sequence[Any]) -> RowStream:
        return _SqliteStream(self, await self.call(self._opened().execute, sql, tuple(parameters)))


class _SqliteStream:
    def __init__(self, database: SqliteDatabase, cursor: sqlite3.Cursor) -> None:
        self._database = database
        self._cursor = cursor

    async def fetch(self, count: int) -> tuple[list[str], list[tuple[Any, ...]]]:
        rows = await self._database.limited(self._database.call(self._cursor.fetchmany, count))
        return _names(self._cursor), rows

    async def close(self) -> None:
        await self._database.limited(self._database.call(self._cursor.close))


def _in_transaction(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # some errors end the transaction
            connection.execute("ROLLBACK")
        raise
    return result


def _names(cursor: sqlite3.Cursor) -> list[str]:
    return [each[0] for each in cursor.description or ()]
