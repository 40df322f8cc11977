"""The append list: the last entries of a stream's active node, appended one by one and not read yet.

It is a list with three elements per entry: wire form, ms, and seq.

Decision: an append to a stream that nobody reads touches a list, not a node. With 100,000 streams in random order, no
object that an append touches is in a processor cache, and each object and buffer costs a wait for memory. An active
node has nine of them, the list has two. The list also takes less memory while there are few entries. The entries move
to a node when they are read, when there are many of them, and when the node is sealed. Once a node is read, new entries
are added to it directly.

Decision: large entries are joined when their node is sealed, not when they are appended. A buffer that grows by 10 KB
at a time is moved repeatedly and copied again to be compressed, which took a fifth of an append's instructions in
``storage``.
"""

from __future__ import annotations

from array import array
from sys import byteorder
from typing import Any, Final
from zlib import crc32

import zstandard

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
MOST: Final = 32 * STEP  # maximum elements; a longer list is joined
LARGE: Final = 512  # bytes: a list is not joined because of its length when a larger entry is added
LIST_BYTES: Final = 90  # memory of the list
ENTRY_BYTES: Final = 70  # memory of an entry without its wire form


class _LastMs:
    """The last millisecond as an object, which all entries of this millisecond share."""

    __slots__ = ("ms", "shared")

    def __init__(self) -> None:
        self.ms = -1
        self.shared: object = None


_last: Final = _LastMs()


def add(listed: list[Any], ms: int, seq: int, wire: bytes) -> None:
    """Add an entry. Changes nothing if it raises MemoryError."""
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
    """Return a list with one entry and no spare capacity."""
    if ms != _last.ms:
        _last.ms, _last.shared = ms, ms
    return [wire, _last.shared, seq]


def id_at(listed: list[Any], index: int) -> int:
    ms: int = listed[STEP * index + 1]
    seq: int = listed[STEP * index + 2]
    return ms << 64 | seq


def first_id(listed: list[Any]) -> int:
    ms: int = listed[1]
    seq: int = listed[2]
    return ms << 64 | seq


def join(listed: list[Any], active: ActiveNode) -> None:
    """Add the entries to the end of an active node.

    Changes nothing if it raises MemoryError: readers call this, too, and the server continues to run.
    """
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
    """Return what active_blob() (see ``node``) returns for the entries, of ``size`` bytes, without joining them."""
    coded = coder.encode_list(listed) if size >= LONG_ACTIVE else None
    return raw_blob(listed) if coded is None else coded


def raw_blob(listed: list[Any]) -> tuple[bytes, int]:
    """Return what sealed() returns for the entries, uncompressed, without joining them. Takes half of the time."""
    wires: list[bytes] = listed[::STEP]
    return _blob(listed[1::STEP], listed[2::STEP], [len(wire) for wire in wires], wires, None)


def sealed_blob(
    listed: list[Any], ms: int, seq: int, sizes: list[int], parts: list[bytes],
    compressor: zstandard.ZstdCompressor = keyspace_compressor,
) -> tuple[bytes, int]:  # fmt: skip
    """Return what sealed() returns for the list and the entries after it, which are too large to be coded.

    Copies their bytes once. ``sizes``, ``parts``: of the entries after the list, with the IDs ms.seq, ms.seq + 1 ...
    ``compressor`` belongs to the calling thread.
    """
    wires: list[bytes] = listed[::STEP]
    numbers: list[int] = listed[1::STEP]
    seqs: list[int] = listed[2::STEP]
    count = len(sizes)
    if count:
        numbers += [ms] * count
        seqs += range(seq, seq + count)
    return _blob(numbers, seqs, [len(wire) for wire in wires] + sizes, wires + parts, compressor)


def _blob(
    numbers: list[int], seqs: list[int], sizes: list[int], parts: list[bytes],
    compressor: zstandard.ZstdCompressor | None,
) -> tuple[bytes, int]:  # fmt: skip
    """Return the blob of entries in parts, and the size of the largest one. ``compressor``: None for a raw blob."""
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
    if compressor is not None:
        how |= ZSTD
        body = compressor.compress(body)
    head = HEADER.pack(MAGIC, VERSION, how, len(sizes), sum(sizes), first, seqs[0])
    return b"".join((head, CRC.pack(crc32(body, crc32(head))), body)), largest


def _power(most: int) -> int:
    """Return the width of a column of numbers up to ``most``, as a power of two."""
    return 0 if most < 1 << 8 else 1 if most < 1 << 16 else 2 if most < 1 << 32 else 3


def _column(numbers: list[int], power: int) -> bytes:
    if not power:
        return bytes(numbers)
    column = array(UNSIGNED[power], numbers)
    if byteorder == "big":
        column.byteswap()
    return column.tobytes()
