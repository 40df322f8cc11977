"""A stream's metadata as the store keeps it: all but its nodes and groups. Numbers are big-endian, u64 unless marked.

    0     1         9          17         25          33            49        57       65         73        81      85
    +-----+---------+----------+----------+-----------+-------------+---------+--------+----------+---------+-------+
    | 1 u8| last ms | last seq | next_ord | first_ord | evicted_to  | sealed  | sealed | largest  | largest | crc32 |
    |     |         |          |          |           | u128        | entries | bytes  | entry    | node    | u32   |
    +-----+---------+----------+----------+-----------+-------------+---------+--------+----------+---------+-------+

Valid if it is 85 bytes long, starts with the version, and the crc32 is that of the 81 bytes before it; if first_ord is
not above next_ord, nor evicted_to above the last ID; and if ordinals and totals are below 2**63.
"""

from __future__ import annotations

from struct import Struct
from typing import Final
from zlib import crc32

from resp.errors import CorruptError

VERSION: Final = 1
META: Final = Struct(">BQQQQ16sQQQQ")
CRC: Final = Struct(">I")


def pack(
    last_ms: int, last_seq: int, next_ord: int, first_ord: int, evicted_to: int, sealed_entries: int, sealed_bytes: int,
    largest_entry: int, largest_node: int,
) -> bytes:  # fmt: skip
    raw = META.pack(
        VERSION, last_ms, last_seq, next_ord, first_ord, evicted_to.to_bytes(16, "big"), sealed_entries, sealed_bytes,
        largest_entry, largest_node,
    )  # fmt: skip
    return raw + CRC.pack(crc32(raw))


def unpack(sid: int, meta: bytes) -> tuple[int, int, int, int, int, int, int, int, int]:
    """The arguments of pack(), in order. ``sid`` is for the error's text. Raises CorruptError."""
    if len(meta) != META.size + CRC.size or CRC.unpack_from(meta, META.size)[0] != crc32(meta[: META.size]):
        raise CorruptError(f"the metadata of stream {sid} is damaged")
    version, last_ms, last_seq, next_ord, first_ord, raw, entries, size, largest_entry, largest_node = (
        META.unpack_from(meta)
    )
    if version != VERSION:
        raise CorruptError(f"the metadata of stream {sid} has version {version}: written by a newer tidelog?")
    evicted_to = int.from_bytes(raw, "big")
    if first_ord > next_ord or evicted_to > last_ms << 64 | last_seq or (
        max(next_ord, entries, size, largest_entry, largest_node) >> 63
    ):
        raise CorruptError(f"the metadata of stream {sid} makes no sense")
    return last_ms, last_seq, next_ord, first_ord, evicted_to, entries, size, largest_entry, largest_node
