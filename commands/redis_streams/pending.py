"""XACK, XPENDING, XNACK: pending messages of consumers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from commands.context import Chunks, Context, Reply, Slices
from commands.declare import arg, block, command, key, oneof, opt, repeat, token
from commands.parse import INT_MAX, integer, raw_ids
from commands.redis_streams.consumers import idle_of, is_idle, owner_of
from commands.redis_streams.ids import range_end, range_start, xid_bulk
from commands.slicing import AT_ONCE, ROW_BYTES, IdParser, by_id, in_parts, in_pieces
from resp import errors
from resp import reply as encode
from resp.errors import CommandError
from storage.groups.group import Consumer, Group
from storage.groups.pending import PendingRow, PendingTable
from storage.keyspace import groupmutators
from storage.keyspace.groupmutators import Messages, Ownership
from storage.streams.stream import Stream

NO_COUNT: Final = -1  # no RETRYCOUNT


def find_group(ctx: Context, argv: list[bytes]) -> tuple[Stream, Group] | None:
    """Return the stream in argv[1] and its group in argv[2], for a change; None if either is missing."""
    stream = ctx.ks.stream(argv[1], ctx.now)
    group = stream.groups.get(argv[2]) if stream is not None else None
    return None if stream is None or group is None else (stream, group)


def need_group(ctx: Context, argv: list[bytes]) -> tuple[Stream, Group]:
    """Return find_group() at the start of a command: counts as a lookup of the key. Raises CommandError for None."""
    stream = ctx.ks.read_stream(argv[1], ctx.now)
    group = stream.groups.get(argv[2]) if stream is not None else None
    if stream is None or group is None:
        raise errors.no_group(argv[1], argv[2])
    return stream, group


@command(
    "XACK", key("RW UPDATE"), arg("group"), repeat(arg("id")), flags="write fast", traits="sign_of_life",
    complexity="O(M log P): M IDs, P pending messages.",
)  # fmt: skip
def xack(ctx: Context, argv: list[bytes]) -> Reply:
    """Acknowledge messages of a group; return how many were pending."""
    stream = ctx.ks.read_stream(argv[1], ctx.now)
    group = None if stream is None else stream.groups.get(argv[2])
    if stream is None or group is None:
        return encode.integer(0)  # without parsing the IDs
    if len(argv) <= AT_ONCE:
        raws = raw_ids(argv, 3)
        ctx.touch(group)
        return encode.integer(groupmutators.ack(ctx.ks, argv[1], stream, group, raws))
    return by_id(argv, 3, partial(_ack, argv[:3]), ctx)


def _ack(argv: list[bytes], ctx: Context, ids: list[bytes]) -> int:
    found = find_group(ctx, argv)
    if found is None:
        return 0
    stream, group = found
    ctx.touch(group)
    return groupmutators.ack(ctx.ks, argv[1], stream, group, ids)


# -- XPENDING ----------------------------------------------------------------------------------------------------------
@command(
    "XPENDING", key("RO ACCESS"), arg("group"),
    opt(block(
        "filters", opt(arg("min-idle-time", "integer", token="IDLE")), arg("start"), arg("end"),
        arg("count", "integer"), opt(arg("consumer")),
    )),
    flags="readonly", complexity="O(log P + M): P pending messages, M returned; with IDLE, M examined.",
)  # fmt: skip
def xpending(ctx: Context, argv: list[bytes]) -> Reply:
    """Return a summary of a group's pending messages, or those in a range of IDs, of one consumer, or idle ones."""
    words = len(argv)
    if words != 3 and not 6 <= words <= 9:
        raise errors.syntax()
    at, idle = 3, 0
    start = end = count = 0
    if words > 3:
        if argv[3].upper() == b"IDLE":
            idle, at = integer(argv[4]), 5
            if words < 8:
                raise errors.syntax()
        count = integer(argv[at + 2])
        start, end = range_start(argv[at]), range_end(argv[at + 1])
    stream = ctx.ks.read_stream(argv[1], ctx.now)
    group = stream.groups.get(argv[2]) if stream is not None else None
    if group is None:
        raise errors.no_group(argv[1], argv[2])
    if words == 3:
        return _summary(ctx, group)
    owner = 0
    if words > at + 3:
        consumer = group.consumers.get(argv[at + 3])
        if consumer is None:
            return encode.EMPTY_ARRAY
        owner = consumer.number
    if count <= 0 or start > end:
        return encode.EMPTY_ARRAY
    if not idle and not owner:
        return _range_reply(group, start, end, count, ctx.now, ctx.ks.away)
    scan = PendingScan(group, owner, start, end, count, idle, ctx.now)
    reply = scan.step(ctx)
    return reply if reply is not None else Slices(scan.step, False)


