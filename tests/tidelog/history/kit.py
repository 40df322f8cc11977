"""A server that copies its history at once, and reads of this history."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import hiredis

from tests.waiting import eventually
from tests.wire.rawclient import Raw
from tidelog.client.entries import StreamId
from tidelog.history.planning import HistoryPiece, HistoryPlanner
from tidelog.history.reading import read_piece
from tidelog.testing import Server, running_server
from tidelog.transport.access import Access
from tidelog.transport.leader import LeaderConnection

ZERO = StreamId(0, 0)
NODE = 10  # entries of a node

Entry = list[bytes]  # ID, field, value ...


@contextmanager
def tiered(url: Path | str, node: int = NODE, **config: str | int) -> Iterator[Server]:
    """A server that copies sealed nodes as soon as a checkpoint contains them."""
    options: dict[str, Any] = {"tier_url": str(url), "tier_after": 0, "tier_interval": 0, **config}
    with running_server(stream_node_max_entries=node, **options) as server:
        yield server


def copy_all(server: Server) -> None:
    """Write a checkpoint, and wait until everything in it is copied."""
    with Raw(server.port) as client:

        def passes() -> int:
            lines = client("INFO", "persistence").decode().splitlines()
            return int(next(line for line in lines if line.startswith("tier_passes:")).partition(":")[2])

        assert client("SAVE") == b"OK"
        before = passes()
        eventually(lambda: passes() >= before + 2, "the history was not copied")  # the first one may have begun earlier


@contextmanager
def planner(server: Server) -> Iterator[HistoryPlanner]:
    with closing(LeaderConnection(Access.of(server.url), "test")) as servers:
        yield HistoryPlanner(servers.ask)


def entries_of(data: bytes) -> list[Entry]:
    """Parse entries in RESP."""
    reader = hiredis.Reader()
    reader.feed(data)
    found = []
    while (entry := reader.gets()) is not False:
        found.append(entry)
    return found


def read(piece: HistoryPiece | None) -> list[Entry]:
    return [] if piece is None else [entry for data in read_piece(piece) for entry in entries_of(bytes(data))]


def on_server(server: Server, key: str | bytes, after: StreamId = ZERO, end: StreamId | str = "+") -> list[Entry]:
    with Raw(server.port) as client:
        return list(client("TRANGE", key, f"({after}", str(end)))
