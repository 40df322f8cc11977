"""PostgreSQL, with psycopg.

Decision: parameters are sent as text of unknown type, so that PostgreSQL converts them to the type of the column. JSON
has no times, UUIDs, or decimals; with typed parameters, text in such a column would be an error.
Decision: the result of a query of a source is a cursor ``WITH HOLD``. The server stores it, and no transaction stays
open while a flow is paused.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg.adapt import Loader
from psycopg.types import datetime as times

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

ROW: Final = frozenset(("21", "22", "23", "44", "54", "P0"))  # classes of SQLSTATE that the values cause
ROW_STATES: Final = frozenset(("42804", "42846", "42P18", "428C9"))  # types that do not match; a generated column
LOST: Final = frozenset(("08", "57"))  # classes: connection errors, and a server that shuts down
CANCELLED: Final = "57014"  # of class 57, but only the statement is cancelled
READ_ONLY: Final = "25006"  # the server has become a replica
CURSOR: Final = "tidelog_rows"


def _new(record: logging.LogRecord) -> bool:
    """Drop what psycopg logs when ``executemany`` fails: the error is also raised, and the text has values of rows."""
    return not str(record.msg).startswith("error ignored terminating")


logging.getLogger("psycopg").addFilter(_new)


class PostgresDatabase(DatabaseConnection):
    """A connection to PostgreSQL. ``url`` is a URI of libpq."""

    dialect = Dialect('"', "${n}")

    def __init__(self, url: str, password: str | None, tls: ClientTlsOptions | None, name: str, timeout: float) -> None:
        super().__init__(timeout)
        self._url = url
        self._given: dict[str, Any] = {
            "application_name": name, "client_encoding": "UTF8", "connect_timeout": max(2, round(timeout)),
            "keepalives_idle": 30, "tcp_user_timeout": round(timeout * 1000),
        }  # fmt: skip
        if password is not None:
            self._given["password"] = password
        if tls is not None:
            self._given |= {"sslmode": "verify-full" if tls.verify else "require", "sslrootcert": tls.ca or "system"}
            self._given |= {"sslcert": tls.cert, "sslkey": tls.key or tls.cert}
            self._given = {name: each for name, each in self._given.items() if each is not None}
        self._connection: psycopg.AsyncConnection[Any] | None = None

    async def open(self) -> None:
        try:
            made = await psycopg.AsyncConnection.connect(
                self._url, autocommit=True, prepare_threshold=None, cursor_factory=psycopg.AsyncRawCursor, **self._given
            )
        except psycopg.Error as error:
            raise ConnectionError(one_line(error)) from error
        for kind, loader in _LOADERS.items():
            made.adapters.register_loader(kind, loader)
        self._connection = made

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _opened(self) -> psycopg.AsyncConnection[Any]:
        if self._connection is None:
            raise ConnectionError("not connected")
        return self._connection

    def abort(self) -> None:
        """Shut down the socket. Closing would leave psycopg waiting for a descriptor that no longer exists."""
        if self._connection is not None and not self._connection.closed:
            with socket.socket(fileno=os.dup(self._connection.fileno())) as connection:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # it is closed

    def translated(self, error: Exception) -> Exception:
        text = one_line(error)
        if isinstance(error, UnicodeError):
            return RowRejectedError(text)
        if not isinstance(error, psycopg.Error):
            return error
        state = error.sqlstate
        closed = self._connection is None or self._connection.closed
        if closed or (state is not None and state != CANCELLED and (state[:2] in LOST or state == READ_ONLY)):
            return ConnectionError(text)
        if state is None:  # psycopg itself: a value that it can't encode
            return DatabaseBusyError(text) if isinstance(error, psycopg.OperationalError) else RowRejectedError(text)
        return RowRejectedError(text) if state[:2] in ROW or state in ROW_STATES else DatabaseBusyError(text)

    async def _execute(self, groups: Sequence[tuple[str, list[tuple[Any, ...]]]]) -> None:
        connection = self._opened()
        async with connection.transaction(), connection.cursor() as cursor:
            for sql, rows in groups:
                await cursor.executemany(sql, [_untyped(each) for each in rows])

    async def _answers(self, sql: str, parameters: Sequence[tuple[Any, ...]], most: int) -> list[Rows]:
        connection = self._opened()
        found: list[Rows] = []
        async with connection.transaction(), connection.cursor() as cursor:
            for each in parameters:
                rows: Rows = []
                async for row in cursor.stream(sql, _untyped(each)):
                    if len(rows) >= most:
                        raise too_many(most)
                    rows.append(dict(zip(_names(cursor), row, strict=True)))
                found.append(rows)
        return found

    async def _read(self, sql: str, parameters: Sequence[Any]) -> RowStream:
        connection = self._opened()
        await connection.execute(f"DECLARE {CURSOR} CURSOR WITH HOLD FOR {sql}", _untyped(parameters))
        return _PostgresStream(self, connection)


class _PostgresStream:
    """The cursor CURSOR. psycopg's own class for cursors warns if it is not closed, also after a lost connection."""

    def __init__(self, database: PostgresDatabase, connection: psycopg.AsyncConnection[Any]) -> None:
        self._database = database
        self._connection = connection

    async def fetch(self, count: int) -> tuple[list[str], list[tuple[Any, ...]]]:
        return await self._database.limited(self._fetch(count))

    async def _fetch(self, count: int) -> tuple[list[str], list[tuple[Any, ...]]]:
        cursor = await self._connection.execute(f"FETCH FORWARD {count} FROM {CURSOR}")
        return _names(cursor), await cursor.fetchall()

    async def close(self) -> None:
        await self._database.limited(self._connection.execute(f"CLOSE {CURSOR}"))


def _names(cursor: Any) -> list[str]:
    return [each.name for each in cursor.description or ()]


def _untyped(parameters: Sequence[Any]) -> list[Any]:
    return [_text(each) for each in parameters]


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if type(value) in (int, float) else value


def _lenient(kind: type[Loader]) -> type[Loader]:
    """Return a loader that returns the text of values that Python can't represent, such as ``infinity``."""

    class Lenient(kind):  # type: ignore[misc,valid-type]
        def load(self, data: Any) -> Any:
            try:
                return super().load(data)
            except psycopg.DataError:
                return bytes(data).decode()

    return Lenient


_LOADERS: Final[dict[str, type[Loader]]] = {
    "date": _lenient(times.DateLoader), "timestamp": _lenient(times.TimestampLoader),
    "timestamptz": _lenient(times.TimestamptzLoader), "interval": _lenient(times.IntervalLoader),
}  # fmt: skip
