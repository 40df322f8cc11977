"""Consumer groups: readers that share a stream.

A group has an offset, which its readers advance together, a time to live, and a list of pending messages: those that
were delivered with RETRY, or to one of its consumers, and not yet acknowledged (``pending``). The mutators, which log
the effects on groups, are in ``storage.keyspace.groupmutators``.
"""

from __future__ import annotations

from struct import Struct
from typing import Final
from zlib import crc32

from resp.errors import CorruptError
from storage.groups.pending import PendingTable
from storage.model.timers import NEVER, Expiring

# A group's metadata as the store keeps it, numbers big-endian:
#
#     0        1           17       25            33           41                49               57         61
#     +--------+-----------+--------+-------------+------------+-----------------+----------------+----------+
#     | 1   u8 | offset 16 | ttl u64| deadline u64| expired u64| dead-letter. u64| redelivered u64| crc32 u32|
#     +--------+-----------+--------+-------------+------------+-----------------+----------------+----------+
#
# Valid if the length is 61, the first byte is the version, the crc32 matches the 57 bytes before it, and ttl and the
# counts are below 2**63.
#
# Version 2 has consumers:
#
#     0        1                          57               65                 73             77
#     +--------+--------------------------+----------------+------------------+--------------+-----------+----------+
#     | 2   u8 | as above, up to the crc  |entries read u64| next consumer u64| consumers u32| consumers | crc32 u32|
#     +--------+--------------------------+----------------+------------------+--------------+-----------+----------+
#     each consumer:   number u32 | seen u64 | active u64 | length u32 | name
#
# Entries read and ``active`` are 2**64 - 1 for -1. Valid if the consumers end at the crc, their names and numbers are
# unique, and the numbers are between 0 and that of the next consumer. A group that never had a consumer and whose
# entries read are unknown is written as version 1, which earlier servers read.
META: Final = Struct(">B16sQQQQQ")
MORE: Final = Struct(">QQI")
CONSUMER: Final = Struct(">IQQI")
CRC: Final = Struct(">I")
UNKNOWN: Final = (1 << 64) - 1
MAX_NUMBER: Final = (1 << 32) - 1  # highest number of a consumer
GROUP_BYTES: Final = 450  # memory of a group's objects without its pending list
CONSUMER_BYTES: Final = 350  # memory of a consumer without its name


class Consumer:
    """A named reader of a group."""

    __slots__ = ("active", "name", "number", "seen")

    def __init__(self, name: bytes, number: int, seen: int, active: int = -1) -> None:
        self.name = name
        self.number = number  # above 0; unique in the group
        self.seen = seen  # ms since epoch of its last command; informational, like ``active``
        self.active = active  # ms since epoch of the last delivery to it; -1: never


