"""XREAD with a large MAXSIZE: the sizes of the entries are read in slices, node by node.

Decision: the reply must state the number of entries before the first one, and only the nodes have their sizes. A node
of 50 KiB takes about 0.15 ms to open, so a reply of 1 GiB would otherwise stop the server for seconds. The keys are
read as of the start of the call. Nodes are opened twice, for their sizes and for the reply, so memory is bounded by one
node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from commands.context import Chunks, Context
from commands.redis_streams.limits import ENTRY_MORE, ReplyLimits
from commands.redis_streams.replies import KeyPart, keys_reply
from storage.streams.reads import begin_within
from storage.streams.snapshot import Snapshot

MEASURED_AT_ONCE: Final = 1 << 20  # bytes of entries whose sizes one slice reads, in some milliseconds


def is_long(parts: list[KeyPart], maxsize: int) -> bool:
    """Return whether the sizes of the entries are read in slices."""
    if maxsize <= MEASURED_AT_ONCE:
        return False
    size = 0
    for part in parts:
        if part.lo < part.hi:
            size += part.stream.wire_size(part.lo, part.hi)
    return size > MEASURED_AT_ONCE


class SizedRead:
    """A call of XREAD whose reply has these keys, as far as its limits allow."""

    __slots__ = ("_at", "_count", "_limits", "_parts", "_ranges", "_reply", "_sizes")

    def __init__(self, parts: list[KeyPart], limits: ReplyLimits) -> None:
        """``parts``: the keys, with all entries that COUNT allows."""
        self._parts = parts
        self._ranges: list[tuple[Snapshot, Snapshot]] = []  # of each key: for the sizes, and for the reply
        for part in parts:
            stream, lo, hi = part.stream, part.lo, part.hi
            self._ranges.append((stream.snapshot(lo, hi), stream.snapshot(lo, hi)))
        self._limits = limits
        self._at = 0  # index of the current key
        self._count = -1  # number of its entries so far; -1: not begun
        self._sizes: Iterator[list[int]] | None = None
        self._reply: list[KeyPart] = []

    def close(self) -> None:
        """Release everything: there will be no reply."""
        for part in self._reply:
            part.close()
        for measured, sent in self._ranges[len(self._reply) :]:
            measured.close()
            sent.close()

    def step(self, ctx: Context) -> bytes | Chunks | None:
        """Read the next sizes. Returns the reply if it is complete."""
        limits = self._limits
        before = limits.size
        while self._at < len(self._parts):
            if self._count < 0 and limits.reached():
                break
            if self._measure():
                self._finish_key()
            if limits.size - before >= MEASURED_AT_ONCE:
                return None
        for measured, sent in self._ranges[len(self._reply) :]:
            measured.close()
            sent.close()
        self._ranges = self._ranges[: len(self._reply)]
        return keys_reply(ctx.session.proto, self._reply)

    def _measure(self) -> bool:
        """Add the entries of the next node. Returns whether the current key is finished."""
        limits = self._limits
        if self._count < 0:
            limits.start(self._parts[self._at].key)
            limits.begin()
            self._count = 0
            self._sizes = self._ranges[self._at][0].cuts()
        sizes = self._sizes
        cuts = None if sizes is None or limits.reached() else next(sizes, None)
        if cuts is None:
            return True
        most = limits.most(0)
        if most:
            cuts = cuts[:most]
        number = begin_within(cuts, limits.room(), ENTRY_MORE)
        limits.add(number, cuts[number - 1] + ENTRY_MORE * number)
        self._count += number
        return False

    def _finish_key(self) -> None:
        measured, sent = self._ranges[self._at]
        measured.close()
        old, count = self._parts[self._at], self._count
        part = KeyPart(old.key, old.stream, 0, 0)
        if count:
            sent.end_at(sent.after(count))
            part.set_snapshot(count, sent)
        else:
            sent.close()
        self._limits.end(count)
        self._reply.append(part)
        self._at += 1
        self._count = -1
