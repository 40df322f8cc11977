"""XREAD with a large MAXSIZE: the sizes of the entries are read in slices (``commands.streams.measured``).

A key is read when the read reaches it, without entries that were appended since the start of the command. The memory is
therefore that of one key and of the reply, not that of all keys.
"""

from __future__ import annotations

from commands.context import Chunks, Context
from commands.redis_streams.limits import ENTRY_MORE, ReplyLimits
from commands.redis_streams.replies import KeyPart, keys_reply
from commands.streams import measured
from commands.streams.measured import MeasuredRange
from resp import reply as encode


def is_long(parts: list[KeyPart], maxsize: int) -> bool:
    """Return whether the sizes of the entries are read in slices."""
    if maxsize <= measured.MEASURED_AT_ONCE:
        return False
    size = 0
    for part in parts:
        if part.lo < part.hi:
            size += part.stream.wire_size(part.lo, part.hi)
    return size > measured.MEASURED_AT_ONCE


class SizedRead:
    """A call of XREAD whose reply has these keys, as far as its limits allow."""

    __slots__ = ("_at", "_keys", "_limits", "_range", "_reply")

    def __init__(self, parts: list[KeyPart], limits: ReplyLimits) -> None:
        """``parts``: the keys, with all entries that COUNT allows."""
        self._keys = parts
        self._limits = limits
        self._at = 0  # index of the current key
        self._range: MeasuredRange | None = None  # the entries of the current key; None: not begun
        self._reply: list[KeyPart] = []

    def close(self) -> None:
        """Release everything: there will be no reply."""
        for part in self._reply:
            part.close()
        if self._range is not None:
            self._range.close()

    def step(self, ctx: Context) -> bytes | Chunks | None:
        """Read the next sizes. Returns the reply if it is complete, null if no key has entries any more."""
        limits = self._limits
        before = limits.size
        while self._at < len(self._keys) and (self._range is not None or not limits.reached()):
            if self._range is None:
                self._begin(ctx)
            else:
                self._measure(self._range)
            if limits.size - before >= measured.MEASURED_AT_ONCE:
                return None
        proto = ctx.session.proto
        return keys_reply(proto, self._reply) if self._reply else encode.null_array(proto)

    def _begin(self, ctx: Context) -> None:
        """Begin the current key, or skip it if its entries no longer exist."""
        key = self._keys[self._at]
        stream = key.stream
        lo = max(key.lo, stream.first_ord)
        if ctx.ks.live(key.key, ctx.now) is not stream or lo >= key.hi or not stream.count(lo, key.hi):
            self._at += 1
            return
        self._limits.start(key.key)
        self._limits.begin()
        self._range = MeasuredRange(stream, lo, key.hi)

    def _measure(self, entries: MeasuredRange) -> None:
        """Add the entries of the next node of the current key, or finish the key."""
        limits, key = self._limits, self._keys[self._at]
        if not limits.reached():
            count = entries.count
            size = entries.measure(limits.room(), ENTRY_MORE, limits.most(0))
            limits.add(entries.count - count, size)
            if size:
                return
        part = KeyPart(key.key, key.stream, 0, 0)
        part.set_snapshot(entries.count, entries.take())
        limits.end(part.count)
        self._reply.append(part)
        self._range = None
        self._at += 1
