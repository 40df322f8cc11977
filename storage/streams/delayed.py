"""Delayed entries: entries of a stream that join it when they are due. Semantics [104].

The delayed entries of a key are in a stream of their own, the *companion*, in the order in which they arrived. It has
its own sid, nodes, and tombstones, so that the store, copies, and the scrub handle it like any stream. Memory holds
only an index. The mutators are in ``storage.keyspace.delaymutators``.

Rule 1: an entry of the companion has one pair before those of the client:

    *7 $15 1486475519747.0  $5 token  $14 <due * 4 + flags>  $6 sensor $2 01 $11 temperature $4 35.6
       |-- its own ID -----|-- the head, see StoredDelay --|-- the client's pairs -------------------

Rule 2: nodes of the companion have at most about NODE_BYTES. Entries are read in the order of their due times: reading
one of 1 KB at random takes 110 us from a node of 64 KB, mostly to decompress it, and 40 us from one of 16 KB.
Rule 3: the index consists of rows of 16 bytes: due time and ordinal for each clock, and hash of the token and ordinal.
A delayed entry takes about 36 bytes of memory. A hash finds candidates; the token in the companion decides.
Rule 4: the index is stored with the checkpoint, in parts (``indexlog``). The part with an empty name contains the
numbers of entries by clock, and all rows if they are few. Numbers are big-endian:

    0        1            9          17          21
    +--------+------------+----------+-----------+
    | 1   u8 | served u64 | wall u64 | crc32 u32 |    meta; with 2: the rows are in other parts
    +--------+------------+----------+-----------+
    | rows in served time | rows in wall-clock time | rows of tokens | crc32 u32 |    16 bytes each
    +---------------------+-------------------------+----------------+-----------+

Valid if the checksums and lengths are correct, and the companion has as many entries after the changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from resp.errors import CorruptError
from storage.model.entries import COUNTS, id_bulk
from storage.model.sortedrows import PackedRows, SortedRows
from storage.streams.duerows import ROW, DueRows
from storage.streams.indexlog import META as CHANGES_META
from storage.streams.indexlog import REMOVED, ROWS_CHUNKS, ROWS_META, IndexChange, IndexLog, rows_name
from storage.streams.position import StreamPosition
from storage.streams.readahead import ReadAhead
from storage.streams.storedindex import ONE_PART, PARTS, StoredIndex, pack_head
from storage.streams.stream import Stream

NODE_BYTES: Final = 16 * 1024  # of wire form
RESCAN_MS: Final = 60_000  # after which passed entries are examined again, even if no repair is known
DELAYED_BYTES: Final = 1300  # memory of the objects without rows
LONGEST_TOKEN: Final = 256  # bytes
IndexPart = tuple[bytes, bytes, list[bytes | PackedRows]]  # of a capture: name, meta, and rows
WALL: Final = 1  # flags of an entry: its due time is wall-clock time, otherwise served time
OWN: Final = 2  # the client has chosen the token, so it is remembered after the delivery
SHIFT: Final = 2  # bits of the flags
LAST_DUE: Final = (1 << 62) - 1  # ms
CANDIDATES: Final = 100  # tokens with the same hash; even two are unlikely


class StoredDelay(NamedTuple):
    """An entry of the companion in parts."""

    token: bytes
    due: int  # ms; see WALL
    flags: int
    values: int  # number of the client's fields and values
    rest: bytes  # these, in wire form

    def wire(self, ms: int, seq: int) -> bytes:
        """Return the entry as it joins its stream, with the ID ms.seq."""
        words = self.values + 1
        head = COUNTS[words] if words < len(COUNTS) else b"*%d\r\n" % words
        return b"".join((head, id_bulk(ms, seq), b"\r\n", self.rest))


def stored_head(token: bytes, due: int, flags: int) -> list[bytes]:
    """Return the pair that precedes those of the client."""
    return [token, b"%d" % (due << SHIFT | flags)]


def split(wire: bytes) -> StoredDelay:
    """Return the parts of an entry of the companion. Raises CorruptError if it is not one."""
    try:
        at = wire.index(b"\r\n")
        count = int(_part(wire, 1, at)) - 3
        at = wire.index(b"\r\n", at + 2)
        at = wire.index(b"\r\n", at + 2) + 2  # after the ID
        end = wire.index(b"\r\n", at)
        start = end + 2
        at = start + int(_part(wire, at + 1, end))
        token = _part(wire, start, at)
        end = wire.index(b"\r\n", at + 2)
        start = end + 2
        end = wire.index(b"\r\n", start)
        number = int(wire[start:end])
    except ValueError as error:
        raise CorruptError("a delayed entry without its head") from error
    due = number >> SHIFT
    if not 0 < len(token) <= LONGEST_TOKEN or count < 2 or not 0 <= due <= LAST_DUE:
        raise CorruptError("a delayed entry with an invalid head")
    return StoredDelay(token, due, number & 3, count, wire[end + 2 :])


def _part(wire: bytes, start: int, stop: int) -> bytes:
    """Return wire[start:stop]. The check is needed because compiled slices must not end before they begin."""
    if start > stop:
        raise ValueError("a length that is not a number, or negative")
    return wire[start:stop]


def entry_at(position: StreamPosition, ordinal: int) -> bytes:
    """Return the entry with this ordinal, which is in the node of a position."""
    node, at = position.node, ordinal - position.first
    if node is None:
        raise CorruptError(f"the delayed entry {ordinal} has no node")
    return node.slice(at, at + 1)


def hash_of(token: bytes) -> bytes:
    """Return the 8 bytes by which the index finds a token."""
    return blake2b(token, digest_size=8).digest()


class DelayedEntries:
    """The delayed entries of one key: the companion and its index."""

    __slots__ = (
        "_bad", "_counted", "_log", "_rescan", "_served", "_stored", "_tokens", "_wall", "ahead", "changed", "entries",
        "passed",
    )  # fmt: skip

    def __init__(self, entries: Stream) -> None:
        self.entries = entries  # the companion
        self.ahead = ReadAhead()
        self._served = DueRows()
        self._wall = DueRows()
        self._tokens = SortedRows(ROW.size, ROW.size)
        self.changed = False  # the index has changed since the last capture
        self._log = IndexLog()
        self._stored: StoredIndex | None = None  # while the index is restored
        self.passed = False  # some entries are passed (``duerows``)
        self._bad: set[int] = set()  # the first ordinals of their nodes, as far as the damage is recorded
        self._rescan = 0  # ms since epoch: see RESCAN_MS
        self._counted = 0  # memory of the index that the pool includes
        self._count_memory()

    def __len__(self) -> int:
        return self._served.rows.count + self._wall.rows.count

    def _due(self, wall: int) -> DueRows:
        return self._wall if wall else self._served

    # -- reading -------------------------------------------------------------------------------------------------
    def first_due(self, wall: int) -> int | None:
        """Return the earliest due time (ms) of one clock that is not passed; None if there is none."""
        return self._due(wall).first()

    def due(self, wall: int, until: int, limit: int) -> list[tuple[int, int]]:
        """Return due times and ordinals of entries that are due at ``until`` or earlier and not passed, in order."""
        return self._due(wall).due(until, limit)

    def listed(self, wall: int, since: tuple[int, int], limit: int) -> list[tuple[int, int]]:
        """Return due times and ordinals from ``since`` on, in order."""
        rows = self._due(wall).rows.span(ROW.pack(*since), b"", limit)
        return [ROW.unpack(row) for row in rows]

    def pass_over(self, wall: int, due: int, ordinal: int, now: int) -> None:
        """Pass an entry in a damaged node (see ``duerows``)."""
        first = self.entries.node_start(ordinal)
        if first in self.entries.pool.damaged.get(self.entries.sid, ()):
            self._bad.add(first)
        if not self.passed:
            self.passed, self._rescan = True, now + RESCAN_MS
        self._due(wall).pass_over(due, ordinal)

    def include_repaired(self, now: int) -> None:
        """Include the entries that were passed if one of their nodes was repaired, or RESCAN_MS have passed."""
        bad = self.entries.pool.damaged.get(self.entries.sid, {})
        if self.passed and not (0 <= self._rescan - now <= RESCAN_MS and all(first in bad for first in self._bad)):
            self.passed = False
            self._bad.clear()
            self._served.reset()
            self._wall.reset()

    def find(self, token: bytes) -> tuple[int, StoredDelay] | None:
        """Return the ordinal and the parts of the entry with this token; None if there is none.

        Raises CorruptError if the node of a candidate is damaged.
        """
        prefix = hash_of(token)
        for row in self._tokens.span(prefix + bytes(8), prefix + b"\xff" * 8, CANDIDATES):
            ordinal = int.from_bytes(row[8:], "big")
            found = split(self.read(ordinal))
            if found.token == token:
                return ordinal, found
        return None

    def read(self, ordinal: int) -> bytes:
        """Return a living entry of the companion. Raises CorruptError if its node is damaged."""
        return entry_at(self.entries.position_of(ordinal), ordinal)

    def has(self, ordinal: int, found: StoredDelay) -> bool:
        """Return whether the index has this entry, with this due time and token."""
        token = hash_of(found.token) + ordinal.to_bytes(8, "big")
        return bool(self._due(found.flags & WALL).rows.get(ROW.pack(found.due, ordinal)) and self._tokens.get(token))

    # -- changes: the keyspace has prepared them -------------------------------------------------------------------
    def add(self, ms: int, seq: int, wire: bytes, found: StoredDelay) -> None:
        """Add an entry. ``found``: its parts."""
        ordinal = self.entries.next_ord
        self.entries.append(ms, seq, wire)
        self.entries.seal_from(NODE_BYTES)
        wall, token = found.flags & WALL, hash_of(found.token)
        self._due(wall).insert(ROW.pack(found.due, ordinal))
        self._tokens.insert(token + ordinal.to_bytes(8, "big"))
        self._log.note(IndexChange(found.due, wall, ordinal, token), 0, len(self))
        self._changed()

    def remove(self, ordinals: Sequence[int], entries: Sequence[StoredDelay]) -> None:
        """Remove entries that exist, in any order."""
        changes = [
            IndexChange(found.due, found.flags & WALL, ordinal, hash_of(found.token))
            for ordinal, found in zip(ordinals, entries, strict=True)
        ]
        self._remove_rows(changes)
        for change in changes:
            self._log.note(change, REMOVED, len(self))
        ascending = sorted(ordinals)
        self.entries.delete(ascending, 0)
        self.ahead.drop(self.entries, ascending)
        self._changed()

    def _remove_rows(self, changes: Sequence[IndexChange]) -> None:
        rows: tuple[list[bytes], list[bytes]] = [], []
        tokens: list[bytes] = []
        for change in changes:
            rows[change.wall].append(ROW.pack(change.due, change.ordinal))
            tokens.append(change.hash + change.ordinal.to_bytes(8, "big"))
        for target, some in ((self._served.rows, rows[0]), (self._wall.rows, rows[1]), (self._tokens, tokens)):
            if some:
                target.delete_many(sorted(some))

    def _changed(self) -> None:
        self.changed = True
        self._count_memory()

    # -- memory ----------------------------------------------------------------------------------------------------
    def index_bytes(self) -> int:
        """Return the estimated memory of the index."""
        rows = self._served.rows.memory_bytes() + self._wall.rows.memory_bytes() + self._tokens.memory_bytes()
        return DELAYED_BYTES + rows + self.ahead.memory_bytes() + self._log.memory_bytes()

    def memory_bytes(self) -> int:
        return self.entries.memory_bytes() + self.index_bytes()

    def _count_memory(self) -> None:
        size = self.index_bytes()
        self.entries.pool.bytes += size - self._counted
        self._counted = size

    def gone(self) -> None:
        """Subtract its memory from that of the pool."""
        self.ahead.clear(self.entries)
        self.entries.gone()
        self.entries.pool.bytes -= self._counted

    # -- checkpoints and start-up ----------------------------------------------------------------------------------
    def parts(self) -> list[bytes | PackedRows]:
        """Return the rows in parts, which later changes do not affect. O(number of entries / 100)."""
        return [*self._served.rows.dump(), *self._wall.rows.dump(), *self._tokens.dump()]

    def capture_index(self) -> tuple[list[IndexPart], list[bytes]]:
        """Return the parts of the index that the store lacks, and the names of those to delete. O(changes), except if
        there were many."""
        if self._log.whole:
            return self._capture_rows()
        part = self._log.part()
        return ([] if part is None else [(part[0], CHANGES_META, [part[1]])]), []

    def _capture_rows(self) -> tuple[list[IndexPart], list[bytes]]:
        chunks, served, wall = self.parts(), self._served.rows.count, self._wall.rows.count
        if len(chunks) <= ROWS_CHUNKS:  # earlier versions can read it
            return [(b"", pack_head(ONE_PART, served, wall), chunks)], self._log.begin_parts(0)
        parts: list[IndexPart] = [(b"", pack_head(PARTS, served, wall), [])]
        for number, at in enumerate(range(0, len(chunks), ROWS_CHUNKS)):
            parts.append((rows_name(number), ROWS_META, chunks[at : at + ROWS_CHUNKS]))
        return parts, self._log.begin_parts(len(parts) - 1)

    def capture_failed(self) -> None:
        """Write all rows with the next checkpoint, since a part was not stored."""
        self.changed = True
        self._log.must_be_whole()

    def restore_part(self, name: bytes, meta: bytes, value: bytes) -> None:
        """Add a part of the index, in the order of the store. Raises CorruptError if it is damaged."""
        if self._stored is None:
            self._stored = StoredIndex(self.entries.sid, [self._served.rows, self._wall.rows, self._tokens])
        self._stored.add(name, meta, value)

    def restored(self) -> None:
        """Complete the index. Raises CorruptError if it lacks parts, or the companion has another number of entries."""
        if self._stored is not None:
            self._log = self._stored.end()
            self._stored = None
        self._count_memory()
        if self.entries.length != len(self):
            raise CorruptError(f"the store lacks delayed entries of stream {self.entries.sid}, or their index")
