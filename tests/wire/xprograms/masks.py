"""What two servers may answer differently to the same program, made alike: the clock's, and a newer Redis's fields."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from tests.wire.xprograms.generate import HOUR
from tests.wire.xprograms.typed import Reply, Words

CLOCK = re.compile(rb"1[6-9]\d{11}-\d+")  # an ID of the wall clock
OWN = (b"radix-tree-keys", b"radix-tree-nodes", b"seen-time", b"idle")  # values that differ by nature
# What makes versions before this one count otherwise what a group has read and has to read.
COUNTS = (8, 2)
UNCOUNTED = {b"XDEL", b"XTRIM", b"XSETID", b"MAXLEN", b"MINID", b"ENTRIESREAD"}
# Errors of today, and what 7.0 said: what may stand there, what blocks no more, what has no higher number.
REWORDED = (
    (b"ERR Unbalanced ", b"ERR Unbalanced "),
    (b"NOGROUP No such key", b"UNBLOCKED the stream key no longer exists"),
    (b"NOGROUP No such key", b"NOGROUP the consumer group this client was blocked on no longer exists"),
    (b"ERR The ID specified in XADD is equal or smaller", b"ERR Elements are too large to be stored"),
)
BELOW_DELETED = b"ERR The ID specified in XSETID is smaller than current max_deleted_entry_id"
NEWER = (b"inactive", b"active-time")  # what 7.0 has not
# What the other has not.
PRODUCERS = (
    b"idmp-duration", b"idmp-maxsize", b"pids-tracked", b"iids-tracked", b"iids-added", b"iids-duplicates",
    b"nacked-count",
)  # fmt: skip


def masked(program: list[Words], found: list[Reply], version: tuple[int, int] = COUNTS) -> list[Reply]:
    """The replies, made comparable with those of a Redis of that version."""
    made: list[Reply] = []
    hidden: tuple[bytes, ...] = NEWER if version < (7, 2) else ()
    if version < COUNTS and any(word.upper() in UNCOUNTED for words in program for word in words):
        hidden = (*hidden, b"lag", b"entries-read")
    queued: list[Words] = []
    for words, reply in zip(program, found, strict=True):
        name = words[0].upper()
        if reply == Reply("+", b"QUEUED"):
            queued.append(words)
            made.append(reply)
            continue
        if name == b"EXEC" and isinstance(reply.value, list):
            made.append(Reply("*", [mask(*pair, hidden) for pair in zip(queued, reply.value, strict=True)]))
        else:
            made.append(mask(words, reply, hidden))
        if name in (b"EXEC", b"DISCARD"):
            queued = []
    return made


def reworded(ours: Reply, theirs: Reply) -> Reply:
    """Theirs, with the errors that are worded as today's where ours are."""
    if isinstance(ours.value, list) and isinstance(theirs.value, list) and len(ours.value) == len(theirs.value):
        return Reply(theirs.kind, [reworded(*pair) for pair in zip(ours.value, theirs.value, strict=True)])
    if ours.kind == theirs.kind == "-":
        for new, old in REWORDED:
            if ours.value.startswith(new) and theirs.value.startswith(old):
                return ours
    return theirs


def parted(words: Words, ours: Reply, theirs: Reply) -> bool:
    """Whether the two went different ways here since 7.0 lets XSETID go below what was deleted."""
    if words[0].upper() == b"EXEC" and isinstance(ours.value, list) and isinstance(theirs.value, list):
        both = zip(ours.value, reworded(ours, theirs).value, strict=True)
        differing = next((pair for pair in both if pair[0] != pair[1]), None)
        return differing is not None and BELOW_DELETED in (differing[0].value, differing[1].value)
    return words[0].upper() == b"XSETID" and BELOW_DELETED in (ours.value, theirs.value)


def unbounded(ours: Reply, theirs: Reply) -> bool:
    """Whether they differ only where theirs says that a group has read more entries than ours says.

    In Redis 8.2 ENTRIESADDED and ENTRIESREAD can lead to groups that have read more than was added: to a negative lag.
    """
    return ours != theirs and ours == _bounded(ours, theirs)


def counts(program: list[Words]) -> bool:
    """Whether the program says how many entries were added or read."""
    return any(word.upper() in (b"ENTRIESADDED", b"ENTRIESREAD") for words in program for word in words)


def _bounded(ours: Reply, theirs: Reply) -> Reply:
    """Theirs with our ``entries-read`` and ``lag`` of groups of which it says that they have read more."""
    if not isinstance(ours.value, list) or not isinstance(theirs.value, list) or len(ours.value) != len(theirs.value):
        return theirs
    made = [_bounded(*pair) for pair in zip(ours.value, theirs.value, strict=True)]
    for at, name in enumerate(made[:-3]):
        if name == Reply("$", b"entries-read") and made[at + 2] == Reply("$", b"lag"):
            mine, other = ours.value[at + 1].value, made[at + 1].value
            if isinstance(mine, int) and isinstance(other, int) and mine < other:
                made[at + 1], made[at + 3] = ours.value[at + 1], ours.value[at + 3]
    return Reply(theirs.kind, made)


def mask(words: Words, reply: Reply, hidden: tuple[bytes, ...]) -> Reply:
    name = words[0].upper()
    if name == b"XINFO":
        reply = facts(reply, hidden)
    elif name == b"XPENDING" and isinstance(reply.value, list):
        reply = Reply("*", [pending_row(row, 2) for row in reply.value])
    return without_clock(reply)


def without_clock(reply: Reply) -> Reply:
    """IDs that the wall clock made are alike."""
    kind, value = reply
    if isinstance(value, list):
        return Reply(kind, [without_clock(each) for each in value])
    return Reply(kind, CLOCK.sub(b"CLOCK", value)) if isinstance(value, bytes) and b"-" in value else reply


def facts(reply: Reply, hidden: tuple[bytes, ...]) -> Reply:
    """A reply of XINFO: a map, or an array of such; in RESP2 a map is a flat array."""
    kind, value = reply
    if not isinstance(value, list):
        return reply
    if not value or value[0].kind != "$":
        return Reply(kind, [facts(each, hidden) for each in value])
    made: list[Reply] = []
    for name, each in pairs(value):
        if name.value in hidden or name.value in PRODUCERS:
            continue
        if name.value in NEWER:
            each = Reply(each.kind, min(each.value, 0))  # -1: it never had a message
        elif name.value in OWN:
            each = Reply(each.kind, 0)
        elif name.value in (b"groups", b"consumers"):
            each = facts(each, hidden)
        elif name.value in (b"pel", b"pending") and isinstance(each.value, list):
            each = Reply(each.kind, [pending_row(row, len(row.value) - 2, since=True) for row in each.value])
        made += [name, each]
    return Reply(kind, made)


def pairs(value: list[Reply]) -> Iterator[tuple[Reply, Reply]]:
    return zip(value[::2], value[1::2], strict=True)


def pending_row(row: Reply, at: int, since: bool = False) -> Reply:
    """Its time is told in hours only. XPENDING tells how long ago, XINFO since when."""
    if not isinstance(row.value, list) or len(row.value) <= at or row.value[at].kind != ":":
        return row
    waited = row.value[at].value
    if since:
        waited = time.time_ns() // 1_000_000 - waited
    hours = min(waited // HOUR, 1000) if waited >= 0 else -1
    return Reply("*", [*row.value[:at], Reply(":", hours), *row.value[at + 1 :]])