def _summary(ctx: Context, group: Group) -> Reply:
    pending, proto = group.pending, ctx.session.proto
    low, high = pending.lowest(), pending.highest()
    if low is None or high is None:
        null = encode.null(proto)
        return b"*4\r\n:0\r\n" + null + null + encode.null_array(proto)
    head = b"*4\r\n:%d\r\n%b%b" % (len(pending), xid_bulk(low), xid_bulk(high))
    counts: list[bytes] = []

    def take(names: Sequence[bytes]) -> None:
        for name in names:
            consumer = group.consumers.get(name)
            number = pending.owned(consumer.number) if consumer is not None else 0
            if number:
                counts.append(b"*2\r\n" + encode.bulk(name) + encode.bulk(b"%d" % number))

    def finish(_: Context) -> bytes | Chunks:
        return in_pieces([head, encode.array_header(len(counts)), *counts])

    return in_parts(sorted(group.consumers), take, finish, ctx)


def _range_reply(group: Group, start: int, end: int, count: int, now: int, away: int) -> bytes | Chunks:
    pending = group.pending
    total = min(count, pending.between(start, end))
    head = encode.array_header(total)
    if total <= AT_ONCE:
        return head + _listed(group.owners, pending.rows(start, end, total), now, away)
    pieces = _listing(head, group.owners.copy(), pending.freeze(), start, end, total, now, away)
    return Chunks(pieces, _nothing, ROW_BYTES * total)


def _listed(owners: dict[int, Consumer], rows: list[PendingRow], now: int, away: int) -> bytes:
    return b"".join([
        b"*4\r\n%b%b:%d\r\n:%d\r\n"
        % (xid_bulk(row.id), owner_of(owners, row), idle_of(row, now, away), row.deliveries)
        for row in rows
    ])  # fmt: skip


def _listing(
    head: bytes, owners: dict[int, Consumer], pending: PendingTable, start: int, end: int, total: int, now: int,
    away: int,
) -> Iterator[bytes]:  # fmt: skip
    yield head
    while total > 0:
        rows = pending.rows(start, end, min(total, AT_ONCE))
        yield _listed(owners, rows, now, away)
        total -= len(rows)
        start = rows[-1].id + 1


def _nothing() -> None:
    """Do nothing: there is nothing to release."""


class PendingScan:
    """A list of the messages in a range that belong to a consumer (``owner`` 0: any) and are idle for long enough."""

    __slots__ = ("_end", "_found", "_group", "_idle", "_left", "_now", "_owner", "_parts", "_start")

    def __init__(self, group: Group, owner: int, start: int, end: int, count: int, idle: int, now: int) -> None:
        self._group = group
        self._owner = owner
        self._start = start
        self._end = end
        self._left = count
        self._idle = idle
        self._now = now
        self._found = 0
        self._parts: list[bytes] = []  # parts of the reply

    def step(self, ctx: Context) -> bytes | Chunks | None:
        """Examine the next messages."""
        group, pending, away = self._group, self._group.pending, ctx.ks.away
        if self._owner:
            rows = pending.rows_of(self._owner, self._start, self._end, AT_ONCE)
        else:
            rows = pending.rows(self._start, self._end, AT_ONCE)
        more = len(rows) == AT_ONCE
        if rows:
            self._start = rows[-1].id + 1
        if self._idle > 0:
            rows = [row for row in rows if is_idle(row, self._idle, self._now, away)]
        if self._left < len(rows):
            rows = rows[: self._left]
        self._left -= len(rows)
        self._found += len(rows)
        self._parts.append(_listed(group.owners, rows, self._now, away))
        if more and self._left and self._start <= self._end:
            return None
        return in_pieces([encode.array_header(self._found), *self._parts])


# -- XNACK -------------------------------------------------------------------------------------------------------------
@command(
    "XNACK", key("RW UPDATE"), arg("group"), oneof("mode", token("SILENT"), token("FAIL"), token("FATAL")),
    block("ids", arg("numids", "integer"), arg("id", multiple=True), token="IDS"),
    opt(arg("count", "integer", token="RETRYCOUNT")), opt(token("FORCE")), flags="write fast", traits="sign_of_life",
    complexity="O(M log P): M IDs, P pending messages.",
)  # fmt: skip
def xnack(ctx: Context, argv: list[bytes]) -> Reply:
    """Return messages to the group, so that any consumer can claim them immediately; return how many."""
    stream, group = need_group(ctx, argv)
    mode = argv[3].upper()
    if mode not in (b"SILENT", b"FAIL", b"FATAL"):
        raise CommandError(errors.BAD_NACK_MODE)
    options = NackOptions(argv)
    count = options.count
    if count == NO_COUNT and mode == b"FATAL":
        count = INT_MAX
    nack = NackCall(argv, options, None if count == NO_COUNT else count, mode == b"SILENT")
    if len(options.texts) > AT_ONCE:
        return Slices(nack.step, True)
    nack.give_back(ctx, stream, group, raw_ids(options.texts))
    return encode.integer(nack.returned)