class Group(Expiring):
    """One group of one stream."""

    __slots__ = (
        "consumers", "counted", "cursor", "cursor_of", "deadlettered", "dirty", "entries_read", "expired", "name",
        "next_consumer", "offset", "owners", "pending", "recount", "redelivered", "waiters",
    )  # fmt: skip

    def __init__(self, name: bytes, offset: int, ttl: int = 0, deadline: int = NEVER) -> None:
        super().__init__(ttl, deadline)
        self.name = name
        self.offset = offset  # ID of the last entry delivered, or the initial position; 0 before the first entry
        self.pending = PendingTable()
        self.expired = 0  # number of messages that left the list unacknowledged
        self.deadlettered = 0  # number of those that were moved to a dead-letter stream
        self.redelivered = 0  # number of deliveries after the first
        self.entries_read = -1  # number of entries ever added to the stream, up to the offset; -1: unknown
        self.consumers: dict[bytes, Consumer] = {}  # keyed by name
        self.owners: dict[int, Consumer] = {}  # keyed by number
        self.next_consumer = 1  # number of the next consumer
        # not stored:
        self.waiters = 0  # blocked readers; the group does not expire while there are any
        # Ordinal of the first entry after the ID ``cursor_of``, valid while that is the group's offset (see
        # ``groupmutators.cursor``). It saves the search for the first entry, which takes 12 % of reading and
        # acknowledging 10 entries.
        self.cursor, self.cursor_of = 0, -1
        self.dirty = False  # changed since the last capture
        self.counted = 0  # memory of the group that the keyspace's ``group_bytes`` includes
        self.recount = False  # changed since then

    def memory_bytes(self) -> int:
        size = GROUP_BYTES + len(self.name) + self.pending.memory_bytes()
        if self.consumers:
            size += CONSUMER_BYTES * len(self.consumers) + sum(map(len, self.consumers))
        return size

    def free_number(self) -> int:
        """Return the number for a new consumer. After four billion consumers, free numbers are reused."""
        number = self.next_consumer
        if number > MAX_NUMBER:
            number = 1
            while number in self.owners:
                number += 1
        return number

    def add_consumer(self, consumer: Consumer) -> None:
        self.consumers[consumer.name] = self.owners[consumer.number] = consumer

    def meta(self) -> bytes:
        """Return the metadata, as drawn above."""
        version = 1 if self.next_consumer == 1 and self.entries_read < 0 else 2
        raw = META.pack(
            version, self.offset.to_bytes(16, "big"), self.ttl, self.deadline, self.expired, self.deadlettered,
            self.redelivered,
        )  # fmt: skip
        if version == 2:
            parts = [raw, MORE.pack(self.entries_read & UNKNOWN, self.next_consumer, len(self.consumers))]
            for one in self.consumers.values():
                parts += (CONSUMER.pack(one.number, one.seen, one.active & UNKNOWN, len(one.name)), one.name)
            raw = b"".join(parts)
        return raw + CRC.pack(crc32(raw))

    @classmethod
    def restore(cls, name: bytes, meta: bytes, pending_blob: bytes) -> Group:
        """Return the group of a meta() and a dump of its pending list. Raises CorruptError if one is damaged."""
        end = len(meta) - CRC.size
        if end < META.size or CRC.unpack_from(meta, end)[0] != crc32(meta[:end]):
            raise CorruptError(f"the metadata of group {name!r} is damaged")
        version, offset, ttl, deadline, expired, deadlettered, redelivered = META.unpack_from(meta)
        if version not in (1, 2):
            raise CorruptError(f"the metadata of group {name!r} has version {version}, of a newer tidelog")
        if version == 1 and end > META.size:
            raise CorruptError(f"the metadata of group {name!r} is damaged")
        if max(ttl, expired, deadlettered, redelivered) >> 63:
            raise CorruptError(f"the metadata of group {name!r} is invalid")
        group = cls(name, int.from_bytes(offset, "big"), ttl, deadline)
        group.expired, group.deadlettered, group.redelivered = expired, deadlettered, redelivered
        if version == 2:
            group._restore_consumers(meta[META.size : end])
        group.pending = PendingTable.load(pending_blob)
        for owner in group.pending.owners():
            if owner and owner not in group.owners:
                raise CorruptError(f"the pending list of group {name!r} refers to an unknown consumer")
        return group

    def _restore_consumers(self, raw: bytes) -> None:
        """Restore the fields of version 2. Raises CorruptError if they are damaged."""
        damaged = CorruptError(f"the metadata of group {self.name!r} is invalid: its consumers are inconsistent")
        if len(raw) < MORE.size:
            raise damaged
        read, self.next_consumer, count = MORE.unpack_from(raw)
        self.entries_read = -1 if read == UNKNOWN else read
        at, end = MORE.size, len(raw)
        for _ in range(count):
            if end - at < CONSUMER.size:
                raise damaged
            number, seen, active, length = CONSUMER.unpack_from(raw, at)
            at += CONSUMER.size + length
            name = raw[at - length : at]
            known = name in self.consumers or number in self.owners
            if at > end or known or not 0 < number < self.next_consumer or seen >> 63:
                raise damaged
            self.add_consumer(Consumer(name, number, seen, -1 if active == UNKNOWN else active))
            if active != UNKNOWN and active >> 63:
                raise damaged
        if at != end or not self.next_consumer or (self.next_consumer - 1) >> 32 or self.entries_read >> 63 > 0:
            raise damaged
