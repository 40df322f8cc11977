"""MAXCOUNT and MAXSIZE of XREAD and XREADGROUP, which limit a whole reply. They follow Redis 8.10.

MAXSIZE is a soft limit: the reply has at least one entry, and no entry is added once its size has reached the limit.
The size is that of the reply as sent. As in Redis, the head of a key counts before its entries, the header of its array
counts after them, and the header of the reply does not count. A key whose head reaches the limit has an empty array.
The keys after it are neither in the reply nor read, so that a group does not even create the consumer there.
"""

from __future__ import annotations

from typing import Final

from commands.parse import integer
from commands.redis_streams.ids import xid_bulk
from commands.redis_streams.replies import KeyPart
from resp import errors
from resp import reply as encode
from resp.errors import CommandError
from storage.groups.pending import PendingRow
from storage.streams.stream import Stream

NO_LIMIT: Final = 0
# the bytes by which an entry in a reply is longer than its wire form: ``*2`` and its CRLF
ENTRY_MORE: Final = 4
CLAIMED_MORE: Final = 12  # the same for a new entry of XREADGROUP with CLAIM, with two zeros


def positive_limit(raw: bytes, text: str) -> int:
    """Parse the value of MAXCOUNT or MAXSIZE. Raises CommandError, with ``text`` unless it is positive."""
    value = integer(raw)
    if value <= 0:
        raise CommandError(text)
    return value


def check_maxcount(maxcount: int, count: int) -> None:
    """Raise CommandError if MAXCOUNT is below COUNT."""
    if maxcount and maxcount < count:
        raise CommandError(errors.MAXCOUNT_BELOW_COUNT)


def limits_of(maxcount: int, maxsize: int, proto: int) -> ReplyLimits | None:
    """Return the limits of a reply; None if it has none, which costs other calls nothing."""
    return ReplyLimits(maxcount, maxsize, proto) if maxcount or maxsize else None


class ReplyLimits:
    """What a reply contains so far, and its limits. Call start() and end() for each key in turn."""

    __slots__ = ("_key", "_maxcount", "_maxsize", "_proto", "begun", "entries", "size")

    def __init__(self, maxcount: int, maxsize: int, proto: int) -> None:
        self._maxcount = maxcount
        self._maxsize = maxsize
        self._proto = proto
        self._key = b""
        self.begun = False  # whether the reply has the current key
        self.entries = 0
        self.size = 0  # bytes

    def reached(self) -> bool:
        """Return whether no entry may be added."""
        if not self.entries:
            return False
        return 0 < self._maxcount <= self.entries or 0 < self._maxsize <= self.size

    def start(self, key: bytes) -> None:
        """Continue with the next key."""
        self._key = key
        self.begun = False

    def begin(self) -> None:
        """Add the current key to the reply unless it is already there: it has something to return."""
        if self.begun:
            return
        self.begun = True
        size = len(self._key)
        self.size += (4 if self._proto == 2 else 0) + len(encode.bulk_header(size)) + size + 2

    def end(self, count: int) -> None:
        """Finish the current key, which has ``count`` entries."""
        if self.begun:
            self.size += len(encode.array_header(count))

    def most(self, count: int) -> int:
        """Return the maximum number of entries of the next key; 0: all. ``count``: the COUNT of the call."""
        if not self._maxcount:
            return count
        left = self._maxcount - self.entries
        return min(count, left) if count else left

    def room(self) -> int:
        """Return how many bytes are left, at least 1: an entry that begins within them is added. 0: no limit."""
        return max(1, self._maxsize - self.size) if self._maxsize else NO_LIMIT

    def applied(self, parts: list[KeyPart]) -> list[KeyPart]:
        """Return the parts of an XREAD as far as the limits allow."""
        limited: list[KeyPart] = []
        for part in parts:
            if self.reached():
                break
            self.start(part.key)
            stream, most = part.stream, self.most(0)
            hi = min(part.hi, stream.after(part.lo, most)) if most else part.hi
            found = KeyPart(part.key, stream, part.lo, self.fit(stream, part.lo, hi), part.position)
            self.end(found.count)
            limited.append(found)
        return limited

    def fit(self, stream: Stream, lo: int, hi: int, more: int = ENTRY_MORE) -> int:
        """Add the entries of [lo, hi), which are at least one, as far as the limits allow. Returns the ordinal after
        them; ``lo`` if there are none. ``more``: bytes of each element beyond its wire form."""
        self.begin()
        if self.reached():
            return lo
        room = self.room()
        if not room:
            self.entries += stream.count(lo, hi)
            return hi
        count, size = stream.fitting(lo, hi, room, more)
        self.add(count, size)
        return stream.after(lo, count)

    def add(self, count: int, size: int) -> None:
        self.entries += count
        self.size += size

    def admit(self, stream: Stream, id: int, more: int) -> bool:  # noqa: A002
        """Add a message that is redelivered, if it has an entry. Returns False if the limits do not allow it."""
        wire = stream.find(id)
        if wire is None:
            return True
        self.begin()
        if self.reached():
            return False
        self.add(1, len(wire) + more)
        return True

    def admit_history(self, stream: Stream, rows: list[PendingRow]) -> list[PendingRow]:
        """Add pending messages of a history, with or without an entry, and return those that the limits allow."""
        for number, row in enumerate(rows):
            if self.reached():
                return rows[:number]
            wire = stream.find(row.id)
            size = len(xid_bulk(row.id)) + len(encode.null_array(self._proto)) if wire is None else len(wire)
            self.add(1, size + ENTRY_MORE)
        return rows
