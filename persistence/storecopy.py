"""A copy of the store for a replica: its entries one after another, in pieces of any size.

    a piece is one or more whole entries:
    +-------+----------------+------------------+------------+--------------+
    | db u8 | key length u16 | value length u32 | key        | value        |      numbers are big-endian
    +-------+----------------+------------------+------------+--------------+
    db      0 meta, 1 nodes, 2 streams, 3 groups, 4 strings, 5 stages, 6 fences, 7 marks, 8 producers
    key and value are those in the store (see ``layout``); only b"content" of db 0 is left out (see ``content``)

The entries of all pieces ascend by db, then key. So they can be appended to LMDB's pages as they arrive, none can
arrive twice, and a stream's nodes are known before the stream says how many there are."""

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
LATE = DATABASES[MARKS:]  # made when first needed: see ``layout``

NOT_SENT = META, b"content"

Entry = tuple[int, bytes, bytes]  # db, key, value


def format_of(nodes: int, plain: bool, shifted: bool) -> int:
    """What a server must know to read a store (replication.formats).

    ``nodes``: the highest version of a node; ``plain``: it has no late databases; ``shifted``: its served time was.
    """
    if shifted:
        return 4
    return 3 if nodes > 1 else 1 if plain else 2


class UnknownDatabaseError(CorruptError):
    """What came is sound, but of a newer version: to try again changes nothing."""


def entries(piece: bytes) -> Iterator[Entry]:
    """The entries of a piece. Raises CorruptError if it ends inside an entry, and UnknownDatabaseError."""
    at, end = 0, len(piece)
    while at < end:
        if at + ENTRY.size > end:
            raise CorruptError("a piece of a copy that ends inside of an entry")
        db, key_len, value_len = ENTRY.unpack_from(piece, at)
        key = at + ENTRY.size
        value = key + key_len
        at = value + value_len
        if at > end:
            raise CorruptError("a piece of a copy that makes no sense")
        if db >= len(DATABASES):
            raise UnknownDatabaseError(
                f"a copy with a database {db}, which this tidelog does not know: the leader is of a newer version"
            )
        yield db, piece[key:value], piece[value:at]


class StoreCopy:
    """The store at one moment. Any thread may read pieces, one at a time; close() waits for the piece being made."""

    def __init__(
        self, path: Path, txn: lmdb.Transaction, databases: Sequence[lmdb._Database], offset: int, nodes: int,
        shifted: bool,
    ) -> None:  # fmt: skip
        """``databases``: those that the transaction knows, in order. ``nodes``, ``shifted``: see format_of()."""
        self.offset = offset  # log offset of that moment
        self.plain = len(databases) < len(DATABASES)  # it has no late databases
        self.format = format_of(nodes, self.plain, shifted)
        self.entries = 0  # that will be sent
        self.bytes = 0  # of the pages that hold them: an estimate of what will be sent
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
        """Pieces of about ``size`` bytes; one entry may be larger. Raises OSError, CorruptError."""
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
        """End the read transaction: the store may reuse the pages that it kept."""
        with self._lock:
            if not self.closed:
                self.closed = True
                self._txn.abort()
