"""The entries of sections in the form in which TRANGE sends them, in C if a compiler was there at the installation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tidelog.client.entries import SEQ_MAX, StreamId
from tidelog.history.index import Frame

try:
    from tidelog.history._section import wire

    BUILT = True
except ImportError:  # installed without a compiler
    BUILT = False

ALL: Final = StreamId(SEQ_MAX, SEQ_MAX)


def wire_of(frame: Frame, after: StreamId, end: StreamId, first_ord: int, deleted: bytes) -> bytes | bytearray:
    """Return the entries of a frame with IDs in (after, end] that still exist, in RESP.

    ``first_ord``: entries with lower ordinals were evicted. ``deleted``: start and end of each range of deleted
    ordinals, uint64 each. Raises ValueError if the frame is not as specified.
    """
    record = frame.record
    if BUILT:
        return wire(
            frame.content, record.entries, frame.has_ordinals, record.first_id.ms, record.first_ord, first_ord,
            (after.ms, after.seq), (end.ms, end.seq), deleted,
        )  # fmt: skip
    return interpreted(frame, after, end, first_ord, deleted)


def interpreted(frame: Frame, after: StreamId, end: StreamId, first_ord: int, deleted: bytes) -> bytes:
    """Return the same as ``wire_of``, without the compiled module."""
    record, content = frame.record, frame.content
    at, columns = 12, []
    for start in (0, 4, 8):
        size = int.from_bytes(content[start : start + 4], "little")
        columns.append(list(_numbers(content[at : at + size])))
        at += size
    steps, ordinals, sizes = columns
    if (len(steps), len(sizes)) != (2 * record.entries, record.entries) or at + sum(sizes) != len(content):
        raise ValueError("the entries of a section are not as specified")
    if len(ordinals) != (record.entries if frame.has_ordinals else 0):
        raise ValueError("the entries of a section are not as specified")
    ranges = list(pairwise(memoryview(deleted).cast("Q")))[::2]
    ms, seq, ordinal, passed = record.first_id.ms, 0, record.first_ord - (not frame.has_ordinals), 0
    made = []
    for number, size in enumerate(sizes):
        step = steps[2 * number]
        ms, seq = ms + step, steps[2 * number + 1] + (0 if step else seq)
        ordinal += ordinals[number] if frame.has_ordinals else 1
        entry, at = content[at : at + size], at + size
        while passed < len(ranges) and ranges[passed][1] <= ordinal:
            passed += 1
        gone = passed < len(ranges) and ranges[passed][0] <= ordinal
        if gone or ordinal < first_ord or not after < (ms, seq) <= end:
            continue
        head, _, rest = entry.partition(b"\r\n")
        own = b"%d.%d" % (ms, seq)
        made.append(b"*%d\r\n$%d\r\n%b\r\n%b" % (int(head[1:]) + 1, len(own), own, rest))
    return b"".join(made)


def _numbers(column: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in column:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield number
            number = shift = 0
    if shift:
        raise ValueError("a column ends within a number")
