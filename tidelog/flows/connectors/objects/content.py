"""Reads the events of one object, in portions.

Rule 1: An object of lines is read in ranges of RANGE bytes. Parquet needs random access, so it is copied to a temporary
        file.
Rule 2: What follows an error in a compressed stream is skipped. The error is an event with the path ``err``.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from tidelog.flows.api.event import Event
from tidelog.flows.connectors.objects.options import PARQUET, ObjectKind, ObjectStoreOptions
from tidelog.flows.connectors.objects.stores import ObjectStorage
from tidelog.flows.connectors.payload import PayloadReader
from tidelog.flows.connectors.sql.columnvalues import plain

RANGE: Final = 1 << 20  # bytes that are requested at a time
PIECE: Final = 16 << 10  # bytes that are decoded at a time
PACKED_PIECE: Final = 2 << 10  # compressed bytes that are decoded at a time
ROWS: Final = 500  # of Parquet that are decoded at a time


class ObjectContent(Protocol):
    """The content of one object. ``ended``: there are no more events."""

    ended: bool

    async def more(self) -> list[Event]:
        """Return the next events, which may be none. Raises OSError."""

    def close(self) -> None: ...


def content_of(
    options: ObjectStoreOptions, kind: ObjectKind, store: ObjectStorage, path: str, size: int,
    received: Callable[[int], None],
) -> ObjectContent:  # fmt: skip
    """Return the content of an object. ``received``: counts the bytes that were read."""
    if kind.format == PARQUET:
        return ParquetContent(store, path, received)
    reader = PayloadReader(options.payload(kind))
    return LineContent(reader, store, path, size, received, packed=kind.compression != "none")


class LineContent:
    """An object of lines, which may be compressed."""

    def __init__(
        self, reader: PayloadReader, store: ObjectStorage, path: str, size: int, received: Callable[[int], None], *,
        packed: bool,
    ) -> None:  # fmt: skip
        self.ended = False
        self._received = received
        self._reader = reader
        self._store = store
        self._path = path
        self._size = size
        self._at = 0  # bytes that were requested
        self._decoded = 0  # bytes that were decoded
        self._piece = PACKED_PIECE if packed else PIECE
        self._pieces: deque[bytes] = deque()

    async def more(self) -> list[Event]:
        if not self._pieces:
            data = b""
            if self._at < self._size:
                data = await self._store.read(self._path, self._at, min(self._size, self._at + RANGE))
            if not data:
                self.ended = True
                return self._reader.end()
            self._at += len(data)
            self._received(len(data))
            self._pieces.extend(data[at : at + self._piece] for at in range(0, len(data), self._piece))
        piece = self._pieces.popleft()
        self._decoded += len(piece)
        events: list[Event] = []
        try:
            events = self._reader.feed(piece)
            broken = self._reader.broken
        except ValueError as error:
            broken = str(error)
        if broken:
            self.ended = True
            events.append(Event(b"", {"error": f"before byte {self._decoded}: {broken}"}, path="err"))
        return events

    def close(self) -> None:
        """Do nothing: each range is a request of its own."""


class ParquetContent:
    """The rows of a Parquet file."""

    def __init__(self, store: ObjectStorage, path: str, received: Callable[[int], None]) -> None:
        self.ended = False
        self._received = received
        self._store = store
        self._path = path
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._rows: Iterator[list[dict[str, Any]]] | None = None

    async def more(self) -> list[Event]:
        if self._rows is None:
            self.close()
            self._directory = await asyncio.to_thread(tempfile.TemporaryDirectory, prefix="tidelog-object-")
            local = Path(self._directory.name, "rows.parquet")
            await self._store.download(self._path, local)
            self._received((await asyncio.to_thread(local.stat)).st_size)
            self._rows = _rows(local)
        try:
            rows = await asyncio.to_thread(next, self._rows, None)
        except ValueError as error:  # of pyarrow
            self.ended = True
            return [Event(b"", {"error": f"not Parquet: {error}"}, path="err")]
        self.ended = rows is None
        return [Event(each) for each in rows or ()]

    def close(self) -> None:
        directory, self._directory = self._directory, None
        self._rows = None
        if directory is not None:
            directory.cleanup()


def _rows(path: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield rows in portions. Raises ValueError if the file is not valid."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=ROWS):
                yield plain(batch.to_pylist())
    except (pa.ArrowException, OSError) as error:
        raise ValueError(str(error)) from error
