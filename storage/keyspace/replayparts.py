"""The parts of records, and the checks that records of several kinds share (see ``replay``)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from resp.errors import CorruptError
from storage.groups.group import Group
from storage.keyspace.keyspace import Keyspace
from storage.model import records
from storage.streams.stream import Stream

# By kind, a function that takes the keyspace, the batch, and the start and end of the record in it.
Appliers = dict[int, Callable[[Keyspace, bytes, int, int], None]]
# raised by mutators for arguments that no mutator has logged
DAMAGE: Final = (struct.error, ValueError, KeyError, IndexError, OverflowError)


def split_names(batch: bytes, start: int, klen: int, glen: int) -> tuple[bytes, bytes, int]:
    middle = start + klen
    return batch[start:middle], batch[middle : middle + glen], middle + glen


def part(batch: bytes, start: int, stop: int) -> bytes:
    """Return batch[start:stop]. The check is needed because compiled slices must not end before they begin."""
    if start > stop:
        raise CorruptError("a record with a part that ends beyond it")
    return batch[start:stop]


def check_above(stream: Stream | None, ms: int, seq: int) -> None:
    """Raise CorruptError if an ID is not above the stream's last ID. ``stream``: None for a new stream."""
    if (ms, seq) <= ((0, 0) if stream is None else (stream.last_ms, stream.last_seq)):
        raise not_above(ms, seq)


def check_times(*times: int) -> None:
    """Raise CorruptError if a time is not below 2**63, the limit of commands and replies."""
    for time in times:
        if time >> 63:
            raise CorruptError("a record with a time that is out of range")


def entries_read_of(read: int) -> int:
    if read != records.UNKNOWN and read >> 63:
        raise CorruptError("a record with entries read that are out of range")
    return -1 if read == records.UNKNOWN else read


def not_above(ms: int, seq: int) -> CorruptError:
    return CorruptError(f"a record whose IDs, from {ms}.{seq} on, do not follow the stream's last ID")


def stream_at(ks: Keyspace, key: bytes) -> Stream | None:
    value = ks.keys.get(key)
    if value is not None and not isinstance(value, Stream):
        raise CorruptError("a stream's record for a key that holds a string")
    return value


def need_stream(ks: Keyspace, key: bytes) -> Stream:
    stream = stream_at(ks, key)
    if stream is None:
        raise CorruptError("a record for a stream that does not exist")
    return stream


def need_group(ks: Keyspace, key: bytes, name: bytes) -> tuple[Stream, Group]:
    stream = need_stream(ks, key)
    group = stream.groups.get(name)
    if group is None:
        raise CorruptError("a record for a group that does not exist")
    return stream, group
