"""Ranges of entries whose sizes are read in slices, for replies with a large limit of bytes.

Decision: a reply states the number of its entries before the first one, and only the nodes have their sizes. A node of
50 KiB takes about 0.15 ms to open, so a reply of 1 GiB would otherwise stop the server for seconds. Ranges are those at
the start of the command. Nodes are opened twice, for the sizes and for the reply, so memory is bounded by one node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from commands.context import Chunks, Context
from commands.streams.replies import after
from resp.reply import array_header
from storage.streams.reads import begin_within
from storage.streams.snapshot import Snapshot
from storage.streams.stream import Stream

MEASURED_AT_ONCE: Final = 1 << 20  # bytes of entries whose sizes one slice reads, in some milliseconds


class MeasuredRange:
    """The entries of a stream with ordinals [lo, hi), at least one, as far as a limit of bytes allows."""

    __slots__ = ("_measured", "_sent", "_sizes", "count")

    def __init__(self, stream: Stream, lo: int, hi: int) -> None:
        self._measured = stream.snapshot(lo, hi)
        self._measured.waits = True
        self._sent: Snapshot | None = stream.snapshot(lo, hi)
        self._sizes: Iterator[list[int]] | None = None  # None: not begun
        self.count = 0  # number of entries within the limit so far

    def measure(self, room: int, more: int, most: int = 0) -> int:
        """Add entries of the next node: those that begin within ``room`` bytes, at most ``most`` (0: all). Each is
        ``more`` bytes longer in the reply than its wire form. Returns their size; 0 if there are no more. Raises
        AbsentNodeError; the next call then continues."""
        if self._sizes is None:
            self._sizes = self._measured.cuts()
        cuts = next(self._sizes, None)
        if cuts is None:
            return 0
        if not cuts:
            absent = self._measured.take_absent()
            if absent is not None:
                raise absent
        if most:
            cuts = cuts[:most]
        number = begin_within(cuts, room, more)
        self.count += number
        return cuts[number - 1] + more * number

    def take(self) -> Snapshot | None:
        """Return the entries, None if there are none. The caller closes them."""
        sent, self._sent = self._sent, None
        if sent is not None and self.count:
            sent.end_at(sent.after(self.count))
        elif sent is not None:
            sent.close()
            sent = None
        self._measured.close()
        return sent

    def close(self) -> None:
        """Release the snapshots: nothing will be sent."""
        self._measured.close()
        if self._sent is not None:
            self._sent.close()
            self._sent = None


class MeasuredRead:
    """A plain TREAD with a large MAXBYTES."""

    __slots__ = ("_extra", "_head", "_left", "_range")

    def __init__(self, entries: MeasuredRange, head: bytes, extra: int, limit: int) -> None:
        """``head``: ``extra`` elements before the entries. ``limit``: bytes."""
        self._range = entries
        self._head = head
        self._extra = extra
        self._left = limit

    def close(self) -> None:
        self._range.close()

    def step(self, _ctx: Context) -> Chunks | None:
        """Read the next sizes. Returns the reply if it is complete."""
        done = 0
        while self._left > 0 and done < MEASURED_AT_ONCE:
            size = self._range.measure(self._left, 0)
            if not size:
                self._left = 0
            self._left -= size
            done += size
        if self._left > 0:
            return None
        snapshot = self._range.take()
        head = array_header(self._range.count + self._extra) + self._head
        if snapshot is None:  # never: the range has an entry
            return Chunks(iter((head,)), self.close, len(head))
        snapshot.waits = True
        pieces = after([head], snapshot.forward())
        return Chunks(pieces, snapshot.close, snapshot.memory_bytes + len(head), snapshot.pinned)
