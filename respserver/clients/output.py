"""The replies to one client that are not written to its socket yet. Some are streamed: produced chunk by chunk while
they are sent.
"""

from __future__ import annotations

from collections import deque

from commands.context import Chunks


class ReplyOutput:
    """Replies, in order; ``streaming`` is the streamed reply that was begun."""

    __slots__ = (
        "begun", "bytes", "free", "items", "marks", "progress", "pushes", "soft_since", "streaming", "streams",
        "withheld",
    )  # fmt: skip

    def __init__(self) -> None:
        self.items: list[bytes | Chunks] = []
        self.bytes = 0  # size of the replies in ``items`` that are not streamed
        self.streams = 0  # number of streamed replies in ``items``, plus the one in ``streaming``
        self.streaming: Chunks | None = None
        self.begun = False  # a chunk of ``streaming`` has been sent
        self.progress = 0  # ms (monotonic) when a streamed reply began, or the socket last accepted more
        # messages that follow the reply of the current command; None: send them immediately
        self.pushes: list[bytes] | None = None
        self.soft_since = 0  # ms (monotonic) when the soft output limit was first exceeded; 0: not exceeded
        # With ``replica-acks``, ``items`` consists of ``free`` replies that may be sent, ``withheld`` ones, and those
        # of the current tick.
        self.free = 0
        self.withheld = 0
        # the withheld replies, by tick: log offset that they wait for, number of replies
        self.marks: deque[tuple[int, int]] | None = None

    def add(self, data: bytes | Chunks) -> None:
        self.items.append(data)
        if isinstance(data, bytes):
            self.bytes += len(data)
        else:
            self.streams += 1

    def take(self) -> bytes:
        """Remove all replies and return them joined. None of them may be streamed."""
        items = self.items
        data = items[0] if len(items) == 1 else b"".join(items)  # type: ignore[arg-type]
        items.clear()
        self.bytes = 0
        return data  # type: ignore[return-value]

    def withhold(self, offset: int) -> bool:
        """Let the replies of the current tick wait for log offset ``offset``. Returns whether there are any."""
        count = len(self.items) - self.free - self.withheld
        if count <= 0:
            return False
        if self.marks is None:
            self.marks = deque()
        self.marks.append((offset, count))
        self.withheld += count
        return True

    def confirm(self, offset: int) -> None:
        """Allow to send the replies that wait for log offset ``offset`` or an earlier one."""
        marks = self.marks
        while marks and marks[0][0] <= offset:
            count = marks.popleft()[1]
            self.withheld -= count
            self.free += count

    def take_free(self) -> bytes:
        """Remove the replies that may be sent, and return them joined. None of them may be streamed."""
        data = b"".join(self.items[: self.free])  # type: ignore[arg-type]
        del self.items[: self.free]
        self.free = 0
        self.bytes -= len(data)
        return data

    def next_free_piece(self, mono: int) -> bytes | None:
        """Do the same as next_piece(), but only with replies that may be sent."""
        if self.streaming is None:
            if not self.free:
                return None
            self.free -= 1
        return self.next_piece(mono)

    def withheld_bytes(self) -> int:
        """Return the size of the withheld replies; -1 if there are none. A streamed reply counts as 0."""
        if not self.marks:
            return -1
        items = self.items[self.free : self.free + self.withheld]
        return sum([len(item) for item in items if isinstance(item, bytes)])

    def next_piece(self, mono: int) -> bytes | None:
        """Remove the first reply, or a chunk of a streamed one, and return it; None if nothing is left.

        Returns no bytes at the begin and the end of a streamed reply. Raises the exceptions of a streamed reply.
        """
        if self.streaming is not None:
            piece = next(self.streaming.pieces, None)
            if piece is None:
                self.end_stream()
                return b""
            self.begun = True
            return piece
        if not self.items:
            return None
        item = self.items.pop(0)
        if isinstance(item, Chunks):
            self.streaming = item
            self.begun = False
            self.progress = mono
            return b""
        self.bytes -= len(item)
        return item

    def end_stream(self) -> None:
        if self.streaming is not None:
            self.streaming.close()
            self.streaming = None
            self.streams -= 1

    def drop(self) -> None:
        self.end_stream()
        for item in self.items:
            if isinstance(item, Chunks):
                item.close()
        self.items.clear()
        self.bytes = self.streams = self.free = self.withheld = 0
        self.marks = None

    def streamed_bytes(self) -> int:
        """Return the memory size of streamed replies that are not complete, without the bytes in the transport."""
        if not self.streams:
            return 0
        size = 0 if self.streaming is None else self.streaming.memory_bytes()
        for item in self.items:
            if isinstance(item, Chunks):
                size += item.memory_bytes()
        return size
