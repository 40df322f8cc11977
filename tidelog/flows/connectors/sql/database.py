"""``DatabaseConnection``: one connection to a database, without the differences between drivers.

Rule 1: Errors are of three kinds. ``RowRejectedError``: the rows can't be stored, now or later.
        ``DatabaseBusyError``: they can be stored later. ConnectionError: the connection is lost.
Rule 2: Each operation ends within ``timeout`` seconds. If not, the connection is closed, because the state of the
        operation is unknown.
Rule 3: An error text has no line breaks and at most LONGEST characters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, ClassVar, Final, Protocol, TypeVar

from tidelog.flows.connectors.sql.statements import Dialect

T = TypeVar("T")
LONGEST: Final = 500  # characters of an error text

Rows = list[dict[str, Any]]


class RowRejectedError(Exception):
    """The database rejects the values of at least one row."""


class DatabaseBusyError(Exception):
    """The database can't execute the statement at the moment: a deadlock, a full disk, a missing table."""


class RowStream(Protocol):
    """The result of a query, which is read in portions."""

    async def fetch(self, count: int) -> tuple[list[str], list[tuple[Any, ...]]]: ...  # columns, and at most count rows
    async def close(self) -> None: ...


class DatabaseConnection:
    """A connection. The methods with a leading underscore are implemented for each database."""

    dialect: ClassVar[Dialect]

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout  # s for each operation

    async def open(self) -> None:
        """Connect. Raises ConnectionError."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def columns(self, table: str) -> list[str]:
        """Return the names of a table's columns. Raises ConnectionError if there is no such table."""
        sql = f"SELECT * FROM {self.dialect.table(table)} WHERE 1 = 0"
        try:
            stream = await self.read(sql, ())
            try:
                names, _ = await stream.fetch(1)
            finally:
                await stream.close()
        except (RowRejectedError, DatabaseBusyError) as error:
            raise ConnectionError(str(error)) from error
        return names

    async def execute(self, groups: Sequence[tuple[str, list[tuple[Any, ...]]]]) -> None:
        """Execute statements, each with all of its parameters, in one transaction."""
        await self.limited(self._execute(groups))

    async def answers(self, sql: str, parameters: Sequence[tuple[Any, ...]], most: int) -> list[Rows]:
        """Execute a statement with each of the parameters, in one transaction. Return the rows of each execution.

        Raises RowRejectedError if there are more than ``most`` rows.
        """
        return await self.limited(self._answers(sql, parameters, most))

    async def read(self, sql: str, parameters: Sequence[Any]) -> RowStream:
        """Execute a query whose result is read in portions."""
        return await self.limited(self._read(sql, parameters))

    async def _execute(self, groups: Sequence[tuple[str, list[tuple[Any, ...]]]]) -> None:
        raise NotImplementedError

    async def _answers(self, sql: str, parameters: Sequence[tuple[Any, ...]], most: int) -> list[Rows]:
        raise NotImplementedError

    async def _read(self, sql: str, parameters: Sequence[Any]) -> RowStream:
        raise NotImplementedError

    def abort(self) -> None:
        """Make the current operation fail soon."""
        raise NotImplementedError

    def translated(self, error: Exception) -> Exception:
        """Return the error of Rule 1 for an error of the driver."""
        raise NotImplementedError

    async def limited(self, work: Coroutine[Any, Any, T]) -> T:
        """Implement Rule 2. Drivers that wait for a server when they are cancelled are aborted first."""
        task = asyncio.ensure_future(work)
        try:
            done, _ = await asyncio.wait((task,), timeout=self.timeout)
        except asyncio.CancelledError:
            self.abort()
            await asyncio.gather(task, return_exceptions=True)
            raise
        if not done:
            self.abort()
            await asyncio.gather(task, return_exceptions=True)
            raise ConnectionError(f"no reply within {self.timeout:g} s")
        try:
            return task.result()
        except (ConnectionError, RowRejectedError, DatabaseBusyError):
            raise
        except Exception as error:
            raise self.translated(error) from error


def too_many(most: int) -> RowRejectedError:
    return RowRejectedError(f"the result has more than max_rows, {most} rows")


def one_line(error: object) -> str:
    """Implement Rule 3."""
    return "; ".join(each.strip() for each in str(error).splitlines() if each.strip())[:LONGEST]
