"""XACK, XPENDING, XNACK: pending messages of consumers."""

from __future__ import annotations

from functools import partial

from commands.context import Chunks, Context, Reply, Slices
from commands.declare import arg, block, command, key, oneof, opt, repeat, token
from commands.parse import INT_MAX, integer, raw_ids
from commands.redis_streams.consumers import idle_of, is_idle, owner_of
from commands.redis_streams.ids import range_end, range_start, xid_bulk
from commands.slicing import AT_ONCE, IdParser, array_of, by_id, in_pieces, rows_reply
from commands.streams.groups import acknowledge, on_messages
from commands.streams.lookup import need_group
from resp import errors
from resp import reply as encode
from resp.errors import CommandError
from storage.groups.group import Consumer, Group
from storage.groups.pending import PendingRow
from storage.keyspace import groupmutators
from storage.keyspace.groupmutators import Messages, Ownership
from storage.streams.stream import Stream


@on_messages("XACK", key("RW UPDATE"), arg("group"), repeat(arg("id")))
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
    return by_id(argv, 3, partial(acknowledge, argv[:3]), ctx)


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
    group = need_group(ctx.ks.read_stream(argv[1], ctx.now), argv[1], argv[2])[1]
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
        owners = group.owners if count <= AT_ONCE else group.owners.copy()  # a streamed reply is built later
        return rows_reply(group.pending, start, end, count, partial(_listed, owners, ctx.now, ctx.ks.away))
    return _scanned(ctx, group, owner, start, end, count, idle)


def _summary(ctx: Context, group: Group) -> Reply:
    pending, proto = group.pending, ctx.session.proto
    low, high = pending.lowest(), pending.highest()
    if low is None or high is None:
        null = encode.null(proto)
        return b"*4\r\n:0\r\n" + null + null + encode.null_array(proto)
    head = b"*4\r\n:%d\r\n%b%b" % (len(pending), xid_bulk(low), xid_bulk(high))

    def counted(name: bytes) -> bytes:
        consumer = group.consumers.get(name)
        number = pending.owned(consumer.number) if consumer is not None else 0
        return b"*2\r\n" + encode.bulk(name) + encode.bulk(b"%d" % number) if number else b""

    return array_of(sorted(group.consumers), counted, ctx, head=head)


def _listed(owners: dict[int, Consumer], now: int, away: int, rows: list[PendingRow]) -> bytes:
    return b"".join([
        b"*4\r\n%b%b:%d\r\n:%d\r\n"
        % (xid_bulk(row.id), owner_of(owners, row), idle_of(row, now, away), row.deliveries)
        for row in rows
    ])  # fmt: skip


def _scanned(ctx: Context, group: Group, owner: int, start: int, end: int, count: int, idle: int) -> Reply:
    """Return the messages in a range that belong to a consumer (``owner`` 0: any) and are idle for long enough."""
    now, left, parts = ctx.now, count, list[bytes]()

    def step(ctx: Context) -> bytes | Chunks | None:
        nonlocal start, left
        pending, away = group.pending, ctx.ks.away
        rows = pending.rows_of(owner, start, end, AT_ONCE) if owner else pending.rows(start, end, AT_ONCE)
        more = len(rows) == AT_ONCE
        if rows:
            start = rows[-1].id + 1
        if idle > 0:
            rows = [row for row in rows if is_idle(row, idle, now, away)]
        rows = rows[:left]
        left -= len(rows)
        parts.append(_listed(group.owners, now, away, rows))
        if more and left and start <= end:
            return None
        return in_pieces([encode.array_header(count - left), *parts])

    return step(ctx) or Slices(step, False)


# -- XNACK -------------------------------------------------------------------------------------------------------------
@on_messages(
    "XNACK", key("RW UPDATE"), arg("group"), oneof("mode", token("SILENT"), token("FAIL"), token("FATAL")),
    block("ids", arg("numids", "integer"), arg("id", multiple=True), token="IDS"),
    opt(arg("count", "integer", token="RETRYCOUNT")), opt(token("FORCE")),
)  # fmt: skip
def xnack(ctx: Context, argv: list[bytes]) -> Reply:
    """Return messages to the group, so that any consumer can claim them immediately; return how many."""
    stream, group = need_group(ctx.ks.read_stream(argv[1], ctx.now), argv[1], argv[2])
    if argv[3].upper() not in (b"SILENT", b"FAIL", b"FATAL"):
        raise CommandError(errors.BAD_NACK_MODE)
    nack = NackCall(argv)
    if len(nack.texts) > AT_ONCE:
        return Slices(nack.step, True)
    nack.give_back(ctx, stream, group, raw_ids(nack.texts))
    return encode.integer(nack.returned)


class NackCall:
    """A call of XNACK. Raises CommandError for its options; a malformed ID is reported before any other error."""

    __slots__ = ("_argv", "_count", "_force", "_ids", "_silent", "returned", "texts")

    def __init__(self, argv: list[bytes]) -> None:
        mode = argv[3].upper()
        self._argv = argv[:3]
        self._silent = mode == b"SILENT"
        # deliveries from now on; None: unchanged, or one less (``silent``)
        self._count = INT_MAX if mode == b"FATAL" else None
        self._force = False
        self.texts: list[bytes] = []  # the IDs
        self.returned = 0
        at = 4
        try:
            while at < len(argv):
                at += self._option(argv, at)
        except CommandError:
            raw_ids(self.texts)
            raise
        if not self.texts:
            raise CommandError(errors.NACK_NEEDS_IDS)
        self._ids = IdParser(self.texts)

    def _option(self, argv: list[bytes], at: int) -> int:
        """Parse the option at ``at``: the IDs, RETRYCOUNT or FORCE. Returns how many words it has."""
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
            self._count = integer(argv[at + 1])
            if self._count < 0:
                raise CommandError(errors.BAD_RETRYCOUNT)
            return 2
        if word == b"FORCE":
            self._force = True
            return 1
        raise errors.quoting(errors.UNKNOWN_OPTION_OF, b"XNACK", argv[at])

    def step(self, ctx: Context) -> bytes | None:
        """Return the next messages to the group. Raises CommandError if the group no longer exists."""
        key, name = self._argv[1:]
        stream, group = need_group(ctx.ks.stream(key, ctx.now), key, name)
        raws = self._ids.following()
        if raws:
            self.give_back(ctx, stream, group, raws)
        return encode.integer(self.returned) if self._ids.done else None

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
