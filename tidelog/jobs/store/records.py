"""The bytes of a stored value, and the digest of an epoch.

    record     tag u8 | payload                       a value that does not expire
               tag u8 + 128 | deadline u64 | payload  a value that expires; big-endian, ms since 1970
    tag        b bytes   s UTF-8   i int64   j decimal text of an int beyond 64 bits   f float64   m msgpack
               numbers are little-endian

Rule 1: A value expires at its deadline: it is visible while ``now < deadline``.
Rule 2: A record is never empty, so an empty one can mean "there was none" (pre-images).
Rule 3: The digest of an epoch depends only on the last mutation of each key, not on the order of calls: BLAKE2b, 16
        bytes, over number of keys u32, lengths of keys u32 ..., lengths of records u32 ... (0: deleted), keys, records,
        in the order of the stored keys. An epoch that changes nothing has the digest "".
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

TIMED: Final = 128  # added to the tag of a record with a deadline
LAST: Final = (1 << 63) - 1  # the latest deadline


def stamp(now_ms: int) -> bytes:
    """Return a time as bytes that sort by time."""
    return now_ms.to_bytes(8, "big")


def with_deadline(records: Sequence[bytes], deadline: int) -> list[bytes]:
    """Return the same values with a deadline."""
    at = stamp(min(deadline, LAST))
    heads = {tag: bytes((tag | TIMED,)) + at for tag in {record[0] for record in records}}
    return [heads[record[0]] + record[1:] for record in records]


def deadline_of(record: bytes) -> bytes | None:
    return record[1:9] if record[0] >= TIMED else None


def plain(record: bytes) -> bytes:
    """Return a record without its deadline."""
    return bytes((record[0] - TIMED,)) + record[9:] if record[0] >= TIMED else record


def unless_expired(records: Sequence[bytes | None], now: bytes) -> list[bytes | None]:
    """Return the same records, with None for those that have expired at ``now``."""
    return [
        None if record is None or (record[0] >= TIMED and record[1:9] <= now) else record for record in records
    ]  # fmt: skip


def digest(keys: Sequence[bytes], records: Sequence[bytes | None]) -> str:
    """Return the digest of an epoch, hexadecimal; ``keys`` are in ascending order, None is a deletion."""
    if not keys:
        return ""
    written = [record or b"" for record in records]
    numbers = array("I", [len(keys)])
    numbers.extend(map(len, keys))
    numbers.extend(map(len, written))
    if sys.byteorder == "big":
        numbers.byteswap()
    sum_ = blake2b(numbers.tobytes(), digest_size=16)
    sum_.update(b"".join(keys))
    sum_.update(b"".join(written))
    return sum_.hexdigest()
