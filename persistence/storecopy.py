"""A copy of the store for a replica: its entries one after another, in pieces of any size.

    a piece is one or more complete entries:
    +-------+----------------+------------------+------------+--------------+
    | db u8 | key length u16 | value length u32 | key        | value        |      numbers are big-endian
    +-------+----------------+------------------+------------+--------------+
    db      0 meta, 1 nodes, 2 streams, 3 groups, 4 strings, 5 stages, 6 fences, 7 marks, 8 producers
    key and value are those in the store (see ``layout``), without b"content" of db 0 (see ``checksums``)

The entries of all pieces ascend by db, then key. They can therefore be appended to LMDB's pages as they arrive, none
can arrive twice, and the nodes of a stream are known before the stream states their number.

``replication.feed`` explains the size of the pieces.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct

import lmdb

from persistence.lmdbfile import reported
from resp.errors import CorruptError

ENTRY = Struct(">BHI")
META, NODES, STREAMS, GROUPS, STRINGS, STAGES, FENCES, MARKS, PRODUCERS = range(9)
DATABASES = (b"meta", b"nodes", b"streams", b"groups", b"strings", b"stages", b"fences", b"marks", b"producers")
LATE = DATABASES[MARKS:]  # created when they are first needed, see ``layout``

NOT_SENT = META, b"content"

Entry = tuple[int, bytes, bytes]  # db, key, value


def format_of(nodes: int, plain: bool, shifted: bool) -> int:
    """Return the format that a server must know to read a store (replication.formats).

    ``nodes``: the highest version of a node. ``plain``: no late databases. ``shifted``: served time was shifted.
    """
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
        if db >= len(DATABASES):
            raise UnknownDatabaseError(
                f"a copy with a database {db}, which this tidelog does not know: the leader is of a newer version"
            )
        yield db, piece[key:value], piece[value:at]


class StoreCopy:
    """The store at one point in time.

    Any thread may read pieces, one at a time. close() waits until the current piece is complete.
    """

    def __init__(
        self, path: Path, txn: lmdb.Transaction, databases: Sequence[lmdb._Database], offset: int, nodes: int,
        shifted: bool,
    ) -> None:  # fmt: skip
        """``databases``: those of the transaction, in order. ``nodes``, ``shifted``: see format_of()."""
        self.offset = offset  # log offset of the copy
        self.plain = len(databases) < len(DATABASES)  # no late databases
        self.format = format_of(nodes, self.plain, shifted)
        self.entries = 0  # number of entries to send
        self.bytes = 0  # size of the entries' pages, an estimate of the data to send
        self._path = path
        self._txn = txn
        self._databases = databases
        self._lock = threading.Lock()
        self.closed = False
        for db in databases:
            stat = txn.stat(db)
            self.entries += stat["entries"]
            self.bytes += (stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]) * stat["psize"]
        self.entries -= txn.get(NOT_SENT[1], db=databases[NOT_SENT[0]]) is not None

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield pieces of about ``size`` bytes; an entry may be larger. Raises OSError, CorruptError."""
        source = self._entries()
        while piece := self._piece(source, size):
            yield piece

    def _entries(self) -> Iterator[Entry]:
        for number, db in enumerate(self._databases):
            for key, value in self._txn.cursor(db=db):
                if (number, bytes(key)) != NOT_SENT:
                    yield number, bytes(key), bytes(value)

    def _piece(self, source: Iterator[Entry], size: int) -> bytes:
        parts: list[bytes] = []
        with self._lock, reported(self._path):
            if self.closed:
                raise OSError(errno.EBADF, "the store was closed while it was copied", str(self._path))
            for db, key, value in source:
                parts += (ENTRY.pack(db, len(key), len(value)), key, value)
                size -= ENTRY.size + len(key) + len(value)
                if size <= 0:
                    break
        return b"".join(parts)

    def close(self) -> None:
        """End the read transaction, so that the store may reuse the pages that it kept."""
        with self._lock:
            if not self.closed:
                self.closed = True
                self._txn.abort()
