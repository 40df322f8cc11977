"""XREAD with a large MAXSIZE: the sizes of the entries are read in slices (``commands.streams.measured``)."""

from __future__ import annotations

from commands.context import Chunks, Context
from commands.redis_streams.limits import ENTRY_MORE, ReplyLimits
from commands.redis_streams.replies import KeyPart, keys_reply
from commands.streams import measured
from commands.streams.measured import MeasuredRange


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
    """A call of XREAD whose reply has these keys, as far as its limits allow. The keys are read as of its start."""

    __slots__ = ("_begun", "_keys", "_limits", "_ranges", "_reply")

    def __init__(self, parts: list[KeyPart], limits: ReplyLimits) -> None:
        """``parts``: the keys, with all entries that COUNT allows."""
        self._keys = parts
        self._ranges = [MeasuredRange(part.stream, part.lo, part.hi) for part in parts]
        self._limits = limits
        self._begun = False  # whether the current key, the first one that is not in _reply, was begun
        self._reply: list[KeyPart] = []

    def close(self) -> None:
        """Release everything: there will be no reply."""
        for part in self._reply:
            part.close()
        for entries in self._ranges:
            entries.close()

    def step(self, ctx: Context) -> bytes | Chunks | None:
        """Read the next sizes. Returns the reply if it is complete."""
        limits = self._limits
        before = limits.size
        while len(self._reply) < len(self._keys) and (self._begun or not limits.reached()):
            self._measure()
            if limits.size - before >= measured.MEASURED_AT_ONCE:
                return None
        for entries in self._ranges:
            entries.close()
        return keys_reply(ctx.session.proto, self._reply)

    def _measure(self) -> None:
        """Add the entries of the next node of the current key, or finish the key."""
        limits, at = self._limits, len(self._reply)
        key, entries = self._keys[at], self._ranges[at]
        if not self._begun:
            self._begun = True
            limits.start(key.key)
            limits.begin()
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
        self._begun = False
