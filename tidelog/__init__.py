"""tidelog: clients of a tidelog-server. They talk RESP to it and share no code with it.

``Client`` and ``AsyncClient`` send commands; ``Entry`` and the other classes here are what they return. ``Access``
specifies the servers if a URL is not sufficient.

    client   the clients, and what the other parts build on
    topics   streams in parts, with records of one type
    workers  programs that process the records of topics
    codecs   records as entries: plain fields, JSON, MessagePack
    spark    streams as a source and a sink of PySpark
    backup   backups of a running server, and what is restored from them
    beside   the tidelog-server installed beside this package
    cli      the ``tidelog`` program
    testing  a server for your tests: ``running_server`` and pytest fixtures
"""

from tidelog.client import calls
from tidelog.client.access import Access
from tidelog.client.aio import AsyncClient
from tidelog.client.client import Client, ConflictError, NoGroupError, NoStageError, StaleEpochError
from tidelog.client.entries import (
    MISSING,
    Batch,
    Entry,
    GroupInfo,
    Info,
    Missing,
    Pending,
    PendingSummary,
    Published,
    Span,
    StreamId,
)

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
    "Span",
    "Info",
    "GroupInfo",
    "Pending",
    "PendingSummary",
    "Published",
    "NoGroupError",
    "NoStageError",
    "StaleEpochError",
    "ConflictError",
    "calls",
    "__version__",
]
