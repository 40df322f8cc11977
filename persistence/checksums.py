"""Counts and checksums of the store's databases whose entries are not counted elsewhere.

    db "meta"  b"content"  ->  crc | log offset u64 | transaction u64
                               | entries u64 | sum u64     of each of streams, groups, strings, stages, fences
                               | and, if there are any, of marks and producers

The sum is that of the crcs of the entries (mod 2**64), which cover key and value. A start, which reads all of them
anyway, thus detects a missing or outdated entry. The nodes of a stream are counted by the stream (see ``layout``).

"content" is written with every checkpoint. It is valid if its log offset is that of the store and its transaction is
not before the store's last one. Servers that do not know "content" change the store without updating it. (Its
transaction can be later in a compact copy, whose transaction numbers start again.) A store without a valid "content"
gets one with the next checkpoint. A replica does not receive it from its leader, whose transactions differ, and writes
its own when the copy is complete.

Decision: LMDB's meta pages have no checksum. The store therefore counts its entries, and the WAL records the positions
of journal and store. Both are written after the data, so that a kill never leaves a count or position that is too high.
Both cost less than the variation between starts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct

from persistence.storecopy import FENCES, GROUPS, MARKS, PRODUCERS, STAGES, STREAMS, STRINGS
from storage.model.ids import MASK64

COUNTED = (STREAMS, GROUPS, STRINGS, STAGES, FENCES, MARKS, PRODUCERS)
EARLIER = COUNTED[:5]  # counted by every version
CONTENT = Struct(">12Q")
LONGER = Struct(">16Q")


@dataclass(slots=True)
class StoreContent:
    """Entries and sums of a store's databases, by their numbers in ``storecopy``."""

    entries: dict[int, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    sums: dict[int, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))  # mod 2**64

    def add(self, db: int, crc: int) -> None:
        self.entries[db] += 1
        self.sums[db] = self.sums[db] + crc & MASK64

    def remove(self, db: int, crc: int) -> None:
        self.entries[db] -= 1
        self.sums[db] = self.sums[db] - crc & MASK64

    def set(self, db: int, entries: int, total: int) -> None:
        """Set the number of entries and the sum of their crcs."""
        self.entries[db], self.sums[db] = entries, total & MASK64

    def pack(self, offset: int, transaction: int) -> bytes:
        """Return the value of b"content" without its crc."""
        more = any(self.entries[db] or self.sums[db] for db in COUNTED[len(EARLIER) :])
        layout, counted = (LONGER, COUNTED) if more else (CONTENT, EARLIER)
        return layout.pack(offset, transaction, *(part for db in counted for part in (self.entries[db], self.sums[db])))

    @classmethod
    def unpack(cls, raw: bytes) -> tuple[StoreContent, int, int]:
        """Return the content, its log offset, and its transaction. Raises struct.error if the size is wrong."""
        layout, counted = (CONTENT, EARLIER) if len(raw) <= CONTENT.size else (LONGER, COUNTED)
        offset, transaction, *parts = layout.unpack(raw)
        pairs = zip(counted, parts[::2], parts[1::2], strict=True)
        content = cls()
        for db, entries, total in pairs:
            content.set(db, entries, total)
        return content, offset, transaction
