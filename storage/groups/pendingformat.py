"""A pending list as bytes: what checkpoints store and replicas get. Numbers are big-endian.

::

    0      4         12        20        24
    +------+---------+---------+---------+-----------------------------+--------------+--------------+---------+
    | TLP2 | rows u64| runs u64| keys u32| each key: length u32, bytes | runs, 61 each| rows, 16 each|crc32 u32|
    +------+---------+---------+---------+-----------------------------+--------------+--------------+---------+

Runs and rows are those of ``pending``. A dump is valid if the lengths add up, the crc32 is that of everything before
it, IDs ascend, each run has rows and each row a run, and the runs' slots name keys.

A dump in which consumers own messages begins with TLP3 and is otherwise the same: servers that don't know consumers
must not read it. All others are written as TLP2, which those servers read.

TLP1, the format before that, is still read. It has no runs; its rows are 60 bytes each: a run that begins at the
message's ID, without ``swept``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from struct import Struct
from typing import Final
from zlib import crc32

import zstandard

from resp.errors import CorruptError
from storage.model.sortedrows import PackedRows

RUN_SIZE: Final = 61
ID_SIZE: Final = 16
MAGIC: Final = b"TLP2"
OWNED_MAGIC: Final = b"TLP3"
OWNED: Final = 2  # last byte of a run whose messages a consumer owns, or nobody; 0 or 1 in all others
HEAD: Final = Struct(">4sQQI")
OLD_MAGIC: Final = b"TLP1"
OLD_HEAD: Final = Struct(">4sQI")
OLD_SIZE: Final = RUN_SIZE - 1  # of a row
NUMBER: Final = Struct(">I")


def head(rows: int, runs: int, keys: list[bytes], owned: bool) -> list[bytes]:
    """The parts before the runs. ``owned``: there are runs that are OWNED."""
    parts = [HEAD.pack(OWNED_MAGIC if owned else MAGIC, rows, runs, len(keys))]
    for key in keys:
        parts += (NUMBER.pack(len(key)), key)
    return parts


def assemble(parts: Sequence[bytes | PackedRows], room: int = 0) -> bytearray:
    """The dump whose parts these are, after ``room`` zero bytes.

    A million messages can take 70 MB. b"".join would stop all other threads while it copies them; this lets them run
    between parts.
    """
    dump = bytearray(room)
    decompressor = zstandard.ZstdDecompressor()
    for part in parts:
        dump += part if isinstance(part, bytes) else decompressor.decompress(part.data)
    dump += NUMBER.pack(crc32(memoryview(dump)[room:]))
    return dump


def parse(data: bytes) -> tuple[list[bytes], list[bytes], bytes]:
    """Keys, runs, and rows (joined) of a dump; their order and content is not checked. Raises CorruptError."""
    old = data.startswith(OLD_MAGIC)
    start = OLD_HEAD.size if old else HEAD.size
    most = OWNED if data.startswith(OWNED_MAGIC) else OWNED - 1
    if len(data) < start + NUMBER.size or not (old or most == OWNED or data.startswith(MAGIC)):
        raise CorruptError("a pending list is damaged, or was written by a newer tidelog: its head is unknown")
    end = len(data) - NUMBER.size
    if NUMBER.unpack_from(data, end)[0] != crc32(memoryview(data)[:end]):
        raise CorruptError("a pending list is damaged: its checksum is wrong")
    runs = 0
    if old:
        _, rows, count = OLD_HEAD.unpack_from(data)
        size = rows * OLD_SIZE
    else:
        _, rows, runs, count = HEAD.unpack_from(data)
        size = runs * RUN_SIZE + rows * ID_SIZE
    keys: list[bytes] = []
    at = start
    while len(keys) < count and at + NUMBER.size <= end:
        length = NUMBER.unpack_from(data, at)[0]
        at += NUMBER.size + length
        keys.append(data[at - length : at])
    if len(keys) != count or end - at != size:
        raise CorruptError("a pending list is damaged: its lengths don't add up")
    if old:
        lines = cut(data[at:end], OLD_SIZE)
        firsts = [next(alike) + b"\0" for _, alike in groupby(lines, key=_terms)]
        return keys, firsts, b"".join([line[:ID_SIZE] for line in lines])
    between = at + runs * RUN_SIZE
    found = cut(data[at:between], RUN_SIZE)
    if any(run[-1] > most for run in found):
        raise CorruptError("a pending list is damaged: a run is of a kind that can't be in it")
    return keys, found, data[between:end]


def cut(rows: bytes, width: int) -> list[bytes]:
    return [rows[at : at + width] for at in range(0, len(rows), width)]


def _terms(line: bytes) -> bytes:
    return line[ID_SIZE:]
