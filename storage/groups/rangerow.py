"""The row of a range of pending messages: its layout and access to its fields.

A *range* is a sequence of neighboring messages with the same times, counts, and so on, which its row stores once::

    0        16        24      32         40        48             52                 56      60        61
    +--------+---------+-------+----------+---------+--------------+------------------+-------+---------+
    | low 16 |first u64|due u64|expire u64|retry u64|deliveries u32|max-deliveries u32|key u32|kind   u8|
    +--------+---------+-------+----------+---------+--------------+------------------+-------+---------+

A range contains all messages from its ``low`` up to the ``low`` of the next range. The fields after ``low`` are its
*terms*. Numbers are big-endian, so that rows sort as bytes. ``key`` is the slot of the dead-letter key in a separate
table, from 1; 0 for none. A message can be redelivered while its deliveries are below max-deliveries (0: no limit) and
it falls due before it expires. It leaves the list when it expires (0: never) or, after its last delivery, when it would
fall due, whichever comes first. ``kind`` is 0, SWEPT (1) once due() has found the range expired, or OWNED (2).

Messages of a consumer never fall due, never expire, and have no dead letters. In the range of a consumer, these fields
contain the time of the last delivery, the number of deliveries, and the consumer's number instead::

    0        16        24       32             40          48          52        56          60      61
    +--------+---------+--------+--------------+-----------+-----------+---------+-----------+-------+
    | low 16 |first u64|last u64|deliveries u64| 8 zeros   | 4 zeros   |owner u32| 4 zeros   | 2   u8|
    +--------+---------+--------+--------------+-----------+-----------+---------+-----------+-------+

Owner 0 is nobody: the message was returned without an acknowledgement.

Decision: this reuse of fields keeps the rows of all ranges at 61 bytes, and only ranges of consumers need indexes by
owner and by idle time (``ownerindex``).

The offsets below are constants, and a field is read as ``row[DUE:EXPIRE]``. Compiled, this is the same instruction as
with literal numbers. A class with properties would need an object per row.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from storage.model.timers import NEVER

ID_SIZE: Final = 16
TIME_SIZE: Final = 8
RANGE_SIZE: Final = 61

# Offsets of the fields; a field ends where the next one begins.
FIRST: Final = 16
DUE: Final = 24
LAST: Final = 24  # in an OWNED range
EXPIRE: Final = 32
RETRY: Final = 40
MAX_DELIVERIES: Final = 52
OWNER: Final = 52  # in an OWNED range
KEY: Final = 56
KIND: Final = 60
# The same in terms, which have no low.
TERMS_KEY: Final = 40
TERMS_KIND: Final = 44

OWNED: Final = 2  # kind of a range whose messages belong to a consumer or were returned
SWEPT: Final = b"\1"
NOT_SWEPT: Final = b"\0"
UNLIMITED: Final = bytes(9)  # max-deliveries, key, and kind of most ranges
FOREVER: Final = bytes(8)  # ``expire`` of messages that do not expire
NOBODY: Final = bytes(4)  # ``owner`` of returned messages
HAS_OWNER: Final = 1 << 63  # added to ``last`` in last_row() if the range has an owner
_WITH_OWNER: Final = [bytes([byte | 0x80]) for byte in range(256)]  # the first byte of a time with HAS_OWNER added

RANGE: Final = Struct(">16sQQQQIIIB")
TERMS: Final = Struct(">QQQQIIIB")
TIME: Final = Struct(">Q")

pack_time: Final = TIME.pack
unpack_time: Final = TIME.unpack_from
pack_terms: Final = TERMS.pack
unpack_range: Final = RANGE.unpack


def owner_of(row: bytes) -> int:
    return int.from_bytes(row[OWNER:KEY], "big")


def owner_row(row: bytes) -> bytes:
    """Return the entry of an OWNED range in the set ordered by owner."""
    return row[OWNER:KEY] + row[:ID_SIZE]


def last_row(row: bytes) -> bytes:
    """Return the entry of an OWNED range in the set ordered by last delivery."""
    return last_time(row) + row[:ID_SIZE]


def last_time(row: bytes) -> bytes:
    """Return the first 8 bytes of last_row()."""
    return row[LAST:EXPIRE] if row[OWNER:KEY] == NOBODY else _WITH_OWNER[row[LAST]] + row[LAST + 1 : EXPIRE]


def due_row(row: bytes) -> bytes:
    """Return the entry of a range in the set ordered by due time."""
    return row[DUE:EXPIRE] + row[:ID_SIZE]


def index_rows(row: bytes) -> tuple[bytes, bytes, int]:
    """Return the entries of a range in the sets ordered by due time and by leaving time, and the slot of its key.

    An entry is empty if the range is not in the set. OWNED ranges have neither entries nor a slot.
    """
    if row[KIND] == OWNED:
        return b"", b"", 0
    if row[MAX_DELIVERIES:] == UNLIMITED:  # the common case: no delivery limit, no dead letters, not swept
        low = row[:ID_SIZE]
        due_at, leaves_by = row[DUE:EXPIRE], row[EXPIRE:RETRY]
        if leaves_by == FOREVER:
            return due_at + low, b"", 0
        return due_at + low if due_at < leaves_by else b"", leaves_by + low, 0
    low, _, due, expire, _, deliveries, most, slot, swept = unpack_range(row)
    again = not most or deliveries < most
    leaves = leaves_at(due, expire, deliveries, most)
    return (
        row[DUE:EXPIRE] + low if again and not swept and (not expire or due < expire) else b"",
        pack_time(leaves) + low if leaves != NEVER else b"",
        slot,
    )


def leaves_at(due: int, expire: int, deliveries: int, max_deliveries: int) -> int:
    """Return the time (ms) at which a message must leave, or NEVER."""
    if max_deliveries and deliveries >= max_deliveries and (not expire or due < expire):
        return due
    return expire
