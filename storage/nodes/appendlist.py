"""Entries at a stream's end that came one by one and that nobody has read: a list of the wire, ms and seq of each.

With appends to 100,000 streams at random no cache has what an append touches, and it waits for each object and each
buffer. A tail's node has nine, this list two; and it takes less memory while there are few entries. They become a node
(or the end of one) when they are read, when they are many, and when the tail is sealed.
"""

from __future__ import annotations

from array import array
from sys import byteorder
from typing import Any, Final
from zlib import crc32

from storage.nodes import coder
from storage.nodes.node import (
    CRC,
    HEADER,
    LONG_ACTIVE,
    MAGIC,
    SEQ_DELTAS,
    UNSIGNED,
    VERSION,
    ZSTD,
    ActiveNode,
    keyspace_compressor,
    packed_seqs,
)

STEP: Final = 3  # elements of an entry
MOST: Final = 32 * STEP  # elements; then they are joined
LARGE: Final = 512  # bytes: entries of so many are not joined because they are many
LIST_BYTES: Final = 90  # memory of the list
ENTRY_BYTES: Final = 70  # memory that an entry takes besides its wire


class _LastMs:
    """The last millisecond as an object, which all entries of it share."""

    __slots__ = ("ms", "shared")

    def __init__(self) -> None:
        self.ms = -1
        self.shared: object = None


_last: Final = _LastMs()


def add(listed: list[Any], ms: int, seq: int, wire: bytes) -> None:
    """Add an entry. All or nothing, also without memory."""
    if ms != _last.ms:
        _last.ms, _last.shared = ms, ms
    count = len(listed)
    try:
        listed.append(wire)
        listed.append(_last.shared)
        listed.append(seq)
    except MemoryError:
        del listed[count:]
        raise


def begun(ms: int, seq: int, wire: bytes) -> list[Any]:
    """A list with one entry; no longer than it must be."""
    if ms != _last.ms:
        _last.ms, _last.shared = ms, ms
    return [wire, _last.shared, seq]


def first_id(listed: list[Any]) -> int:
    ms: int = listed[1]
    seq: int = listed[2]
    return ms << 64 | seq


def join(listed: list[Any], active: ActiveNode) -> None:
    """Add the entries to the end of a tail. All or nothing, also without memory: readers do this, and go on."""
    size, count = len(active.wire), len(active.ends)
    try:
        _join(listed, active)
    except MemoryError:
        del active.wire[size:], active.ends[count:], active.ms[count:], active.seq[count:]
        raise


def _join(listed: list[Any], active: ActiveNode) -> None:
    wires: list[bytes] = listed[::STEP]
    end = len(active.wire)
    ends: list[int] = []
    for wire in wires:
        end += len(wire)
        ends.append(end)
    ms: int = listed[1]
    seq: int = listed[2]
    last_ms: int = listed[-2]
    last_seq: int = listed[-1]
    if ms == last_ms and last_seq - seq == len(wires) - 1:
        active.wire += b"".join(wires)
        active.extend(ms, seq, ends)
        return
    column, numbers, seqs = array("I", ends), array("Q", listed[1::STEP]), array("Q", listed[2::STEP])
    active.wire += b"".join(wires)
    if len(active.ends):
        active.ends.extend(column)
        active.ms.extend(numbers)
        active.seq.extend(seqs)
    else:
        active.ends, active.ms, active.seq = column, numbers, seqs


def active_blob(listed: list[Any], size: int) -> tuple[bytes, int]:
    """What tail_blob() of ``node`` makes of the joined entries, of ``size`` bytes, without joining them."""
    coded = coder.encode_list(listed) if size >= LONG_ACTIVE else None
    return raw_blob(listed) if coded is None else coded


def raw_blob(listed: list[Any]) -> tuple[bytes, int]:
    """What sealed() makes of the joined entries, uncompressed: in half of the time, and without joining them."""
    wires: list[bytes] = listed[::STEP]
    return _blob(listed[1::STEP], listed[2::STEP], [len(wire) for wire in wires], wires, compress=False)


def sealed_blob(listed: list[Any], ms: int, seq: int, sizes: list[int], parts: list[bytes]) -> tuple[bytes, int]:
    """What sealed() makes of the loose entries and those behind them, which are too large to be coded: their bytes are
    copied once. ``sizes``, ``parts``: of those behind, with the IDs ms.seq, ms.seq + 1 ..."""
    wires: list[bytes] = listed[::STEP]
    numbers: list[int] = listed[1::STEP]
    seqs: list[int] = listed[2::STEP]
    count = len(sizes)
    if count:
        numbers += [ms] * count
        seqs += range(seq, seq + count)
    return _blob(numbers, seqs, [len(wire) for wire in wires] + sizes, wires + parts, compress=True)


def _blob(
    numbers: list[int], seqs: list[int], sizes: list[int], parts: list[bytes], compress: bool
) -> tuple[bytes, int]:  # fmt: skip
    """The blob of entries in parts, and the bytes of the largest one."""
    first = before = numbers[0]
    gaps: list[int] = []
    for ms in numbers:
        gaps.append(ms - before)
        before = ms
    largest = max(sizes)
    gap_power, size_power = _power(max(gaps)), _power(largest)
    how = gap_power << 1 | size_power << 5
    if max(seqs) > 255:
        differences, seq_power, seq_bytes = packed_seqs(array("Q", numbers), array("Q", seqs))
        how |= (SEQ_DELTAS if differences else 0) | seq_power << 3
    else:
        seq_bytes = bytes(seqs)
    body = b"".join((_column(gaps, gap_power), seq_bytes, _column(sizes, size_power), *parts))
    if compress:
        how |= ZSTD
        body = keyspace_compressor.compress(body)
    head = HEADER.pack(MAGIC, VERSION, how, len(sizes), sum(sizes), first, seqs[0])
    return b"".join((head, CRC.pack(crc32(body, crc32(head))), body)), largest


def _power(most: int) -> int:
    """The width of a column of numbers up to ``most``, as a power of two."""
    return 0 if most < 1 << 8 else 1 if most < 1 << 16 else 2 if most < 1 << 32 else 3


def _column(numbers: list[int], power: int) -> bytes:
    if not power:
        return bytes(numbers)
    column = array(UNSIGNED[power], numbers)
    if byteorder == "big":
        column.byteswap()
    return column.tobytes()
