"""``sql_query``: a sink that executes a statement for each event. The rows of the result leave on the port ``out``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidelog.flows.api.connector import Outcome, Sink
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import DISCARD
from tidelog.flows.connectors.sql.database import DatabaseConnection
from tidelog.flows.connectors.sql.options import DatabaseOptions
from tidelog.flows.connectors.sql.rowwrites import EventWrites, RowWrite, RowWrites, outcomes_of, writes_of
from tidelog.flows.connectors.sql.statements import Statement
from tidelog.options.limits import AtLeastOne


class SqlQueryOptions(DatabaseOptions, kw_only=True):
    """Options of ``sql_query``."""

    query: str  # The statement, with parameters such as `:customer.id`.
    max_rows: AtLeastOne = 10_000  # Maximum number of rows of one result. An event whose result has more is rejected.

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.query.strip():
            raise ValueError("query is empty")


class SqlQuerySink(Sink):
    """Executes a statement. A batch of events is one transaction, as in ``rowwrites``."""

    type = "sql_query"
    Options = SqlQueryOptions

    @classmethod
    def option_errors(cls, options: SqlQueryOptions, *, source: bool) -> list[str]:  # noqa: ARG003
        return options.driver_errors()

    def __init__(self, options: SqlQueryOptions) -> None:
        self._options = options
        self.concurrency = options.concurrency
        self._databases: list[DatabaseConnection] = []
        self._writes: RowWrites | None = None
        self._statement: Statement | None = None

    async def connect(self) -> None:
        options = self._options
        for _ in range(options.concurrency):
            self._databases.append(options.database(f"tidelog {self.context.flow}.{self.context.name}"))
            await self._databases[-1].open()
        self._statement = Statement(options.query, self._databases[-1].dialect)
        most = options.max_rows if self.context.responds() else None
        self._writes = RowWrites(self._databases, self.context.sent, most)

    async def close(self) -> None:
        databases, self._databases = self._databases, []
        for each in databases:
            await each.close()

    async def write(self, events: list[Event]) -> Sequence[Outcome]:
        if self._writes is None:
            raise ConnectionError("not connected")
        made = [writes_of(each, self._write) for each in events]
        error = await self._writes.write(made)
        if error is not None:
            self.context.disconnected(error)  # statements that were committed before have their own outcomes
        if self.context.responds():
            pairs = zip(events, made, strict=True)
            self.context.respond([found for event, each in pairs if (found := self._response(event, each)) is not None])
        return outcomes_of(made)

    def _write(self, value: Any, meta: Mapping[str, Any]) -> RowWrite:
        assert self._statement is not None  # noqa: S101 - set by connect
        return RowWrite([(self._statement.sql, self._statement.parameters(value, meta))])

    def _response(self, event: Event, made: EventWrites) -> Event | None:
        """Return the rows as an event: a list, or for a batch one list for each member."""
        if not any(each.outcome[0] <= DISCARD for each in (made if isinstance(made, list) else [made])):
            return None
        response = event.derive([each.rows for each in made] if isinstance(made, list) else made.rows)
        response.path = f"{self.context.name}.out"
        response.token = None if event.token is None else event.token.fork()
        return response
