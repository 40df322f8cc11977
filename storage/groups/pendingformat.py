"""The bytes of a pending list, as checkpoints store it and replicas receive it. Numbers are big-endian.

::

    0      4         12        20        24
    +------+---------+---------+---------+-----------------------------+--------------+--------------+---------+
    | TLP2 | rows u64| runs u64| keys u32| each key: length u32, bytes | runs, 61 each| rows, 16 each|crc32 u32|
    +------+---------+---------+---------+-----------------------------+--------------+--------------+---------+

``runs`` are the rows of ranges (``rangerow``), ``rows`` are message IDs. A dump is valid if the lengths add up, the
crc32 matches the bytes before it, IDs ascend, each range contains messages and each message is in a range, and the
slots of the ranges refer to keys.

A dump in which consumers own messages starts with TLP3 and is otherwise the same. Servers that do not know consumers
must not read it. All other dumps are written as TLP2, which those servers read.

TLP1, the previous format, can still be read. It has no ranges. Its rows have 60 bytes each: a range that begins at the
message's ID, without ``kind``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from struct import Struct
from typing import Final
from zlib import crc32

import zstandard

from resp.errors import CorruptError
from storage.groups.rangerow import ID_SIZE, KIND, OWNED, RANGE_SIZE
from storage.model.sortedrows import PackedRows

MAGIC: Final = b"TLP2"
OWNED_MAGIC: Final = b"TLP3"
HEAD: Final = Struct(">4sQQI")
OLD_MAGIC: Final = b"TLP1"
OLD_HEAD: Final = Struct(">4sQI")
OLD_SIZE: Final = RANGE_SIZE - 1  # size of a row
NUMBER: Final = Struct(">I")


def head(rows: int, ranges: int, keys: list[bytes], owned: bool) -> list[bytes]:
    """Return the parts before the ranges. ``owned``: whether some ranges are OWNED."""
    parts = [HEAD.pack(OWNED_MAGIC if owned else MAGIC, rows, ranges, len(keys))]
    for key in keys:
        parts += (NUMBER.pack(len(key)), key)
    return parts


def assemble(parts: Sequence[bytes | PackedRows], room: int = 0) -> bytearray:
    """Join the parts of a dump, after ``room`` zero bytes.

    A million messages can take 70 MB, and b"".join would block all other threads while it copies them. This function
    lets other threads run between parts.
    """
    dump = bytearray(room)
    decompressor = zstandard.ZstdDecompressor()
    for part in parts:
        dump += part if isinstance(part, bytes) else decompressor.decompress(part.data)
    dump += NUMBER.pack(crc32(memoryview(dump)[room:]))
    return dump


def parse(data: bytes) -> tuple[list[bytes], list[bytes], bytes]:
    """Return the keys, the ranges, and the joined IDs of a dump. Does not check their order and content.

    Raises CorruptError if the dump is damaged.
    """
    old = data.startswith(OLD_MAGIC)
    start = OLD_HEAD.size if old else HEAD.size
    most = OWNED if data.startswith(OWNED_MAGIC) else OWNED - 1
    if len(data) < start + NUMBER.size or not (old or most == OWNED or data.startswith(MAGIC)):
        raise CorruptError("a pending list is damaged, or was written by a newer tidelog: unknown header")
    end = len(data) - NUMBER.size
    if NUMBER.unpack_from(data, end)[0] != crc32(memoryview(data)[:end]):
        raise CorruptError("a pending list is damaged: its checksum is wrong")
    ranges = 0
    if old:
        _, rows, count = OLD_HEAD.unpack_from(data)
        size = rows * OLD_SIZE
    else:
        _, rows, ranges, count = HEAD.unpack_from(data)
        size = ranges * RANGE_SIZE + rows * ID_SIZE
    keys: list[bytes] = []
    at = start
    while len(keys) < count and at + NUMBER.size <= end:
        length = NUMBER.unpack_from(data, at)[0]
        at += NUMBER.size + length
        keys.append(data[at - length : at])
    if len(keys) != count or end - at != size:
        raise CorruptError("a pending list is damaged: its lengths are inconsistent")
    if old:
        old_rows = cut(data[at:end], OLD_SIZE)
        firsts = [next(same) + b"\0" for _, same in groupby(old_rows, key=_terms)]
        return keys, firsts, b"".join([row[:ID_SIZE] for row in old_rows])
    between = at + ranges * RANGE_SIZE
    found = cut(data[at:between], RANGE_SIZE)
    if any(range_[KIND] > most for range_ in found):
        raise CorruptError("a pending list is damaged: a range has an invalid kind")
    return keys, found, data[between:end]


def cut(rows: bytes, width: int) -> list[bytes]:
    return [rows[at : at + width] for at in range(0, len(rows), width)]


def _terms(row: bytes) -> bytes:
    return row[ID_SIZE:]
