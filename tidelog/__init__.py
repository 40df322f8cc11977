"""tidelog: clients of a tidelog-server. They use RESP and share no code with the server.

``Client`` and ``AsyncClient`` send commands, and return ``Entry`` and the other classes here. ``Access``
specifies the servers if a URL is not sufficient.

    client         the clients and the commands
    transport      connections, leader lookup, and error replies, for the clients
    operating      logs, error texts and signals of programs
    coordination   leases and claims: which process may act
    options        how components declare their options; durations, start positions, retries
    topics         partitioned streams with records of one type
    workers        processes that share the processing of topics
    jobs           stateful exactly-once jobs on Spark
    flows          connectors and pipelines that pass events
    codecs         records as entries: plain fields, JSON, MessagePack
    arrow          streams and topics as Arrow columns
    sql            SQL over streams and topics, with DuckDB
    exporting      Parquet files of streams and topics, for data lakes
    spark          streams as a source and a sink of PySpark
    backup         backups of a running server, and restoring them
    moving         import from Redis and export to Redis
    console        a web application that shows and operates a server
    gateway        streams over HTTP, for programs without a Redis client
    cluster        runs a cluster on one machine, and changes clusters
    serverprogram  finds the tidelog-server that is installed with this package
    cli            the ``tidelog`` command
    testing        a server for your tests: ``running_server`` and pytest fixtures
"""

from tidelog.client import calls
from tidelog.client.asyncclient import AsyncClient
from tidelog.client.client import Client
from tidelog.client.entries import (
    MISSING,
    Batch,
    Delayed,
    DelayedPage,
    Entry,
    GroupInfo,
    Info,
    Missing,
    Pending,
    PendingSummary,
    Published,
    Span,
    StreamId,
    StreamPolicy,
)
from tidelog.transport.access import Access
from tidelog.transport.errors import ConflictError, CrossGroupError, NoGroupError, NoStageError, StaleEpochError

__version__ = "0.1.0"

__all__ = [
    "Access",
    "Client",
    "AsyncClient",
    "StreamId",
    "Entry",
    "Missing",
    "MISSING",
    "Batch",
    "Delayed",
    "DelayedPage",
    "Span",
    "Info",
    "StreamPolicy",
    "GroupInfo",
    "Pending",
    "PendingSummary",
    "Published",
    "NoGroupError",
    "NoStageError",
    "StaleEpochError",
    "ConflictError",
    "CrossGroupError",
    "calls",
    "__version__",
]
