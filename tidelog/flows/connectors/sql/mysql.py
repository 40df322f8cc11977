"""MySQL and MariaDB, with aiomysql.

Rule 1: The session is strict. Without it, a server shortens or changes values that do not fit, and only warns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import SplitResult, unquote

import aiomysql
from pymysql.constants import CLIENT
from pymysql.err import (
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    MySQLError,
    NotSupportedError,
    ProgrammingError,
)

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
from tidelog.flows.connectors.tls import ClientTlsOptions

LOST: Final = frozenset((0, 1053, 1077, 1079, 1080, 1158, 1159, 1160, 1161, 1290, 1836, 2006, 2013, 2014, 2055))
# shutdown, network errors, and a server that has become read-only
ROW: Final = frozenset((1048, 1153, 1264, 1265, 1292, 1364, 1366, 1367, 1406, 1411, 1416, 1644, 3140, 3819, 3988, 4025))
# values that do not fit, a packet that is too large, SIGNAL of a trigger, CHECK
SESSION: Final = "SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES'), net_write_timeout = 31536000"
# net_write_timeout: a flow may be paused while it reads a result


class _Quiet(aiomysql.Cursor):  # type: ignore[misc] # it has no types
    async def _show_warnings(self, connection: Any) -> None:
        """Do not raise Python warnings: a strict session reports lost data as errors."""


class _QuietStream(aiomysql.SSCursor):  # type: ignore[misc]
    async def _show_warnings(self, connection: Any) -> None: ...


class MysqlDatabase(DatabaseConnection):
    """A connection to MySQL or MariaDB."""

    dialect = Dialect("`", "%s", backslashes=True, on_duplicate=True)

    def __init__(
        self, url: SplitResult, password: str | None, tls: ClientTlsOptions | None, name: str, timeout: float
    ) -> None:
        super().__init__(timeout)
        given = password if password is not None else unquote(url.password or "")
        self._given: dict[str, Any] = {
            "host": url.hostname or "localhost", "port": url.port or 3306, "user": unquote(url.username or ""),
            "password": given, "db": unquote(url.path.lstrip("/")), "charset": "utf8mb4", "program_name": name,
            "init_command": SESSION, "cursorclass": _Quiet, "autocommit": True,
            "client_flag": CLIENT.FOUND_ROWS,
        }  # fmt: skip
        self._tls = tls
        self._connection: Any = None

    async def open(self) -> None:
        context = None if self._tls is None else await asyncio.to_thread(self._tls.context)
        try:
            async with asyncio.timeout(self.timeout):
                self._connection = await aiomysql.connect(**self._given, ssl=context)
        except TimeoutError:
            raise ConnectionError(f"no reply within {self.timeout:g} s") from None
        except Error as error:
            cause = "" if error.__cause__ is None else f": {one_line(error.__cause__)}"
            raise ConnectionError(_text(error) + cause) from error

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _opened(self) -> Any:
        if self._connection is None:
            raise ConnectionError("not connected")
        return self._connection

    def abort(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def translated(self, error: Exception) -> Exception:
        text = _text(error)
        if isinstance(error, (UnicodeError, OverflowError)):
            return RowRejectedError(text)
        if not isinstance(error, MySQLError):
            return error
        number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        if self._connection is None or self._connection.closed:
            return ConnectionError(text)
        if isinstance(error, (DataError, IntegrityError)) or number in ROW:
            return RowRejectedError(text)
        if isinstance(error, (ProgrammingError, NotSupportedError)) and not number:
            return RowRejectedError(text)  # the driver itself can't encode a value, such as nan
        return ConnectionError(text) if number in LOST or isinstance(error, InterfaceError) else DatabaseBusyError(text)

    async def _execute(self, groups: Sequence[tuple[str, list[tuple[Any, ...]]]]) -> None:
        async def work(cursor: Any) -> None:
            for sql, rows in groups:
                await cursor.executemany(sql, rows)

        await self._in_transaction(work)

    async def _answers(self, sql: str, parameters: Sequence[tuple[Any, ...]], most: int) -> list[Rows]:
        async def work(cursor: Any) -> list[Rows]:
            found: list[Rows] = []
            for each in parameters:
                await cursor.execute(sql, each)
                rows = await cursor.fetchmany(most + 1)
                if len(rows) > most:
                    raise too_many(most)
                found.append([dict(zip(_names(cursor), row, strict=True)) for row in rows])
            return found

        found: list[Rows] = await self._in_transaction(work, _QuietStream)
        return found

    async def _in_transaction(self, work: Any, kind: Any = _Quiet) -> Any:
        connection = self._opened()
        await connection.begin()
        try:
            async with connection.cursor(kind) as cursor:
                result = await work(cursor)
            await connection.commit()
        except BaseException:
            if not connection.closed:
                await connection.rollback()
            raise
        return result

    async def _read(self, sql: str, parameters: Sequence[Any]) -> RowStream:
        cursor = await self._opened().cursor(_QuietStream)
        await cursor.execute(sql, tuple(parameters))
        return _MysqlStream(self, cursor)


class _MysqlStream:
    def __init__(self, database: MysqlDatabase, cursor: Any) -> None:
        self._database = database
        self._cursor = cursor

    async def fetch(self, count: int) -> tuple[list[str], list[tuple[Any, ...]]]:
        rows = await self._database.limited(self._cursor.fetchmany(count))
        return _names(self._cursor), list(rows)

    async def close(self) -> None:
        await self._database.limited(self._cursor.close())


def _names(cursor: Any) -> list[str]:
    return [each[0] for each in cursor.description or ()]


def _text(error: Exception) -> str:
    """Return the message of the server, with its number."""
    if len(error.args) >= 2 and isinstance(error.args[0], int):
        return one_line(f"{error.args[1]} (error {error.args[0]})")
    return one_line(error)
