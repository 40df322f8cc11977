"""TRANGE, TREVRANGE, TLEN, TCOUNT, TSEEK, TINFO: non-blocking reads without groups. Semantics [25] to [27]."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from commands.context import Context, Reply
from commands.declare import arg, command, key, opt
from commands.parse import integer
from commands.slicing import in_parts
from commands.streams.replies import entries_reply, reversed_reply
from resp import errors
from resp import reply as encode
from resp.errors import CommandError
from storage.groups.group import Group
from storage.model.ids import MAX_ID, format_id, parse_id, parse_range_end, parse_range_start
from storage.streams.delayed import DelayedEntries
from storage.streams.stream import Stream

_reads = partial(command, flags="readonly", complexity="O(log N + M): N macro nodes, M entries returned.")


@_reads("TRANGE", key("RO ACCESS"), arg("start-id"), arg("end-id"), opt(arg("count", "integer", token="COUNT")))
def trange(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the entries between two IDs, both included, oldest first."""
    found = _find(ctx, argv, 2, 3)
    if found is None:
        return encode.EMPTY_ARRAY
    stream, start, hi, count = found
    position = stream.seek(start)
    lo = position.ordinal
    if lo >= hi:
        return encode.EMPTY_ARRAY
    hi = min(hi, stream.after(lo, count))
    return entries_reply(stream.count(lo, hi), b"", stream, position, hi)


@_reads("TREVRANGE", key("RO ACCESS"), arg("end-id"), arg("start-id"), opt(arg("count", "integer", token="COUNT")))
def trevrange(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the entries between two IDs, both included, newest first."""
    found = _find(ctx, argv, 3, 2)
    if found is None:
        return encode.EMPTY_ARRAY
    stream, start, hi, count = found
    lo = stream.ord_from(start)
    if lo >= hi:
        return encode.EMPTY_ARRAY
    return reversed_reply(stream, max(lo, stream.ahead(hi, count)), hi)


def _find(ctx: Context, argv: list[bytes], start_at: int, end_at: int) -> tuple[Stream, int, int, int] | None:
    """Return the stream, start (an ID), end (the ordinal after the last entry) and count; None if the reply is empty.
    ``start_at`` and ``end_at`` are the indexes of the arguments."""
    start, end = parse_range_start(argv[start_at]), parse_range_end(argv[end_at])
    count = 1 << 62
    if len(argv) > 4:
        if len(argv) != 6 or (argv[4] != b"COUNT" and argv[4].upper() != b"COUNT"):
            raise errors.syntax()
        count = integer(argv[5])
    stream = ctx.ks.read_stream(argv[1], ctx.now)
    if stream is None or count <= 0 or start > end:
        return None
    hi = stream.next_ord if end == MAX_ID or end >= stream.last_id else stream.ord_from(end + 1)
    return stream, start, hi, count


@command("TLEN", key("RO"), flags="readonly fast")
def tlen(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of entries in a stream, 0 if the key doesn't exist."""
    stream = ctx.ks.read_stream(argv[1], ctx.now)
    return encode.integer(stream.length if stream is not None else 0)


@command(
    "TCOUNT", key("RO ACCESS"), arg("start-id"), arg("end-id"), flags="readonly fast",
    complexity="O(log N): N macro nodes.",
)  # fmt: skip
def tcount(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of entries between two IDs, both included, without reading them."""
    found = _find(ctx, argv, 2, 3)
    if found is None:
        return encode.integer(0)
    stream, start, hi, _ = found
    return encode.integer(max(0, stream.count(stream.ord_from(start), hi)))


@command(
    "TSEEK", key("RO ACCESS"), arg("last-id"), arg("n", "integer"), flags="readonly fast",
    complexity="O(log N): N macro nodes.",
)  # fmt: skip
def tseek(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the ID of the n-th entry after last-id, or of the last entry if there are fewer."""
    last_id, n = parse_id(argv[2]), integer(argv[3])
    if n < 1:
        raise CommandError(errors.NOT_POSITIVE)
    stream = ctx.ks.read_stream(argv[1], ctx.now)
    if stream is None:
        return encode.null(ctx.session.proto)
    lo = stream.ord_from(last_id + 1)
    if lo >= stream.next_ord:
        return encode.null(ctx.session.proto)
    return encode.bulk(format_id(stream.id_before(stream.after(lo, n))))


@command("TINFO", key("RO ACCESS"), flags="readonly", complexity="O(log N): N macro nodes.")
def tinfo(ctx: Context, argv: list[bytes]) -> Reply:
    """Return properties of a stream: its length, IDs, counters, and the space that it takes."""
    stream = ctx.ks.read_stream(argv[1], ctx.now)
    if stream is None:
        raise CommandError(errors.NO_SUCH_KEY)
    totals, delayed = _GroupTotals(), ctx.ks.delayed.get(argv[1])

    def finish(ctx: Context) -> bytes:
        return encode.encode(ctx.session.proto, _info(stream, totals, delayed))

    return in_parts(list(stream.groups.values()), totals.add, finish, ctx)


class _GroupTotals:
    """Totals over the groups of a stream."""

    __slots__ = ("bytes", "deadlettered", "expired", "pending", "redelivered")

    def __init__(self) -> None:
        self.bytes = self.pending = self.redelivered = self.expired = self.deadlettered = 0

    def add(self, groups: Sequence[Group]) -> None:
        for group in groups:
            self.bytes += group.pending.memory_bytes()
            self.pending += len(group.pending)
            self.redelivered += group.redelivered
            self.expired += group.expired
            self.deadlettered += group.deadlettered


def _info(stream: Stream, groups: _GroupTotals, delayed: DelayedEntries | None) -> dict[str, int | bytes | None]:
    """Return TINFO's map."""
    found: dict[str, int | bytes | None] = {
        "length": stream.length,
        "first": format_id(stream.first_id()) if stream.length else None,
        "last": format_id(stream.last_id),
        "entries-added": stream.entries_added,
        "evicted": stream.next_ord - stream.length - stream.deleted,
        "deleted": stream.deleted,
        "deleted-to": format_id(stream.max_deleted),
        "evicted-to": format_id(stream.evicted_to),
        "nodes": stream.node_count,
        "memory-bytes": stream.memory_bytes() + groups.bytes + (0 if delayed is None else delayed.memory_bytes()),
        "disk-bytes": stream.disk_bytes(),
        "groups": len(stream.groups),
        "pending": groups.pending,
        "redelivered": groups.redelivered,
        "expired": groups.expired,
        "dead-lettered": groups.deadlettered,
    }
    if stream.retention is not None:
        found["retain"] = stream.retention.words()
    if stream.tier_after is not None:
        found["tier"] = stream.tier_after.words()
    if delayed is not None:
        found["delayed"] = len(delayed)
    return found
