"""TREAD, and reading without a group. Semantics [8] to [13], [17]; ``groupread`` implements reading with a group."""

from __future__ import annotations

from typing import Final

from commands.context import Block, Chunks, Context, Reply, Slices
from commands.declare import arg, batch, block, command, key, opt
from commands.streams import measured
from commands.streams.groupread import read_group
from commands.streams.measured import MeasuredRange, MeasuredRead
from commands.streams.readargs import ReadPosition, TreadOptions, deadletter_at, read_options
from commands.streams.replies import entries_reply, info_element
from resp import reply as encode
from resp.errors import CommandError
from storage.streams.position import StreamPosition
from storage.streams.stream import Stream

BATCH_BYTES: Final = 64 * 1024  # size of the replies to a pipeline group; later calls are left for the next group


def _has_group(argv: list[bytes]) -> bool:
    """Return whether a read changes data: only for a group [13]."""
    return any(word.upper() == b"GROUP" for word in argv[4:])


@command(
    "TREAD", key("RW ACCESS UPDATE"), arg("last-id"), arg("count", "integer"),
    opt(arg("bytes", "integer", token="MAXBYTES")),
    opt(arg("milliseconds", "integer", token="BLOCK")),
    opt(block("group", arg("name", token="GROUP"), arg("ttl-ms", "integer"))),
    opt(block(
        "retry", arg("retry-ms", "integer", token="RETRY"), arg("expire-ms", "integer"),
        opt(arg("n", "integer", token="MAXDELIVERIES")), opt(key("RW INSERT", "deadletter-key", token="DEADLETTER")),
    )),
    opt(arg("withinfo", "pure-token", token="WITHINFO")), flags="write blocking", traits="sign_of_life",
    complexity="O(log N + M): N macro nodes, M entries returned.", writes=_has_group, key_after_token=deadletter_at,
)  # fmt: skip
def tread(ctx: Context, argv: list[bytes]) -> Reply:
    """Return entries after an ID; can wait for them, share them in a group, and redeliver them until acknowledged."""
    position = ReadPosition(argv[2])
    options = read_options(argv[1], argv[3:])
    if options.group:
        return read_group(ctx, argv[1], position, options)
    stream = ctx.ks.read_stream(argv[1], ctx.now)
    if position.from_now and stream is not None:
        position.ms, position.seq = stream.last_ms, stream.last_seq
    if options.max_bytes > measured.MEASURED_AT_ONCE and stream is not None:
        long = _measured(ctx, position, options, stream)
        if long is not None:
            return Slices(long.step, False, long.close, resumes=True)
    reply = _serve_plain(ctx, position, options, stream, options.block < 0)
    if reply is not None:
        return reply
    null = encode.null_array(ctx.session.proto)
    return null if ctx.in_exec else PlainRead(argv[1], options.deadline(ctx.now), null, position, options)


@batch("TREAD")
def tread_batch(ctx: Context, calls: list[list[bytes]]) -> list[bytes] | None:
    """Execute a pipeline group of plain TREADs of one key; only its first calls if all replies together would be large.
    Returns None if the first call isn't plain or must be refused."""
    first = calls[0]
    if len(first) != 4:
        return None
    stream = ctx.ks.read_stream(first[1], ctx.now)
    replies: list[bytes] = []
    size = 0
    for argv in calls:
        try:
            position, options = ReadPosition(argv[2]), read_options(argv[1], argv[3:])
        except CommandError:  # raised again when this call runs alone
            break
        reply = _serve_plain(ctx, position, options, stream, True) if not position.from_now else encode.EMPTY_ARRAY
        if not isinstance(reply, bytes):
            if isinstance(reply, Chunks):
                reply.close()
            break
        replies.append(reply)
        size += len(reply)
        if size > BATCH_BYTES:
            break
    if replies:
        if stream is not None:
            ctx.ks.hits += len(replies) - 1  # count each call separately
        else:
            ctx.ks.misses += len(replies) - 1
    return replies or None


class PlainRead(Block):
    """A blocked reader without a group."""

    __slots__ = ("options", "position")

    def __init__(self, key: bytes, deadline: int, null: bytes, position: ReadPosition, options: TreadOptions) -> None:
        super().__init__((key,), None, False, deadline, null)
        self.position = position
        self.options = options

    def serve(self, ctx: Context, key: bytes) -> bytes | Chunks | None:
        return _serve_plain(ctx, self.position, self.options, ctx.ks.stream(key, ctx.now), False)

    def same(self, other: Block) -> bool:
        if not isinstance(other, PlainRead):
            return False
        mine, its = self.position, other.position
        return (
            mine.ms == its.ms and mine.seq == its.seq and mine.from_now == its.from_now and mine.zero == its.zero
            and self.options.count == other.options.count and self.options.with_info == other.options.with_info
            and self.options.max_bytes == other.options.max_bytes
        )  # fmt: skip


def _serve_plain(
    ctx: Context, position: ReadPosition, options: TreadOptions, stream: Stream | None, anyway: bool
) -> bytes | Chunks | None:  # fmt: skip
    """Return the reply, or None if there are no entries and the reader may wait (``anyway``: it may not)."""
    place: StreamPosition | None = None
    lo = hi = 0
    if stream is not None and position.before(stream):
        place = stream.seek(position.id + 1)
        lo = place.ordinal
        hi = stream.after(lo, options.count)
        if options.max_bytes and lo < hi:
            hi = stream.after(lo, stream.fitting(lo, hi, options.max_bytes, 0)[0])
    elif not options.with_info:  # the usual reply to a reader that polls
        return None if options.count and not anyway else encode.EMPTY_ARRAY
    if lo >= hi and options.count and not anyway:
        return None
    head, extra = _head(ctx, position, options, stream)
    new = hi - lo if stream is None else stream.count(lo, hi)
    return entries_reply(new + extra, head, stream, place, hi)


def _measured(ctx: Context, position: ReadPosition, options: TreadOptions, stream: Stream) -> MeasuredRead | None:
    """Return a read whose entries are measured in slices, None if it is not long."""
    if not position.before(stream):
        return None
    lo = stream.seek(position.id + 1).ordinal
    hi = stream.after(lo, options.count)
    if lo >= hi or stream.wire_size(lo, hi) <= measured.MEASURED_AT_ONCE:
        return None
    head, extra = _head(ctx, position, options, stream)
    return MeasuredRead(MeasuredRange(stream, lo, hi), head, extra, options.max_bytes)


def _head(ctx: Context, position: ReadPosition, options: TreadOptions, stream: Stream | None) -> tuple[bytes, int]:
    """Return the elements before the entries, and their number."""
    head, extra = b"", 0
    if options.with_info:
        head, extra = info_element(stream, ctx.session.proto), 1
    if (
        stream is not None
        and options.count
        and stream.evicted_to
        and not (position.zero or position.from_now)
        and (position.id < stream.evicted_to)
    ):
        head += encode.null_array(ctx.session.proto)  # [17] (a): entries in between no longer exist
        extra += 1
    return head, extra
