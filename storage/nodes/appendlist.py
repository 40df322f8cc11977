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
    LONG_TAIL,
    MAGIC,
    SEQ_DELTAS,
    UNSIGNED,
    VERSION,
    ZSTD,
    TailNode,
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
    return _blob(loose[1::STEP], loose[2::STEP], [len(wire) for wire in wires], wires, compress=False)


def sealed_blob(loose: list[Any], ms: int, seq: int, sizes: list[int], parts: list[bytes]) -> tuple[bytes, int]:
    """What sealed() makes of the loose entries and those behind them, which are too large to be coded: their bytes are
    copied once. ``sizes``, ``parts``: of those behind, with the IDs ms.seq, ms.seq + 1 ..."""
    wires: list[bytes] = loose[::STEP]
    numbers: list[int] = loose[1::STEP]
    seqs: list[int] = loose[2::STEP]
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
