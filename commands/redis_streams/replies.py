"""Entries in the X form as replies, built in memory if they are short and streamed if they are long.

Decision: X replies are sliced out of the wire form of T replies, because only the head of an entry differs. Storing a
second form in memory or on disk would double the size of the data.
"""

from __future__ import annotations

from collections.abc import Iterator

from commands.context import Chunks
from commands.streams.elements import Elements
from commands.streams.replies import STREAMED_ABOVE, after
from resp import reply as encode
from resp.reply import array_header
from storage.nodes.redisform import redis_entries
from storage.streams.position import StreamPosition
from storage.streams.snapshot import Snapshot
from storage.streams.stream import Stream


def range_reply(stream: Stream, position: StreamPosition, hi: int, count: int) -> bytes | Chunks:
    """Return an array of the ``count`` living entries from ``position`` to before ``hi``."""
    top, lo = array_header(count), position.ordinal
    if stream.wire_size(lo, hi) <= STREAMED_ABOVE:
        return b"".join([top, *stream.redis_form(position, hi)])
    snapshot = stream.snapshot(lo, hi)
    snapshot.waits = True
    return Chunks(after([top], _dashed(snapshot.entries())), snapshot.close, snapshot.memory_bytes, snapshot.pinned)


def reversed_reply(stream: Stream, lo: int, hi: int, count: int) -> bytes | Chunks:
    """Return an array of the ``count`` living entries with ordinals [lo, hi), newest first."""
    top = array_header(count)
    if stream.wire_size(lo, hi) <= STREAMED_ABOVE:
        return top + redis_entries(stream.read_reverse(lo, hi))
    snapshot = stream.snapshot(lo, hi)
    snapshot.waits = True
    pieces = after([top], _dashed(snapshot.entries_reverse()))
    return Chunks(pieces, snapshot.close, snapshot.memory_bytes, snapshot.pinned)


def _dashed(lists: Iterator[list[bytes]]) -> Iterator[bytes]:
    for entries in lists:
        yield redis_entries(entries)


class KeyPart:
    """The part of an XREAD or XREADGROUP reply for one key: encoded elements, entries of the stream with ordinals [lo,
    hi), or entries of a snapshot. ``position``: that of the first entry, if a search ended there."""

    __slots__ = ("count", "elements", "hi", "key", "lo", "position", "snapshot", "stream")

    def __init__(self, key: bytes, stream: Stream, lo: int, hi: int, position: StreamPosition | None = None) -> None:
        self.key = key
        self.stream = stream
        self.position = position or StreamPosition(lo, None, 0, 0)
        self.lo = lo
        self.hi = hi
        self.count = stream.count(lo, hi) if lo < hi else 0  # number of elements
        self.elements: Elements | None = None
        self.snapshot: Snapshot | None = None

    def set_elements(self, elements: Elements) -> None:
        """Set the elements and become responsible for closing them."""
        self.count += elements.count
        self.elements = elements

    def set_snapshot(self, count: int, snapshot: Snapshot | None) -> None:
        """Set the entries of a snapshot and become responsible for closing it."""
        self.count += count
        self.snapshot = snapshot

    def head(self, proto: int) -> bytes:
        """Return the part before the elements."""
        pair = b"" if proto == 3 else b"*2\r\n"
        key = self.key
        return b"".join((pair, encode.bulk_header(len(key)), key, b"\r\n", array_header(self.count)))

    def close(self) -> None:
        """Release everything: the part is not sent."""
        if self.snapshot is not None:
            self.snapshot.close()
        if self.elements is not None:
            self.elements.close()


def keys_reply(proto: int, parts: list[KeyPart]) -> bytes | Chunks:
    """Return a reply of XREAD or XREADGROUP: a map from keys to arrays in RESP3, pairs in RESP2."""
    top = b"%%%d\r\n" % len(parts) if proto == 3 else array_header(len(parts))
    size = 0
    for part in parts:
        if part.elements is not None:
            size += STREAMED_ABOVE + 1 if part.elements.picked else part.elements.size
        if part.lo < part.hi:
            size += part.stream.wire_size(part.lo, part.hi)
        if part.snapshot is not None:
            size = STREAMED_ABOVE + 1
    if size <= STREAMED_ABOVE:
        pieces = [top]
        for part in parts:
            pieces.append(part.head(proto))
            if part.elements is not None:
                pieces.append(part.elements.encoded())
            if part.lo < part.hi:
                pieces += part.stream.redis_form(part.position, part.hi)
        return b"".join(pieces)
    reply = _KeyChunks(proto, parts)
    return Chunks(after([top], reply.pieces()), reply.close, reply.held, reply.pinned)


class _KeyChunks:
    """The keys of a long reply, as of its start."""

    __slots__ = ("_parts", "held")

    def __init__(self, proto: int, parts: list[KeyPart]) -> None:
        self._parts: list[tuple[bytes, Elements | None, Snapshot | None]] = []
        self.held = 0
        for part in parts:
            head, elements = part.head(proto), part.elements
            snapshot = part.stream.snapshot(part.lo, part.hi) if part.lo < part.hi else part.snapshot
            self._parts.append((head, elements, snapshot))
            self.held += len(head) + (0 if elements is None else elements.held())
            self.held += 0 if snapshot is None else snapshot.memory_bytes

    def pieces(self) -> Iterator[bytes]:
        try:
            for head, elements, snapshot in self._parts:
                if elements is not None:
                    yield from after([head], elements.pieces())
                    head = b""
                if snapshot is not None:
                    snapshot.waits = True
                    yield from after([head], _dashed(snapshot.entries()))
                elif head:
                    yield head
        finally:
            self.close()

    def pinned(self) -> int:
        size = 0
        for _, elements, snapshot in self._parts:
            size += (0 if elements is None else elements.pinned()) + (0 if snapshot is None else snapshot.pinned())
        return size

    def close(self) -> None:
        for _, elements, snapshot in self._parts:
            if elements is not None:
                elements.close()
            if snapshot is not None:
                snapshot.close()
