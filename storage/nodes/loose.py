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
from storage.nodes.node import CRC, HEADER, LONG_TAIL, MAGIC, UNSIGNED, VERSION, TailNode, sealed

STEP: Final = 3  # elements of an entry
MOST: Final = 32 * STEP  # elements; then they are joined
LARGE: Final = 512  # bytes of an entry that is better joined at once
LIST_BYTES: Final = 90  # memory of the list
ENTRY_BYTES: Final = 70  # memory that an entry takes besides its wire


class _LastMs:
    """The last millisecond as an object, which all entries of it share."""

    __slots__ = ("ms", "shared")

    def __init__(self) -> None:
        self.ms = -1
        self.shared: object = None


_last: Final = _LastMs()


def add(loose: list[Any], ms: int, seq: int, wire: bytes) -> None:
    """Add an entry. All or nothing, also without memory."""
    if ms != _last.ms:
        _last.ms, _last.shared = ms, ms
    count = len(loose)
    try:
        loose.append(wire)
        loose.append(_last.shared)
        loose.append(seq)
    except MemoryError:
        del loose[count:]
        raise


def begun(ms: int, seq: int, wire: bytes) -> list[Any]:
    """A list with one entry; no longer than it must be."""
    if ms != _last.ms:
        _last.ms, _last.shared = ms, ms
    return [wire, _last.shared, seq]


def first_id(loose: list[Any]) -> int:
    ms: int = loose[1]
    seq: int = loose[2]
    return ms << 64 | seq


def join(loose: list[Any], tail: TailNode) -> None:
    """Add the entries to the end of a tail. All or nothing, also without memory: readers do this, and go on."""
    size, count = len(tail.wire), len(tail.ends)
    try:
        _join(loose, tail)
    except MemoryError:
        del tail.wire[size:], tail.ends[count:], tail.ms[count:], tail.seq[count:]
        raise


def _join(loose: list[Any], tail: TailNode) -> None:
    wires: list[bytes] = loose[::STEP]
    end = len(tail.wire)
    ends: list[int] = []
    for wire in wires:
        end += len(wire)
        ends.append(end)
    ms: int = loose[1]
    seq: int = loose[2]
    last_ms: int = loose[-2]
    last_seq: int = loose[-1]
    if ms == last_ms and last_seq - seq == len(wires) - 1:
        tail.wire += b"".join(wires)
        tail.extend(ms, seq, ends)
        return
    column, numbers, seqs = array("I", ends), array("Q", loose[1::STEP]), array("Q", loose[2::STEP])
    tail.wire += b"".join(wires)
    if len(tail.ends):
        tail.ends.extend(column)
        tail.ms.extend(numbers)
        tail.seq.extend(seqs)
    else:
        tail.ends, tail.ms, tail.seq = column, numbers, seqs


def tail_blob(loose: list[Any], size: int) -> tuple[bytes, int]:
    """What tail_blob() of ``node`` makes of the joined entries, of ``size`` bytes, without joining them."""
    coded = coder.encode_list(loose) if size >= LONG_TAIL else None
    return raw_blob(loose) if coded is None else coded


def raw_blob(loose: list[Any]) -> tuple[bytes, int]:
    """What sealed() makes of the joined entries, uncompressed: in half of the time, and without joining them."""
    wires: list[bytes] = loose[::STEP]
    numbers: list[int] = loose[1::STEP]
    seqs: list[int] = loose[2::STEP]
    if max(seqs) > 255 or byteorder == "big":
        tail = TailNode()
        join(loose, tail)
        return sealed(tail, compress=False)
    first = before = numbers[0]
    gaps: list[int] = []
    for ms in numbers:
        gaps.append(ms - before)
        before = ms
    sizes = [len(wire) for wire in wires]
    largest = max(sizes)
    gap_power, size_power = _power(max(gaps)), _power(largest)
    wire = b"".join(wires)
    body = b"".join((_column(gaps, gap_power), bytes(seqs), _column(sizes, size_power), wire))
    head = HEADER.pack(MAGIC, VERSION, gap_power << 1 | size_power << 5, len(wires), len(wire), first, seqs[0])
    return b"".join((head, CRC.pack(crc32(body, crc32(head))), body)), largest


def _power(most: int) -> int:
    """The width of a column of numbers up to ``most``, as a power of two."""
    return 0 if most < 1 << 8 else 1 if most < 1 << 16 else 2 if most < 1 << 32 else 3


def _column(numbers: list[int], power: int) -> bytes:
    return array(UNSIGNED[power], numbers).tobytes() if power else bytes(numbers)
