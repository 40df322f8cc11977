"""XRANGE, XREVRANGE, XLEN."""

from __future__ import annotations

from functools import partial

from commands.context import Context, Reply
from commands.declare import arg, command, key, opt
from commands.parse import integer
from commands.redis_streams.ids import range_end, range_start
from commands.redis_streams.replies import range_reply, reversed_reply
from resp import errors
from resp import reply as encode
from storage.model.ids import MAX_ID

_reads = partial(command, flags="readonly", complexity="O(log N + M): N macro nodes, M entries returned.")


@_reads("XRANGE", key("RO ACCESS"), arg("start"), arg("end"), opt(arg("count", "integer", token="COUNT")))
def xrange(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the entries between two IDs, oldest first."""
    return _range(ctx, argv, 2, 3)


@_reads("XREVRANGE", key("RO ACCESS"), arg("end"), arg("start"), opt(arg("count", "integer", token="COUNT")))
def xrevrange(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the entries between two IDs, newest first."""
    return _range(ctx, argv, 3, 2)


def _range(ctx: Context, argv: list[bytes], start_at: int, end_at: int) -> Reply:
    """Execute the command. ``start_at`` and ``end_at`` are the indexes of the arguments."""
    start, end = range_start(argv[start_at]), range_end(argv[end_at])
    count = _count(argv) if len(argv) > 4 else -1
    stream = ctx.ks.read_stream(argv[1], ctx.now)
    if stream is None:
        return encode.EMPTY_ARRAY
    if not count:
        return encode.null_array(ctx.session.proto)
    if start > end:
        return encode.EMPTY_ARRAY
    position = stream.seek(start)
    lo = position.ordinal
    hi = stream.next_ord if end == MAX_ID or end >= stream.last_id else stream.ord_from(end + 1)
    if lo >= hi:
        return encode.EMPTY_ARRAY
    found = stream.count(lo, hi)
    if 0 < count < found:
        found = count
        if start_at > end_at:
            lo = stream.ahead(hi, count)
        else:
            hi = stream.after(lo, count)
    if start_at > end_at:
        return reversed_reply(stream, lo, hi, found)
    return range_reply(stream, position, hi, found)


def _count(argv: list[bytes]) -> int:
    """Return COUNT, 0 if it is negative. If it is repeated, the last one counts. Raises CommandError."""
    count = -1
    for at in range(4, len(argv), 2):
        if at + 1 == len(argv) or (argv[at] != b"COUNT" and argv[at].upper() != b"COUNT"):
            raise errors.syntax()
        count = max(0, integer(argv[at + 1]))
    return count


@command("XLEN", key("RO"), flags="readonly fast")
def xlen(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of entries in a stream, 0 if the key doesn't exist."""
    stream = ctx.ks.read_stream(argv[1], ctx.now)
    return encode.integer(stream.length if stream is not None else 0)
