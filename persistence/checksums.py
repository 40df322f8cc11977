"""What the store says that it holds: a count and a sum for each database whose entries nothing else counts.

    db "meta"  b"content"  ->  crc | log offset u64 | transaction u64
                               | entries u64 | sum u64     of each of streams, groups, strings, stages, fences
                               | and, if there are any, of marks and producers

The sum is that of the entries' own crc's (mod 2**64), which cover key and value. So an entry that is lost, or comes
back from an earlier time, is noticed at the start, which reads all of them anyway. The nodes of a stream are counted by
the stream itself (see ``layout``).

"content" is written with every checkpoint. It holds for a store whose log offset is the same, and whose last
transaction is not a later one: a server from before there was "content" changes the store without it. (An earlier one
is that of a compact copy, which begins anew.) A store without a "content" that holds gets it with the next checkpoint.
A replica gets none from its leader, whose transactions are not its own: it writes one when the copy is complete."""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct

from persistence.storecopy import FENCES, GROUPS, MARKS, PRODUCERS, STAGES, STREAMS, STRINGS
from storage.model.ids import MASK64

COUNTED = (STREAMS, GROUPS, STRINGS, STAGES, FENCES, MARKS, PRODUCERS)
EARLIER = COUNTED[:5]  # what every version counts
CONTENT = Struct(">12Q")
LONGER = Struct(">16Q")


@dataclass(slots=True)
class Content:
    """Entries and sums of a store's databases, by their numbers in ``pieces``."""

    entries: dict[int, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    sums: dict[int, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))  # mod 2**64

    def add(self, db: int, crc: int) -> None:
        self.entries[db] += 1
        self.sums[db] = self.sums[db] + crc & MASK64

    def remove(self, db: int, crc: int) -> None:
        self.entries[db] -= 1
        self.sums[db] = self.sums[db] - crc & MASK64

    def set(self, db: int, entries: int, total: int) -> None:
        """``total``: the sum of the crc's."""
        self.entries[db], self.sums[db] = entries, total & MASK64

    def pack(self, offset: int, transaction: int) -> bytes:
        """The value of b"content" without its crc."""
        more = any(self.entries[db] or self.sums[db] for db in COUNTED[len(EARLIER) :])
        layout, counted = (LONGER, COUNTED) if more else (CONTENT, EARLIER)
        return layout.pack(offset, transaction, *(part for db in counted for part in (self.entries[db], self.sums[db])))

    @classmethod
    def unpack(cls, raw: bytes) -> tuple[Content, int, int]:
        """The content that pack() wrote, its log offset and its transaction. Raises struct.error."""
        layout, counted = (CONTENT, EARLIER) if len(raw) <= CONTENT.size else (LONGER, COUNTED)
        offset, transaction, *parts = layout.unpack(raw)
        pairs = zip(counted, parts[::2], parts[1::2], strict=True)
        content = cls()
        for db, entries, total in pairs:
            content.set(db, entries, total)
        return content, offset, transaction
