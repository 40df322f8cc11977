"""Reply elements for entries in any order: messages that are redelivered.

Rule 1: a small reply is stored as bytes. Beyond STREAMED_ABOVE bytes, entries are only referenced (``Selection``) and
sliced out of their nodes while the reply is sent, so a reply costs a few bytes per entry, regardless of their size.
Rule 2: if the elements are not sent, the owner must call close().
"""

from __future__ import annotations

from collections.abc import Iterator

from commands.context import Chunks, nothing
from commands.streams.replies import STREAMED_ABOVE
from storage.streams.selection import Selection
from storage.streams.snapshot import Snapshot
from storage.streams.stream import Stream


class Elements:
    """Entries in the T form, with ``null`` for an entry that no longer exists. Subclasses have other forms."""

    __slots__ = ("_picks", "_wires", "count", "null", "size")

    def __init__(self, null: bytes) -> None:
        self.null = null
        self.count = 0
        self.size = 0  # size of the stored elements
        self._wires: list[bytes | None] = []  # the stored elements, which come first
        self._picks: Selection | None = None  # the elements that are only referenced

    @property
    def picked(self) -> bool:
        """Whether some elements are only referenced, so that encoded() can't be used."""
        return self._picks is not None

    def add(self, stream: Stream, id: int) -> bool:  # noqa: A002
        """Add the living entry with this ID. Returns False if there is none."""
        picks = self._picks
        if picks is None:
            wire = stream.find(id)
            if wire is None:
                return False
            size = self.size + len(wire)
            if size <= STREAMED_ABOVE:
                self._wires.append(wire)
                self.size = size
                self.count += 1
                return True
            picks = self._picks = Selection()
        place = stream.locate(id)
        if place is None:
            return False
        stream.pick(place, picks)
        self.count += 1
        return True

    def add_gone(self) -> None:
        """Add an element for an entry that no longer exists."""
        if self._picks is None:
            self._wires.append(None)
        else:
            self._picks.add_missing()
        self.count += 1

    def add_range(self, stream: Stream, lo: int, hi: int) -> None:
        """Add the living entries with ordinals [lo, hi)."""
        if self._picks is None and self.size + stream.wire_size(lo, hi) <= STREAMED_ABOVE:
            for wire in stream.each(lo, hi):
                self._wires.append(wire)
                self.size += len(wire)
                self.count += 1
            return
        for entry_id in stream.ids(lo, hi):
            self.add(stream, entry_id)

    # -- the reply: the elements in order, once --------------------------------------------------------------
    def encoded(self) -> bytes:
        """Return all elements, none of which may be only referenced."""
        return self._encoded(self._wires)

    def pieces(self) -> Iterator[bytes]:
        """Yield all elements in pieces."""
        try:
            if self._wires:
                yield self._encoded(self._wires)
            if self._picks is not None:
                self._picks.waits = True
                for wires in self._picks.entries():
                    yield self._encoded(wires)
        finally:
            self.close()

    def _encoded(self, wires: list[bytes | None]) -> bytes:
        """Return the next elements as they are in the reply."""
        null = self.null
        return b"".join([null if wire is None else wire for wire in wires])

    def held(self) -> int:
        """Return the approximate memory in bytes, without the nodes that are shared with streams."""
        return self.size + 8 * len(self._wires) + (0 if self._picks is None else self._picks.memory_bytes())

    def pinned(self) -> int:
        """Return the size of retained data; see Selection.pinned()."""
        return 0 if self._picks is None else self._picks.pinned()

    def close(self) -> None:
        """Release the elements, which are not, or no longer, sent. Idempotent."""
        if self._picks is not None:
            self._picks.close()


def elements_reply(head: bytes, elements: Elements, tail: bytes) -> bytes | Chunks:
    """Return the elements between ``head`` and ``tail``; streamed if they are long."""
    if not elements.picked:
        whole = b"".join((head, elements.encoded(), tail))
        return whole if len(whole) <= STREAMED_ABOVE else Chunks(iter((whole,)), nothing, len(whole))
    pieces = _between(head, elements, tail)
    return Chunks(pieces, elements.close, elements.held() + len(head) + len(tail), elements.pinned)


def _between(head: bytes, elements: Elements, tail: bytes) -> Iterator[bytes]:
    pieces = elements.pieces()
    first = next(pieces, b"")  # if an entry is damaged, the reply can still be an error
    yield head
    yield first
    yield from pieces
    yield tail


def followed(head: bytes, elements: Elements, snapshot: Snapshot | None) -> Chunks:
    """Return ``head``, the elements, and then the entries in ``snapshot``; streamed."""
    held = len(head) + elements.held()
    if snapshot is None:
        return Chunks(_between(head, elements, b""), elements.close, held, elements.pinned)
    both = _Both(elements, snapshot)
    return Chunks(both.pieces(head), both.close, held + snapshot.memory_bytes, both.pinned)


class _Both:
    __slots__ = ("_elements", "_snapshot")

    def __init__(self, elements: Elements, snapshot: Snapshot) -> None:
        self._elements = elements
        self._snapshot = snapshot

    def pieces(self, head: bytes) -> Iterator[bytes]:
        self._snapshot.waits = True
        try:
            yield from _between(head, self._elements, b"")
            yield from self._snapshot.forward()
        finally:
            self.close()

    def pinned(self) -> int:
        return self._elements.pinned() + self._snapshot.pinned()

    def close(self) -> None:
        self._elements.close()
        self._snapshot.close()
