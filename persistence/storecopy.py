"""A copy of the store for a replica: its entries one after another, in pieces of any size.

    a piece is one or more complete entries:
    +-------+----------------+------------------+------------+--------------+
    | db u8 | key length u16 | value length u32 | key        | value        |      numbers are big-endian
    +-------+----------------+------------------+------------+--------------+
    db      0 meta, 1 nodes, 2 streams, 3 groups, 4 strings, 5 stages, 6 fences, 7 marks, 8 producers
    key and value are those in the store (see ``layout``), without b"content" of db 0 (see ``checksums``)

The entries of all pieces ascend by db, then key. They can therefore be appended to LMDB's pages as they arrive, none
can arrive twice, and the nodes of a stream are known before the stream states their number.

A copy for a replica that reports its nodes (``noderuns``) has references instead of the nodes that the replica has:

    db      129: a run of nodes that is in the replica's store
    key     the key of the first node
    value   the key of the last node, 32 bytes | the digest of the run, 16 bytes

``replication.feed`` explains the size of the pieces.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from struct import Struct

import lmdb

from persistence.layout import CODED, TIERED_FORMAT
from persistence.lmdbfile import reported
from persistence.noderuns import ReportedRuns, Run, RunDigest
from resp.errors import CorruptError

ENTRY = Struct(">BHI")
META, NODES, STREAMS, GROUPS, STRINGS, STAGES, FENCES, MARKS, PRODUCERS = range(9)
DATABASES = (b"meta", b"nodes", b"streams", b"groups", b"strings", b"stages", b"fences", b"marks", b"producers")
LATE = DATABASES[MARKS:]  # created when they are first needed, see ``layout``
REUSED = 0x80 | NODES  # a reference to nodes

NOT_SENT = META, b"content"

Entry = tuple[int, bytes, bytes]  # db, key, value


def format_of(nodes: int, plain: bool, shifted: bool, indexes: int) -> int:
    """Return the format that a server must know to read a store (replication.formats).

    ``nodes``: the highest version of a node. ``plain``: no late databases. ``shifted``: served time was shifted.
    ``indexes``: the highest format of a part of an index of delayed entries, and of metadata; 0: that of the rest.
    """
    if nodes > CODED:
        return max(TIERED_FORMAT, indexes)
    if indexes:
        return indexes
    if shifted:
        return 4
    return 3 if nodes > 1 else 1 if plain else 2


class UnknownDatabaseError(CorruptError):
    """The data is valid but of a newer version. Retrying does not help."""


def entries(piece: bytes) -> Iterator[Entry]:
    """Yield the entries of a piece. Raises CorruptError if it ends inside an entry, and UnknownDatabaseError."""
    at, end = 0, len(piece)
    while at < end:
        if at + ENTRY.size > end:
            raise CorruptError("a piece of a copy that ends inside of an entry")
        db, key_len, value_len = ENTRY.unpack_from(piece, at)
        key = at + ENTRY.size
        value = key + key_len
        at = value + value_len
        if at > end:
            raise CorruptError("a piece of a copy that is invalid")
        if db >= len(DATABASES) and db != REUSED:
            raise UnknownDatabaseError(
                f"a copy with a database {db}, which this tidelog does not know: the leader is of a newer version"
            )
        yield db, piece[key:value], piece[value:at]


class StoreSnapshot:
    """The store at one point in time.

    Any thread may read it, one at a time. close() waits until the current reading is complete.
    """

    def __init__(self, path: Path, txn: lmdb.Transaction, databases: Sequence[lmdb._Database]) -> None:
        """``databases``: those of the transaction, in order."""
        self._path = path
        self._txn = txn
        self._databases = databases
        self._lock = threading.Lock()
        self.closed = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Prevent the end of the transaction. Raises OSError if it has ended; LMDB's errors are converted."""
        with self._lock, reported(self._path):
            if self.closed:
                raise OSError(errno.EBADF, "the store was closed while it was copied", str(self._path))
            yield

    def close(self) -> None:
        """End the read transaction, so that the store may reuse the pages that it kept."""
        with self._lock:
            if not self.closed:
                self.closed = True
                self._txn.abort()


