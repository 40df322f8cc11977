"""tidelog: what users import. It talks RESP to a tidelog-server and shares no code with it.

``Client`` and ``AsyncClient`` have the commands, ``Entry`` and its kin are what they return, ``tidelog.testing`` starts
a server for your tests, and the ``tidelog`` program loads, tails and dumps streams.
"""

from tidelog.client import calls
from tidelog.client.aio import AsyncClient
from tidelog.client.client import Client, NoGroupError, NoStageError, StaleEpochError
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
    "calls",
    "__version__",
]
