"""The partition of a key.

    partition = CRC-32(canonical bytes of the key) mod partitions

CRC-32 is that of zlib, PNG and Ethernet, so every language has it. The canonical bytes are the UTF-8 of a str, the
decimal text of an int, bytes unchanged, and the text of a UUID with dashes, in lower case. 1 and "1" are therefore the
same key. Other types can't be keys, since the text of a float or a time differs between languages.

    key                                     CRC-32       of 16   of 100
    "" (also b"")                           0x00000000       0       0
    "1" (also 1, b"1")                      0x83dcefb7       7      83
    -42                                     0xbc29aed6       6      42
    "order-4711"                            0x2649cdcf      15      23
    "Müller"                                0x6c47b7c5       5      29
    12345678-1234-5678-1234-567812345678    0x528fff49       9      13
"""

from __future__ import annotations

from typing import Final
from uuid import UUID
from zlib import crc32

Key = str | int | bytes | UUID
HASH: Final = "crc32"  # the name of this function in the settings of a topic


def canonical(key: Key) -> bytes:
    """Return the bytes of a key. Raises TypeError for a type that is not in Key, such as bool."""
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, bytes):
        return key
    if isinstance(key, int) and not isinstance(key, bool):
        return b"%d" % key
    if isinstance(key, UUID):
        return str(key).encode()
    raise TypeError(f"a partition key is str, int, bytes or UUID, not {type(key).__name__} {key!r}")


def partition_of(key: Key, partitions: int) -> int:
    """Return the partition of a key, from 0. Raises TypeError as ``canonical`` does."""
    return crc32(canonical(key)) % partitions
