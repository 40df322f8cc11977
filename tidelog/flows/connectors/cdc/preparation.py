"""Checks that a server can send changes, creates the publication if this is wanted, and finds the replication slot.

Each error names the remedy, as SQL if possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import psycopg

from tidelog.flows.connectors.cdc.columntext import SETTINGS
from tidelog.flows.connectors.cdc.options import PostgresCdcOptions
from tidelog.flows.connectors.cdc.pgoutput import lsn_of
from tidelog.flows.connectors.sql.database import DatabaseBusyError, RowRejectedError, Rows
from tidelog.flows.connectors.sql.postgres import PostgresDatabase

AGAIN: Final = (
    "restart the flow, which then begins with a new snapshot; rows that were deleted in the meantime are not in it, so"
    " delete all rows at the destination first"
)
OTHER_LOG: Final = (
    "the server is a copy, or was restored. To continue at the position of its slot, restart the flow; the destination"
    " can have changes that the server no longer has"
)
MOST: Final = 100_000  # rows of a query of the catalog

_NO_KEY: Final = """
SELECT c.oid::regclass::text AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname || '.' || c.relname = $1 AND (c.relreplident = 'n' OR (c.relreplident = 'd' AND NOT EXISTS (
    SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)))
"""


class PublishedTable(NamedTuple):
    """A table of a publication."""

    schema: str
    table: str
    columns: tuple[str, ...]  # Empty: all
    where: str | None  # SQL

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"


class CatalogDatabase(PostgresDatabase):
    """A connection with the settings of ``columntext``."""

    def __init__(self, options: PostgresCdcOptions, name: str, **more: Any) -> None:
        super().__init__(options.url, options.password, options.tls, name, float(options.request_timeout))
        self._given |= {"options": SETTINGS, **more}

    async def rows(self, sql: str, *parameters: Any) -> Rows:
        """Return the rows of a query. Raises ConnectionError."""
        try:
            return (await self.answers(sql, [parameters], MOST))[0]
        except (RowRejectedError, DatabaseBusyError) as error:
            raise ConnectionError(str(error)) from error

    async def query(self, sql: str) -> psycopg.AsyncCursor[Any]:
        """Execute a statement, without a time limit. Raises errors of psycopg."""
        return await self._opened().execute(sql)

    async def run(self, sql: str) -> None:
        """Execute a statement. Raises ConnectionError."""
        try:
            await self.limited(self.query(sql))
        except (RowRejectedError, DatabaseBusyError) as error:
            raise ConnectionError(str(error)) from error


async def check_server(database: CatalogDatabase) -> None:
    """Raise ConnectionError if the server can't send changes."""
    (found,) = await database.rows(
        "SELECT current_setting('wal_level') AS level, current_user AS name,"
        " (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user) AS may"
    )
    if found["level"] != "logical":
        raise ConnectionError(
            f"wal_level is {found['level']}: execute ALTER SYSTEM SET wal_level = 'logical', and restart PostgreSQL"
        )
    if not found["may"]:
        raise ConnectionError(
            f"{found['name']} is not allowed to replicate: execute ALTER ROLE {quoted(found['name'])} REPLICATION"
        )


async def published_tables(database: CatalogDatabase, options: PostgresCdcOptions) -> list[PublishedTable]:
    """Return the tables of the publication that are wanted. Create it if this is wanted. Raises ConnectionError."""
    name = options.publication
    exists = await database.rows("SELECT puballtables FROM pg_publication WHERE pubname = $1", name)
    wanted = options.table_names
    if not exists:
        tables = ", ".join(map(quoted_table, wanted)) or "..."
        await _change(database, options, wanted, f"CREATE PUBLICATION {quoted(name)} FOR TABLE {tables}", "is missing")
    found = await _tables(database, name)
    missing = [each for each in wanted if each not in {one.name for one in found}]
    if missing:
        sql = f"ALTER PUBLICATION {quoted(name)} ADD TABLE {', '.join(map(quoted_table, missing))}"
        await _change(database, options, missing, sql, f"does not contain {', '.join(missing)}")
        found = await _tables(database, name)
        missing = [each for each in missing if each not in {one.name for one in found}]
        if missing:
            raise ConnectionError(f"publication {name!r}: {', '.join(missing)} is partitioned: name its partitions")
    if not found:
        raise ConnectionError(f"the publication {name!r} contains no tables: add some with ALTER PUBLICATION")
    return [each for each in found if not wanted or each.name in wanted]


async def _change(
    database: CatalogDatabase, options: PostgresCdcOptions, tables: Sequence[str], sql: str, why: str
) -> None:
    if not options.create:
        raise ConnectionError(f"the publication {options.publication!r} {why}: execute {sql}, or use create: true")
    for table in tables:
        # a publication without it would make each UPDATE and DELETE of the table fail
        if await database.rows(_NO_KEY, table):
            raise ConnectionError(
                f"{table} has no primary key: execute ALTER TABLE {quoted_table(table)} REPLICA IDENTITY FULL, because"
                " PostgreSQL would reject updates of a published table without a key"
            )
    await database.run(sql)


async def _tables(database: CatalogDatabase, name: str) -> list[PublishedTable]:
    rows = await database.rows("SELECT to_jsonb(t) AS t FROM pg_publication_tables AS t WHERE pubname = $1", name)
    found = [each["t"] for each in rows]  # before PostgreSQL 15, without attnames and rowfilter
    return [
        PublishedTable(each["schemaname"], each["tablename"], tuple(each.get("attnames") or ()), each.get("rowfilter"))
        for each in found
    ]


async def find_slot(database: CatalogDatabase, slot: str) -> int | None:
    """Return the LSN that is stored in a slot. None: it does not exist. Raises ConnectionError if it can't be used."""
    rows = await database.rows(
        "SELECT to_jsonb(s) AS slot, current_database() AS here FROM pg_replication_slots AS s WHERE slot_name = $1",
        slot,
    )
    if not rows:
        return None
    found, here = rows[0]["slot"], rows[0]["here"]
    drop = f"SELECT pg_drop_replication_slot('{slot}')"
    if found["plugin"] != "pgoutput" or found["database"] != here:
        raise ConnectionError(
            f"the slot {slot!r} has another purpose ({found['plugin']}, database {found['database']}): use another one"
        )
    if found.get("wal_status") == "lost" or found.get("invalidation_reason") or found.get("conflicting"):
        raise ConnectionError(
            f"the slot {slot!r} is lost, because the server has removed log that it needs: changes are missing."
            f" Increase max_slot_wal_keep_size, execute {drop}, and {AGAIN}"
        )
    if found["active"]:
        raise ConnectionError(
            f"the slot {slot!r} is used by another connection (process {found['active_pid']} of the server)"
        )
    return lsn_of(found["confirmed_flush_lsn"] or "0/0")


async def log_end(database: CatalogDatabase) -> int:
    """Return the LSN at which the log of a server ends. Raises ConnectionError."""
    (found,) = await database.rows(
        "SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END)::text"
        " AS lsn"
    )
    return lsn_of(found["lsn"])


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quoted_table(name: str) -> str:
    return ".".join(map(quoted, name.split(".", 1)))
