"""Groups: readers that share a stream.

A group is an offset that its readers move together, a time to live, and the list of messages that were delivered with
RETRY and not yet acknowledged (``pending``). The mutators, which log what happens to groups, are in ``effects``.
"""

from __future__ import annotations

from struct import Struct
from typing import Final
from zlib import crc32

from resp.errors import CorruptError
from storage.groups.pending import PendingTable
from storage.timers import NEVER

# A group's metadata as the store keeps it, numbers big-endian:
#
#     0        1           17       25            33           41                49               57         61
#     +--------+-----------+--------+-------------+------------+-----------------+----------------+----------+
#     | 1   u8 | offset 16 | ttl u64| deadline u64| expired u64| dead-letter. u64| redelivered u64| crc32 u32|
#     +--------+-----------+--------+-------------+------------+-----------------+----------------+----------+
#
# Valid if it is 61 bytes long, starts with the version, the crc32 is that of the 57 bytes before it, and ttl and the
# counts are below 2**63.
META_VERSION: Final = 1
META: Final = Struct(">B16sQQQQQ")
CRC: Final = Struct(">I")
GROUP_BYTES: Final = 450  # memory of a group's objects besides its pending list


class Group:
    """One group of one stream."""

    __slots__ = (
        "counted", "cursor", "cursor_of", "deadlettered", "deadline", "dirty", "expired", "name", "offset", "pending",
        "recount", "redelivered", "ttl", "waiters",
    )  # fmt: skip

    def __init__(self, name: bytes, offset: int, ttl: int = 0, deadline: int = NEVER) -> None:
        self.name = name
        self.offset = offset  # ID of the last entry delivered, or where the group began; 0 before the first entry
        self.ttl = ttl  # ms without a sign of life after which the group ends; 0: never
        self.deadline = deadline  # ms since epoch at which it ends without one, or NEVER
        self.pending = PendingTable()
        self.expired = 0  # messages given up, for whatever reason
        self.deadlettered = 0  # those of them that went to a dead letter stream
        self.redelivered = 0  # deliveries that were not the first
        # not stored:
        self.waiters = 0  # blocked readers; while there are any, the group does not end
        # Ordinal of the first entry after the ID ``cursor_of``, valid while that is the group's offset (see
        # effects.cursor). Saves each read the search for its first entry: 12 % of reading and acknowledging 10.
        self.cursor, self.cursor_of = 0, -1
        self.dirty = False  # changed since the last capture
        self.counted = 0  # bytes that the keyspace's ``group_bytes`` has of it
        self.recount = False  # changed since then

    def memory_bytes(self) -> int:
        """Estimate of what the group takes in memory."""
        return GROUP_BYTES + len(self.name) + self.pending.memory_bytes()

    def touch(self, now: int) -> None:
        """A reader gave a sign of life at ``now`` [15]. This is not logged, nor worth a checkpoint: see resume()."""
        if self.ttl:
            self.deadline = now + self.ttl

    def resume(self, now: int) -> None:
        """The server was down or a replica until ``now``: that time doesn't count as the readers' silence [15]."""
        if self.ttl:
            self.deadline = max(self.deadline, now + self.ttl)

    def meta(self) -> bytes:
        """Everything but name and pending list, as drawn above."""
        raw = META.pack(
            META_VERSION, self.offset.to_bytes(16, "big"), self.ttl, self.deadline, self.expired, self.deadlettered,
            self.redelivered,
        )  # fmt: skip
        return raw + CRC.pack(crc32(raw))

    @classmethod
    def restore(cls, name: bytes, meta: bytes, pending_blob: bytes) -> Group:
        """The group from its meta() and its pending list's dump. Raises CorruptError."""
        if len(meta) != META.size + CRC.size or CRC.unpack_from(meta, META.size)[0] != crc32(meta[: META.size]):
            raise CorruptError(f"the metadata of group {name!r} is damaged")
        version, offset, ttl, deadline, expired, deadlettered, redelivered = META.unpack_from(meta)
        if version != META_VERSION:
            raise CorruptError(f"the metadata of group {name!r} has version {version}: written by a newer tidelog?")
        if max(ttl, expired, deadlettered, redelivered) >> 63:
            raise CorruptError(f"the metadata of group {name!r} makes no sense")
        group = cls(name, int.from_bytes(offset, "big"), ttl, deadline)
        group.expired, group.deadlettered, group.redelivered = expired, deadlettered, redelivered
        group.pending = PendingTable.load(pending_blob)
        return group
