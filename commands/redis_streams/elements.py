"""Redelivered messages as elements of the replies of X commands: see ``commands.streams.elements``."""

from __future__ import annotations

from array import array
from typing import Final

from commands.redis_streams.ids import xid_bulk
from commands.streams.elements import Elements
from storage.nodes.redisform import redis_entries, redis_entry
from storage.streams.stream import Stream

RAW_ID: Final = 16  # bytes per ID


class XElements(Elements):
    """Entries in the X form; an entry that no longer exists is represented by its ID and a null."""

    __slots__ = ("_at", "_gone")

    def __init__(self, null: bytes) -> None:
        super().__init__(null)
        self._gone = bytearray()  # the IDs of entries that no longer exist
        self._at = 0  # offset in ``_gone`` of the next ID to encode

    def add_gone_one(self, id: int) -> None:  # noqa: A002
        self._gone += id.to_bytes(RAW_ID, "big")
        self.add_gone()

    def _encoded(self, wires: list[bytes | None]) -> bytes:
        if self._at == len(self._gone):
            return redis_entries([wire for wire in wires if wire is not None])
        parts: list[bytes] = []
        for wire in wires:
            if wire is not None:
                parts.append(redis_entry(wire))
                continue
            at = self._at
            self._at = at + RAW_ID
            parts.append(b"*2\r\n" + xid_bulk(int.from_bytes(self._gone[at : at + RAW_ID], "big")) + self.null)
        return b"".join(parts)

    def held(self) -> int:
        return super().held() + len(self._gone)


class ClaimedElements(Elements):
    """Entries in the X form with two more elements: their idle time, and the number of their deliveries."""

    __slots__ = ("_at", "_deliveries", "_idle")

    def __init__(self) -> None:
        super().__init__(b"")
        self._idle = array("q")
        self._deliveries = array("q")
        self._at = 0  # number of IDs that were encoded

    def add_claimed(self, stream: Stream, id: int, idle: int, deliveries: int) -> bool:  # noqa: A002
        """Do the same as add(), with the idle time in ms and the number of deliveries."""
        if not self.add(stream, id):
            return False
        self._idle.append(idle)
        self._deliveries.append(deliveries)
        return True

    def add_new(self, stream: Stream, lo: int, hi: int) -> None:
        """Add entries that are delivered for the first time: the living ones with ordinals [lo, hi)."""
        before = self.count
        self.add_range(stream, lo, hi)
        zeros = array("q", bytes(8 * (self.count - before)))
        self._idle += zeros
        self._deliveries += zeros

    def _encoded(self, wires: list[bytes | None]) -> bytes:
        parts: list[bytes] = []
        at = self._at
        for wire in wires:
            if wire is not None:
                parts += (b"*4", redis_entry(wire)[2:], b":%d\r\n:%d\r\n" % (self._idle[at], self._deliveries[at]))
            at += 1
        self._at = at
        return b"".join(parts)

    def held(self) -> int:
        return super().held() + 16 * self.count
