"""Ranges of entries as replies, built in memory if they are short and streamed if they are long; WITHINFO."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from commands.context import Chunks
from resp import reply as encode
from resp.reply import array_header
from storage.model.entries import COUNTS
from storage.model.ids import format_id
from storage.streams.position import StreamPosition
from storage.streams.stream import Stream

STREAMED_ABOVE: Final = 256 * 1024  # bytes; a longer reply is sent node by node and never built as a whole


def entries_reply(
    count: int, head: bytes, stream: Stream | None, position: StreamPosition | None, hi: int
) -> bytes | Chunks:
    """Return an array of ``count`` elements: those encoded in ``head``, then the entries from ``position`` to before
    ``hi``. No entries follow if ``stream`` or ``position`` is None."""
    top = COUNTS[count] if count < 1024 else array_header(count)
    if stream is None or position is None or position.ordinal >= hi:
        return top + head
    wire = stream.at_hand(position, hi, STREAMED_ABOVE)  # nearly always possible if the range is short
    if wire is not None:
        return b"".join((top, head, wire))
    lo = position.ordinal
    if stream.wire_size(lo, hi) <= STREAMED_ABOVE:
        return b"".join((top, head, stream.read(lo, hi)))
    snapshot = stream.snapshot(lo, hi)
    snapshot.waits = True
    pieces = after([top, head], snapshot.forward())
    return Chunks(pieces, snapshot.close, snapshot.memory_bytes + len(head), snapshot.pinned)


def reversed_reply(stream: Stream, lo: int, hi: int) -> bytes | Chunks:
    """Return the entries with ordinals [lo, hi), newest first."""
    top = array_header(stream.count(lo, hi))
    if stream.wire_size(lo, hi) <= STREAMED_ABOVE:
        wires = stream.read_reverse(lo, hi)
        wires[:0] = [top]
        return b"".join(wires)
    snapshot = stream.snapshot(lo, hi)
    snapshot.waits = True
    return Chunks(after([top], snapshot.backward()), snapshot.close, snapshot.memory_bytes, snapshot.pinned)


def info_element(stream: Stream | None, proto: int) -> bytes:
    """Return WITHINFO's element: the current [first, last] [12]."""
    if stream is None:
        return b"*2\r\n" + encode.null(proto) + b"$3\r\n0.0\r\n"
    first = encode.bulk(format_id(stream.first_id())) if stream.length else encode.null(proto)
    return b"*2\r\n" + first + encode.bulk(format_id(stream.last_id))


def after(head: list[bytes], pieces: Iterator[bytes]) -> Iterator[bytes]:
    first = next(pieces, b"")  # if an entry is damaged, the reply can still be an error
    yield from head
    yield first
    yield from pieces