class StoreCopy(StoreSnapshot):
    """The store at one point in time, in pieces."""

    def __init__(
        self, path: Path, txn: lmdb.Transaction, databases: Sequence[lmdb._Database], offset: int, nodes: int,
        shifted: bool, indexes: int,
    ) -> None:  # fmt: skip
        """``databases``: those of the transaction, in order. ``nodes``, ``shifted``, ``indexes``: see format_of()."""
        super().__init__(path, txn, databases)
        self.offset = offset  # log offset of the copy
        self.plain = len(databases) < len(DATABASES)  # no late databases
        self.format = format_of(nodes, self.plain, shifted, indexes)
        self.entries = 0  # number of entries to send
        self.bytes = 0  # size of the entries' pages, an estimate of the data to send
        for db in databases:
            stat = txn.stat(db)
            self.entries += stat["entries"]
            self.bytes += (stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]) * stat["psize"]
        self.entries -= txn.get(NOT_SENT[1], db=databases[NOT_SENT[0]]) is not None

    def pieces(self, size: int, known: ReportedRuns | None = None) -> Iterator[bytes]:
        """Yield pieces of about ``size`` bytes; an entry may be larger. Raises OSError, CorruptError.

        ``known``: the nodes of the replica. A piece is then empty if ``size`` bytes of nodes were only compared, or if
        ``known`` is exhausted: the caller adds the next chunk before it continues.
        """
        source = self._entries(known)
        over = False
        while not over:
            piece, over = self._piece(source, size)
            if piece or not over:
                yield piece

    def _entries(self, known: ReportedRuns | None) -> Iterator[Entry | int]:
        """Yield the entries; in between, the number of bytes that were only compared (0: ``known`` is exhausted)."""
        for number, db in enumerate(self._databases):
            if number == NODES and known is not None:
                yield from self._unknown_nodes(db, known)
                continue
            for key, value in self._txn.cursor(db=db):
                if (number, bytes(key)) != NOT_SENT:
                    yield number, bytes(key), bytes(value)

    def _unknown_nodes(self, db: lmdb._Database, known: ReportedRuns) -> Iterator[Entry | int]:
        """Yield the nodes, or references to those that are known.

        A run is compared before it is sent, so that it need not be kept in memory.
        """
        cursor = self._txn.cursor(db=db)
        there = cursor.first()
        while there:
            first = bytes(cursor.key())
            while (run := known.at(first)) is None and known.exhausted:
                yield 0
            if run is not None and (yield from self._is_equal(db, first, run)):
                yield REUSED, first, run.last + run.digest
                there = cursor.set_range(run.last) and cursor.next()
                continue
            while there and (run is None or bytes(cursor.key()) <= run.last):
                yield NODES, bytes(cursor.key()), bytes(cursor.value())
                there = cursor.next()

    def _is_equal(self, db: lmdb._Database, first: bytes, run: Run) -> Generator[int, None, bool]:
        """Return whether the nodes from ``first`` to the end of the run are those of the run."""
        own = RunDigest()
        cursor = self._txn.cursor(db=db)
        there = cursor.set_range(first)
        while there and (key := bytes(cursor.key())) <= run.last:
            if own.count == run.nodes:
                return False
            blob = bytes(cursor.value())
            own.add(key, blob)
            yield max(1, len(blob))
            there = cursor.next()
        return own.run() == run

    def _piece(self, source: Iterator[Entry | int], size: int) -> tuple[bytes, bool]:
        """Return a piece, and whether it is the last one."""
        parts: list[bytes] = []
        with self.reading():
            for item in source:
                if isinstance(item, int):
                    size -= item or size
                else:
                    db, key, value = item
                    parts += (ENTRY.pack(db, len(key), len(value)), key, value)
                    size -= ENTRY.size + len(key) + len(value)
                if size <= 0:
                    break
            else:
                return b"".join(parts), True
        return b"".join(parts), False