class NackOptions:
    """The options of XNACK, in any order: the IDs, RETRYCOUNT or NO_COUNT, and whether FORCE is set. Raises
    CommandError; a malformed ID is reported before any other error."""

    __slots__ = ("count", "force", "texts")

    def __init__(self, argv: list[bytes]) -> None:
        self.texts: list[bytes] = []  # the IDs
        self.count = NO_COUNT
        self.force = False
        at = 4
        try:
            while at < len(argv):
                at += self._option(argv, at)
        except CommandError:
            raw_ids(self.texts)
            raise
        if not self.texts:
            raise CommandError(errors.NACK_NEEDS_IDS)

    def _option(self, argv: list[bytes], at: int) -> int:
        word, left = argv[at].upper(), len(argv) - at - 1
        if word == b"IDS" and not self.texts and left:
            number = integer(argv[at + 1], errors.BAD_NACK_NUMIDS)
            if number <= 0:
                raise CommandError(errors.BAD_NACK_NUMIDS)
            if number > left - 1:
                raise CommandError(errors.NACK_NUMIDS_MISMATCH)
            self.texts = argv[at + 2 : at + 2 + number]
            return 2 + number
        if word == b"RETRYCOUNT" and left:
            self.count = integer(argv[at + 1])
            if self.count < 0:
                raise CommandError(errors.BAD_RETRYCOUNT)
            return 2
        if word == b"FORCE":
            self.force = True
            return 1
        raise errors.unrecognized_claim("XNACK", argv[at])


class NackCall:
    """A call of XNACK. ``count``: deliveries from now on; None: unchanged, or one less (``silent``)."""

    __slots__ = ("_argv", "_at", "_count", "_force", "_ids", "_parsed", "_silent", "returned")

    def __init__(self, argv: list[bytes], options: NackOptions, count: int | None, silent: bool) -> None:
        self._argv = argv[:3]
        self._ids = IdParser(options.texts)
        self._parsed = False
        self._at = 0  # number of IDs processed
        self._count = count
        self._silent = silent
        self._force = options.force
        self.returned = 0

    def step(self, ctx: Context) -> bytes | None:
        """Return the next messages to the group. Raises CommandError if the group no longer exists."""
        found = find_group(ctx, self._argv)
        if found is None:
            raise errors.no_group(self._argv[1], self._argv[2])
        if not self._parsed:
            self._parsed = not self._ids.parse()
            return None
        raws = self._ids.raws[self._at : self._at + AT_ONCE]
        self._at += len(raws)
        self.give_back(ctx, found[0], found[1], raws)
        return encode.integer(self.returned) if self._at == len(self._ids.raws) else None

    def give_back(self, ctx: Context, stream: Stream, group: Group, raws: list[bytes]) -> None:
        key = self._argv[1]
        again: dict[bytes, int] = {}  # pending messages, and how often they are named
        new: dict[bytes, None] = {}
        for raw in raws:
            id = int.from_bytes(raw, "big")  # noqa: A001
            if raw in again or group.pending.get(id) is not None:
                again[raw] = again.get(raw, 0) + 1
            elif raw not in new and (not self._force or stream.find(id) is None):
                continue
            else:
                new[raw] = None
            self.returned += 1
        ctx.touch(group)
        rounds = max(again.values(), default=0)
        for number in range(rounds if self._silent and self._count is None else min(1, rounds)):
            named = [raw for raw, times in again.items() if times > number]
            _give_back(ctx, key, stream, group, [], named, self._count, self._silent)
        if new:
            _give_back(ctx, key, stream, group, list(new), [], self._count or 0, False)


def _give_back(
    ctx: Context, key: bytes, stream: Stream, group: Group, new: list[bytes], again: list[bytes], count: int | None,
    decrement: bool,
) -> None:  # fmt: skip
    groupmutators.own(
        ctx.ks, key, stream, group, None, ctx.now, Messages(new, again, []),
        Ownership(count=count, step=-int(decrement)),
    )  # fmt: skip
