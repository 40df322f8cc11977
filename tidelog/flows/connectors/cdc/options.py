"""The options of ``postgres_cdc``."""

from __future__ import annotations

import importlib.util
import re
from typing import Final

from msgspec import field

from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.connectors.sql.options import parsed
from tidelog.flows.connectors.tls import ClientTlsOptions
from tidelog.options.units import PositiveDuration

SNAPSHOT: Final = "_snapshot"  # suffix of the slot that exists during the snapshot
_SLOT: Final = re.compile(r"[a-z0-9_]{1,54}")  # 63 with the suffix


class PostgresCdcOptions(ConnectorOptions, kw_only=True):
    """Options of ``postgres_cdc``."""

    url: str  # The database: `postgresql://USER@HOST/DATABASE`.
    password: str | None = None  # The password. `null`: that of the URL.
    tls: ClientTlsOptions | None = None  # TLS settings. `null`: those of the URL (`sslmode`).
    slot: str  # The replication slot, which stores the position on the server. Each flow needs its own.
    tables: list[str] = field(default_factory=list)
    # The tables, such as `shop.orders`, or `orders` in the schema `public`. Empty: all tables of the publication.
    publication: str = "tidelog"  # The publication that contains the tables.
    create: bool = False  # Create the publication, and add tables to it, if necessary.
    snapshot: bool = True  # Read the existing rows before the changes. `false`: only changes from the first start on.
    request_timeout: PositiveDuration = PositiveDuration(30.0)  # Time limit for connecting, and for each statement.
    status_interval: PositiveDuration = PositiveDuration(10.0)
    # Maximum time between two reports of the position to the server. Use less than `wal_sender_timeout` of the server.

    def __post_init__(self) -> None:
        super().__post_init__()
        if parsed(self.url)[0] != "postgresql":
            raise ValueError("url: it must begin with postgresql://")
        if not _SLOT.fullmatch(self.slot):
            raise ValueError(f"slot is {self.slot!r}: use at most 54 lower-case letters, digits, and _")
        if not self.publication or "\0" in self.publication:
            raise ValueError("publication is empty")
        for each in self.tables:
            if not all(each.split(".")) or each.count(".") > 1:
                raise ValueError(f"tables: {each!r} is not a table, such as orders or shop.orders")
        if self.create and not self.tables:
            raise ValueError("create needs tables: name the tables to add to the publication")

    @property
    def table_names(self) -> list[str]:
        """The tables with their schemas."""
        return [each if "." in each else f"public.{each}" for each in self.tables]

    @property
    def snapshot_slot(self) -> str:
        return self.slot + SNAPSHOT

    def driver_errors(self) -> list[str]:
        if importlib.util.find_spec("psycopg") is None:
            return ["postgres_cdc needs the package 'psycopg': pip install 'tidelog[flows-sql]'"]
        return []
