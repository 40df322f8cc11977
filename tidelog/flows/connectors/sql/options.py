"""The options of ``sql``, and the URL of a database."""

from __future__ import annotations

import importlib.util
import re
from typing import Any, Final, Literal
from urllib.parse import SplitResult, unquote, urlsplit

from msgspec import field

from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.connectors.sql.database import DatabaseConnection
from tidelog.flows.connectors.sql.statements import Dialect, Statement
from tidelog.flows.connectors.tls import ClientTlsOptions
from tidelog.options.limits import AtLeastOne
from tidelog.options.units import PositiveDuration

KINDS: Final = {
    "postgresql": "postgresql", "postgres": "postgresql", "mysql": "mysql", "mariadb": "mysql", "sqlite": "sqlite",
}  # fmt: skip
_BAD_ESCAPE: Final = re.compile("%(?:00|(?![0-9a-fA-F]{2}))")
DRIVERS: Final = {"postgresql": "psycopg", "mysql": "aiomysql", "sqlite": ""}


class DatabaseOptions(ConnectorOptions, kw_only=True):
    """Options of connectors to a database."""

    url: str  # The database: `postgresql://USER@HOST/DATABASE`, `mysql://USER@HOST/DATABASE`, or `sqlite:///PATH`.
    password: str | None = None  # The password. `null`: that of the URL.
    tls: ClientTlsOptions | None = None  # TLS settings. `null`: those of the URL (`sslmode`); MySQL: no TLS.
    concurrency: AtLeastOne = 1  # Sink: number of connections that write at the same time. 1: in the order of events.
    request_timeout: PositiveDuration = PositiveDuration(30.0)  # Time limit for connecting, and for each statement.

    def __post_init__(self) -> None:
        super().__post_init__()
        kind, url = parsed(self.url)
        if self.tls is not None and kind == "sqlite":
            raise ValueError("tls: SQLite has no network connection")
        if kind == "sqlite" and not _path(url):
            raise ValueError("url has no path: use sqlite:///PATH, or sqlite:////PATH for an absolute path")

    def driver_errors(self) -> list[str]:
        """Return the reason why this kind of database can't be used here, or nothing."""
        kind = parsed(self.url)[0]
        driver = DRIVERS[kind]
        if driver and importlib.util.find_spec(driver) is None:
            return [f"url: {kind} needs the package {driver!r}: pip install 'tidelog[flows-sql]'"]
        return []

    def database(self, name: str) -> DatabaseConnection:
        """Return a connection that is not open. name: how the server shows it."""
        kind, url = parsed(self.url)
        timeout = float(self.request_timeout)
        if kind == "sqlite":
            from tidelog.flows.connectors.sql.sqlite import SqliteDatabase  # here: drivers are optional

            return SqliteDatabase(_path(url), timeout)
        if kind == "mysql":
            from tidelog.flows.connectors.sql.mysql import MysqlDatabase

            return MysqlDatabase(url, self.password, self.tls, name, timeout)
        from tidelog.flows.connectors.sql.postgres import PostgresDatabase

        return PostgresDatabase(url._replace(scheme="postgresql").geturl(), self.password, self.tls, name, timeout)


class SqlOptions(DatabaseOptions, kw_only=True):
    """Options of ``sql``."""

    table: str | None = None
    # Sink: the table, with exact upper and lower case: `orders`, `shop.orders`. Required.
    columns: list[str] | dict[str, str] | None = None
    # Sink: names of columns, or `{COLUMN: PATH}`. `null`: each name in the event's value is a column.
    mode: Literal["insert", "upsert", "ignore", "changes"] = "insert"
    # Sink: if a row with the same key exists, `insert` rejects the event, `upsert` updates the row, and `ignore` keeps
    # the row. `changes`: each event is a change of a row, and changes are applied in their order.
    key: list[str] = field(default_factory=list)
    # Sink: the columns that identify a row. Required for `upsert` and `changes`.
    query: str | None = None  # Source: the `SELECT`. Required.
    every: PositiveDuration | None = None  # Source: period of the query. `null`: it runs once, and the source ends.
    cursor: str | None = None  # Source: a unique column that increases. Only rows after the last one are read.
    start: int | float | str | None = None
    # Source: the value of `:cursor` for the first query. Required with `cursor`.
    position: str | None = None  # Source: the path of a file that stores the cursor. Required with `cursor`.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.table is not None and not all(self.table.split(".")):
            raise ValueError(f"table is {self.table!r}: it must be a name such as orders or shop.orders")
        if self.table is None and self.query is None:
            raise ValueError("table or query is missing: a sink needs a table, and a source a query")
        if self.mode in ("upsert", "changes") and not self.key:
            raise ValueError(f"key is missing: mode {self.mode} needs the columns that identify a row")
        if self.mode == "changes":
            self._check_changes()
        if self.columns is not None and not self.columns:
            raise ValueError("columns is empty: name at least one, or remove the option")
        self._check_query(set(Statement(self.query or "", Dialect('"', "?")).names))

    def _check_changes(self) -> None:
        if self.concurrency != 1:
            raise ValueError("concurrency: mode changes needs 1, because changes are applied in their order")
        if self.timeout is not None:
            raise ValueError(
                "timeout: omit it with mode changes, because a change that is retried later would replace newer ones;"
                " request_timeout limits each statement"
            )
        for each in self.key:
            if self.columns is not None and each not in self.columns:
                raise ValueError(f"key: {each!r} is not in columns")

    def _check_query(self, names: set[str]) -> None:
        if names - {"cursor"}:
            name = min(names - {"cursor"})
            raise ValueError(f"query: a source has no value for :{name}; sql_query executes a query for each event")
        if self.cursor is None:
            if self.position is not None or self.start is not None or names:
                raise ValueError("cursor is missing: :cursor, position and start are of no use without it")
            return
        if not names:
            raise ValueError("query must contain :cursor, as in SELECT ... WHERE id > :cursor ORDER BY id")
        if self.start is None:
            raise ValueError("start is missing: the value before that of the first row, such as 0")
        if self.position is None:
            raise ValueError("position is missing: the path of the file that stores the cursor")


def parsed(text: str) -> tuple[str, SplitResult]:
    """Return the kind of database, and its URL. Raises ValueError, without the URL, which may contain a password."""
    url = urlsplit(text)
    kind = KINDS.get(url.scheme.partition("+")[0])  # "postgresql+asyncpg", as SQLAlchemy writes it
    if kind is None or "://" not in text:
        raise ValueError("url: it must begin with postgresql://, mysql:// or sqlite:///")
    user, _, _ = url.netloc.rpartition("@")
    unescaped = "@" in user + url.path + url.query or "#" in text or user.count(":") > 1
    if kind != "sqlite" and (unescaped or _BAD_ESCAPE.search(text)):  # libpq would quote the password in its error
        raise ValueError(
            "url: a password with @, :, /, ?, # or % must be escaped (%40, %3A, %2F, %3F, %23, %25), or use password"
        )
    if kind == "mysql":
        _check_mysql(url)
    return kind, url


def _check_mysql(url: SplitResult) -> None:
    try:
        known: Any = (url.hostname, url.port)
    except ValueError:
        known = None
    if known is None or not url.path.strip("/"):
        raise ValueError("url: it must have a host, a number as its port, and a database: mysql://HOST:PORT/DATABASE")
    if url.query:
        raise ValueError("url: mysql URLs have no parameters; use the options password and tls")


def _path(url: SplitResult) -> str:
    return unquote(url.path[1:]) if not url.netloc else ""
