"""Producers: clients that append entries to a stream under their own IDs, so that a repeated XADD adds nothing (IDMP,
8.6).

The newest IDs of each producer are remembered, with the ID of the entry and the expiry. The duration and the number of
IDs are settings of the stream, or of the pool by default.

Rule 1: no clock is read. Records contain the time, the duration, and the number, so that a replay forgets the same IDs.
Rule 2: expired IDs are removed when their producer appends an entry, and periodically for all producers.

A producer's dump, numbers big-endian:

    +------+--------+-- each ID, oldest first -------------------------------+
    | 1 u8 | n u32  | length u32 | entry's ID 16 | expires at u64   | the ID |
    +------+--------+--------------------------------------------------------+
"""

from __future__ import annotations

from itertools import islice
from struct import Struct
from typing import Final

from resp.errors import CorruptError
from storage.nodes.pool import NodePool

VERSION: Final = 1
HEAD: Final = Struct(">BI")
ONE: Final = Struct(">I16sQ")
PRODUCERS_BYTES: Final = 400  # memory of a Producers object without producers
PRODUCER_BYTES: Final = 500  # memory of a producer without IDs
ID_BYTES: Final = 250  # memory of an ID without its bytes
MOST_IDS: Final = 10_000  # maximum IDs of a producer
LONGEST_MS: Final = 86_400_000  # maximum time for which an ID is remembered


class StreamProducer:
    """The IDs of a producer, oldest first, each with the ID of its entry and its expiry (ms since epoch)."""

    __slots__ = ("bytes", "ids")

    def __init__(self) -> None:
        self.ids: dict[bytes, tuple[int, int]] = {}
        self.bytes = PRODUCER_BYTES

    def forget(self, now: int, most: int) -> None:
        """Remove the IDs that have expired at ``now``, and the oldest ones until ``most`` are left."""
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
    def load(cls, dump: bytes) -> StreamProducer:
        """Return the producer of a dump. Raises CorruptError if the dump is damaged."""
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
                raise CorruptError("a producer is damaged: one of its IDs is invalid")
            producer.add(name, int.from_bytes(entry_id, "big"), end)
        if at != len(dump) or len(producer.ids) != count or not count:
            raise CorruptError("a producer is damaged: its lengths are inconsistent")
        return producer


class Producers:
    """The producers of a stream, and their settings. Changes of ``bytes`` change that of the pool."""

    __slots__ = ("_pool", "added", "by_name", "bytes", "changed", "duplicates", "keep_ms", "most")

    def __init__(self, pool: NodePool) -> None:
        self._pool = pool
        pool.bytes += PRODUCERS_BYTES
        self.keep_ms = 0  # how long IDs are remembered, and how many of each producer; 0: never set
        self.most = 0
        self.by_name: dict[bytes, StreamProducer] = {}
        self.added = 0  # number of IDs ever added
        self.duplicates = 0  # XADDs that added nothing; not logged, so a restart may lose some
        self.bytes = PRODUCERS_BYTES  # approximate memory
        self.changed: set[bytes] = set()  # names of producers that changed since the last capture

    def _grow(self, size: int) -> None:
        self.bytes += size
        self._pool.bytes += size

    def find(self, producer: bytes, name: bytes, now: int) -> int:
        """Return the ID of the entry that has this producer ID; 0 if it is unknown or expired."""
        known = self.by_name.get(producer)
        found = known.ids.get(name) if known is not None else None
        return found[0] if found is not None and found[1] > now else 0

    def add(self, producer: bytes, name: bytes, entry_id: int, now: int, keep_ms: int, most: int) -> None:
        known = self.by_name.get(producer)
        if known is None:
            known = self.by_name[producer] = StreamProducer()
            self._grow(known.bytes + len(producer))
        size = known.bytes
        known.forget(now, most - 1)
        if name in known.ids:  # the clock was set back
            del known.ids[name]
            known.bytes -= ID_BYTES + len(name)
        known.add(name, entry_id, now + keep_ms)
        self._grow(known.bytes - size)
        self.added += 1
        self.changed.add(producer)

    def forget(self, now: int) -> None:
        """Remove the IDs that have expired at ``now``. O(producers)."""
        for name, producer in list(self.by_name.items()):
            size, count = producer.bytes, len(producer.ids)
            producer.forget(now, MOST_IDS)
            if len(producer.ids) == count:
                continue
            self.changed.add(name)
            self._grow(producer.bytes - size)
            if not producer.ids:
                del self.by_name[name]
                self._grow(-producer.bytes - len(name))

    def configure(self, keep_ms: int, most: int) -> None:
        """Set how long and how many IDs are remembered, and forget all current IDs."""
        self.keep_ms, self.most = keep_ms, most
        self.changed.update(self.by_name)
        self.by_name.clear()
        self._grow(PRODUCERS_BYTES - self.bytes)

    def tracked(self) -> int:
        """Return the number of IDs, including expired ones that are not removed yet."""
        return sum([len(producer.ids) for producer in self.by_name.values()])

    def oldest_end(self) -> int:
        """Return the earliest expiry of an ID (ms since epoch). There must be at least one ID."""
        return min([next(iter(producer.ids.values()))[1] for producer in self.by_name.values()])

    def dumps(self) -> list[tuple[bytes, bytes]]:
        """Return all producers, in order of their names, with their dumps."""
        return [(name, self.by_name[name].dump()) for name in sorted(self.by_name)]

    def take_changed(self) -> list[tuple[bytes, bytes]]:
        """Return the producers that changed since the last call, with their dumps (empty: removed)."""
        taken: list[tuple[bytes, bytes]] = []
        for name in sorted(self.changed):
            producer = self.by_name.get(name)
            taken.append((name, b"" if producer is None else producer.dump()))
        self.changed.clear()
        return taken

    def restore(self, name: bytes, dump: bytes) -> None:
        """Add a producer from a store. Raises CorruptError if it is damaged."""
        if name in self.by_name:
            raise CorruptError("a producer is duplicated")
        producer = self.by_name[name] = StreamProducer.load(dump)
        self._grow(producer.bytes + len(name))
