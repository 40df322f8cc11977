"""The stored metadata of a stream: everything except nodes, groups, and tombstones. Numbers are big-endian, u64 unless
stated otherwise.

    0     1         9          17         25          33            49        57       65         73        81
    +-----+---------+----------+----------+-----------+-------------+---------+--------+----------+---------+
    | ver | last ms | last seq | next_ord | first_ord | evicted_to  | sealed  | sealed | largest  | largest |
    | u8  |         |          |          |           | u128        | entries | bytes  | entry    | node    |
    +-----+---------+----------+----------+-----------+-------------+---------+--------+----------+---------+
     from version 2: 81      89            105       113     121     122            130       134     142
                     +-------+-------------+---------+-------+-------+--------------+---------+-------+--------+
                     | added | max_deleted | deleted | marks | flags | IDMP ms u64  | IDMP    | IDs   | IDs    |
                     |       | u128        |         |       | u8    |              | most u32| added | again  |
                     +-------+-------------+---------+-------+-------+--------------+---------+-------+--------+
     version 3: the retention policy (``retention``)
     version 5: tier-after (``tierafter``), and the retention policy if there is one
     and a crc32 u32 of all that                    flags  1: lone, 2: raised

The metadata of a companion, which contains the delayed entries of a key (``delayed``), is a byte 4 and the above. So
there is no version 4.

A stream is written in the lowest version that it needs, which earlier servers read. ``marks`` is the number of
tombstones. Valid if length and crc32 are correct, first_ord is at most next_ord, evicted_to is at most the last ID, and
ordinals, totals, and times are below 2**63.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from resp.errors import CorruptError
from storage.streams import tierafter
from storage.streams.retention import SIZE, RetentionPolicy
from storage.streams.retention import unpack as unpack_retention
from storage.streams.tierafter import TierAfter

META: Final = Struct(">BQQQQ16sQQQQ")
MORE: Final = Struct(">Q16sQQBQIQQ")
CRC: Final = Struct(">I")
LONE: Final = 1
COMPANION: Final = b"\4"
RAISED: Final = 2  # the last ID was set by XSETID after the last entry


class StreamMeta(NamedTuple):
    """Metadata of a stream; see the attributes of Stream."""

    last_ms: int
    last_seq: int
    next_ord: int
    first_ord: int
    evicted_to: int
    sealed_entries: int
    sealed_bytes: int
    largest_entry: int
    largest_node: int
    added: int  # entries_added
    max_deleted: int = 0
    deleted: int = 0
    tombstones: int = 0  # number of tombstones
    flags: int = 0
    idmp_ms: int = 0  # 0: never set
    idmp_most: int = 0
    iids_added: int = 0  # see ``producers``
    iids_repeated: int = 0
    retention: RetentionPolicy | None = None
    tier_after: TierAfter | None = None


def pack_plain(
    last_ms: int, last_seq: int, next_ord: int, first_ord: int, evicted_to: int, sealed_entries: int, sealed_bytes: int,
    largest_entry: int, largest_node: int,
) -> bytes:  # fmt: skip
    """Return pack() of a stream that needs only version 1, in half of the time. This is the common case."""
    raw = META.pack(1, last_ms, last_seq, next_ord, first_ord, evicted_to.to_bytes(16, "big"), sealed_entries,
                    sealed_bytes, largest_entry, largest_node)  # fmt: skip
    return raw + CRC.pack(crc32(raw))


def pack(meta: StreamMeta) -> bytes:
    policy = meta.retention
    if meta.tier_after is not None:
        version = 5
    else:
        version = 3 if policy is not None else 1 if not any(meta[10:]) and meta.added == meta.next_ord else 2
    raw = META.pack(version, *meta[:4], meta.evicted_to.to_bytes(16, "big"), *meta[5:9])
    if version > 1:
        raw += MORE.pack(meta.added, meta.max_deleted.to_bytes(16, "big"), *meta[11:18])
    if meta.tier_after is not None:
        raw += meta.tier_after.pack()
    if policy is not None:
        raw += policy.pack()
    return raw + CRC.pack(crc32(raw))


def is_companion(meta: bytes) -> bool:
    return meta[:1] == COMPANION


def has_tier_after(meta: bytes) -> bool:
    """Return whether metadata has a tier-after, which earlier servers can't read."""
    return meta[:1] == b"\5"


def plain(meta: bytes) -> bytes:
    """Return the metadata of a stream or of a companion without the byte that marks a companion."""
    return meta[1:] if meta[:1] == COMPANION else meta


def unpack(sid: int, meta: bytes) -> StreamMeta:
    """Unpack metadata. ``sid`` is used in error messages. Raises CorruptError if it is damaged."""
    meta = plain(meta)
    if meta[:1] > b"\5":
        raise CorruptError(f"the metadata of stream {sid} has version {meta[0]}, of a newer tidelog")
    size = META.size + (MORE.size if meta[:1] > b"\1" else 0)
    if meta[:1] == b"\3":
        size += SIZE
    elif meta[:1] == b"\5":
        size += tierafter.SIZE
        if len(meta) != size + CRC.size:
            size += SIZE
    if len(meta) != size + CRC.size or CRC.unpack_from(meta, size)[0] != crc32(meta[:size]):
        raise CorruptError(f"the metadata of stream {sid} is damaged")
    version, last_ms, last_seq, next_ord, first_ord, raw, entries, size, largest_entry, largest_node = META.unpack_from(
        meta
    )
    evicted_to = int.from_bytes(raw, "big")
    policy: RetentionPolicy | None = None
    tier_after: TierAfter | None = None
    more = META.size + MORE.size
    if version == 5:
        tier_after = tierafter.unpack(meta[more : more + tierafter.SIZE])
        more += tierafter.SIZE
    if version == 3 or (version == 5 and len(meta) > more + CRC.size):
        policy = unpack_retention(meta[more : -CRC.size])
    deleted = tombstones = flags = idmp_ms = idmp_most = iids = repeated = 0
    added, max_deleted = next_ord, b""
    if version > 1:
        added, max_deleted, deleted, tombstones, flags, idmp_ms, idmp_most, iids, repeated = MORE.unpack_from(
            meta, META.size
        )
    if (
        version in (0, 4)
        or first_ord > next_ord
        or tombstones > next_ord - first_ord
        or evicted_to > last_ms << 64 | last_seq
        or (max(next_ord, entries, size, largest_entry, largest_node, added, deleted, idmp_ms, iids, repeated) >> 63)
    ):
        raise CorruptError(f"the metadata of stream {sid} makes no sense")
    return StreamMeta(
        last_ms, last_seq, next_ord, first_ord, evicted_to, entries, size, largest_entry, largest_node, added,
        int.from_bytes(max_deleted, "big"), deleted, tombstones, flags, idmp_ms, idmp_most, iids, repeated, policy,
        tier_after,
    )  # fmt: skip
