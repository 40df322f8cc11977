"""Producers: who added entries to a stream under IDs of its own, so that a repeated XADD adds nothing (IDMP, 8.6).

Of a producer, its newest IDs are remembered, each with the ID of its entry, and with the time at which it is forgotten.
How long and how many are settings of the stream, or else of the pool.

Rule 1: no clock. Records carry the time, how long and how many, so a replay forgets what the leader had forgotten.
Rule 2: what is forgotten by time is forgotten when its producer adds something, and from time to time for all.

A producer's dump, numbers big-endian:

    +------+--------+-- each ID, oldest first -------------------------------+
    | 1 u8 | n u32  | length u32 | entry's ID 16 | forgotten at u64 | the ID |
    +------+--------+--------------------------------------------------------+
"""

from __future__ import annotations

from itertools import islice
from struct import Struct
from typing import Final

from resp.errors import CorruptError

VERSION: Final = 1
HEAD: Final = Struct(">BI")
ONE: Final = Struct(">I16sQ")
PRODUCERS_BYTES: Final = 400  # memory of an object without producers
PRODUCER_BYTES: Final = 500  # of a producer without IDs
ID_BYTES: Final = 250  # of an ID besides its bytes
MOST_IDS: Final = 10_000  # of a producer
LONGEST_MS: Final = 86_400_000  # that an ID is remembered


class Producer:
    """The IDs of one producer, oldest first: each with its entry's ID, and when it is forgotten (ms since epoch)."""

    __slots__ = ("bytes", "ids")

    def __init__(self) -> None:
        self.ids: dict[bytes, tuple[int, int]] = {}
        self.bytes = PRODUCER_BYTES

    def forget(self, now: int, most: int) -> None:
        """Forget what is over at ``now``, and the oldest until ``most`` are left."""
        over = 0
        for _, end in self.ids.values():
            if end > now:
                break
            over += 1
        over = max(over, len(self.ids) - most)
        for name in list(islice(self.ids, over)):
            del self.ids[name]
            self.bytes -= ID_BYTES + len(name)

    def add(self, name: bytes, entry_id: int, end: int) -> None:
        self.ids[name] = entry_id, end
        self.bytes += ID_BYTES + len(name)

    def dump(self) -> bytes:
        parts = [HEAD.pack(VERSION, len(self.ids))]
        for name, (entry_id, end) in self.ids.items():
            parts.append(ONE.pack(len(name), entry_id.to_bytes(16, "big"), end))
            parts.append(name)
        return b"".join(parts)

    @classmethod
    def load(cls, dump: bytes) -> Producer:
        """A producer from its dump. Raises CorruptError."""
        producer = cls()
        if len(dump) < HEAD.size or dump[0] != VERSION:
            raise CorruptError("a producer is damaged, or was written by a newer tidelog")
        _, count = HEAD.unpack_from(dump)
        at = HEAD.size
        while at + ONE.size <= len(dump):
            length, entry_id, end = ONE.unpack_from(dump, at)
            at += ONE.size + length
            name = dump[at - length : at] if at <= len(dump) else b""
            if not name or name in producer.ids or end >> 63:
                raise CorruptError("a producer is damaged: an ID of its makes no sense")
            producer.add(name, int.from_bytes(entry_id, "big"), end)
        if at != len(dump) or len(producer.ids) != count or not count:
            raise CorruptError("a producer is damaged: its lengths don't add up")
        return producer


class Producers:
    """Those of one stream."""

    __slots__ = ("added", "by_name", "bytes", "changed", "duplicates")

    def __init__(self) -> None:
        self.by_name: dict[bytes, Producer] = {}
        self.added = 0  # IDs ever added
        self.duplicates = 0  # XADDs that added nothing; not logged, so a restart may forget some
        self.bytes = PRODUCERS_BYTES  # of memory, roughly
        self.changed: set[bytes] = set()  # names of producers that differ from what the last capture took

    def find(self, producer: bytes, name: bytes, now: int) -> int:
        """The entry's ID that was given to this ID of the producer; 0 if it was never added, or is forgotten."""
        known = self.by_name.get(producer)
        found = known.ids.get(name) if known is not None else None
        return found[0] if found is not None and found[1] > now else 0

    def add(self, producer: bytes, name: bytes, entry_id: int, now: int, keep_ms: int, most: int) -> None:
        known = self.by_name.get(producer)
        if known is None:
            known = self.by_name[producer] = Producer()
            self.bytes += known.bytes + len(producer)
        size = known.bytes
        known.forget(now, most - 1)
        if name in known.ids:  # the clock went back
            del known.ids[name]
            known.bytes -= ID_BYTES + len(name)
        known.add(name, entry_id, now + keep_ms)
        self.bytes += known.bytes - size
        self.added += 1
        self.changed.add(producer)

    def forget(self, now: int) -> None:
        """Forget what is over at ``now``. O(producers)."""
        for name, producer in list(self.by_name.items()):
            size, count = producer.bytes, len(producer.ids)
            producer.forget(now, MOST_IDS)
            if len(producer.ids) == count:
                continue
            self.changed.add(name)
            self.bytes += producer.bytes - size
            if not producer.ids:
                del self.by_name[name]
                self.bytes -= producer.bytes + len(name)

    def clear(self) -> None:
        self.changed.update(self.by_name)
        self.by_name.clear()
        self.bytes = PRODUCERS_BYTES

    def tracked(self) -> int:
        """IDs that are remembered, or will be forgotten soon."""
        return sum([len(producer.ids) for producer in self.by_name.values()])

    def oldest_end(self) -> int:
        """The earliest moment at which an ID is forgotten (ms since epoch). There must be one."""
        return min([next(iter(producer.ids.values()))[1] for producer in self.by_name.values()])

    def dumps(self) -> list[tuple[bytes, bytes]]:
        """All producers by name, each with its dump."""
        return [(name, self.by_name[name].dump()) for name in sorted(self.by_name)]

    def take_changed(self) -> list[tuple[bytes, bytes]]:
        """The producers that changed since the last call, each with its dump; an empty one is forgotten."""
        taken: list[tuple[bytes, bytes]] = []
        for name in sorted(self.changed):
            producer = self.by_name.get(name)
            taken.append((name, b"" if producer is None else producer.dump()))
        self.changed.clear()
        return taken

    def restore(self, name: bytes, dump: bytes) -> None:
        """Add a producer from a store. Raises CorruptError."""
        if name in self.by_name:
            raise CorruptError("a producer is there twice")
        producer = self.by_name[name] = Producer.load(dump)
        self.bytes += producer.bytes + len(name)
