"""TREAD: plain, blocking, and for groups.

    TREAD key last-id count [BLOCK ms] [GROUP name ttl] [RETRY retry-ms expire-ms [MAXDELIVERIES n] [DEADLETTER key]]
    [WITHINFO]

A read for a group first decides (``_plan``: which messages are due, which entries are new, what is missing), then
makes one
effect of it (``consume.deliver``), so that one record carries the whole read. Semantics [8] to [21].
"""

from __future__ import annotations

from typing import Final

from commands.context import Block, Chunks, Context, Reply
from commands.deadletter import dead_letter
from commands.declare import arg, block, command, key, opt
from commands.entries import entries_reply
from commands.parse import integer, span, timeout_ms
from resp import errors
from resp import reply as encode
from resp.errors import CommandError
from storage import agenda, consume, records
from storage.groups import Group
from storage.ids import format_id, parse_id
from storage.keyspace import Keyspace
from storage.stream import Stream

NEVER: Final = 0


class ReadOptions:
    """TREAD's arguments, parsed. Times in ms."""

    __slots__ = (
        "block", "count", "deadletter", "expire", "flags", "from_now", "group", "key", "last_id", "max_deliveries",
        "retry",
        "ttl", "with_info", "zero",
    )  # fmt: skip

    def __init__(self, argv: list[bytes]) -> None:
        self.key = argv[1]
        self.from_now = not argv[2]  # [9]: only what arrives from now on
        self.last_id = 0 if self.from_now else parse_id(argv[2])
        self.zero = self.last_id == 0 and not self.from_now  # "from the beginning of what there is": nothing is missing
        self.count = integer(argv[3])
        if self.count < 0:
            raise CommandError(errors.NOT_POSITIVE)
        self.block = -1  # -1: don't wait; 0: for ever
        self.group: bytes | None = None
        self.ttl = 0
        self.retry = self.expire = self.max_deliveries = 0
        self.deadletter = b""
        self.flags = 0  # records.HAS_*
        self.with_info = False
        seen: set[bytes] = set()
        at, end = 4, len(argv)
        while at < end:
            word = argv[at].upper()
            left = end - at - 1
            if word in seen:
                raise errors.syntax()
            seen.add(word)
            if word == b"WITHINFO":
                self.with_info = True
                at += 1
            elif word == b"BLOCK" and left >= 1:
                self.block = timeout_ms(argv[at + 1])
                at += 2
            elif word == b"GROUP" and left >= 2:
                self.group = argv[at + 1]
                if not self.group:
                    raise CommandError(errors.EMPTY_GROUP)
                self.ttl = span(argv[at + 2])
                at += 3
            elif word == b"RETRY" and left >= 2:
                self.retry = span(argv[at + 1], 1, errors.BAD_RETRY)
                self.expire = span(argv[at + 2])
                self.flags |= records.HAS_RETRY
                at += 3
            elif word == b"MAXDELIVERIES" and left >= 1:
                self.max_deliveries = integer(argv[at + 1])
                if not 1 <= self.max_deliveries < 1 << 32:
                    raise CommandError(errors.BAD_MAXDELIVERIES)
                self.flags |= records.HAS_MAX
                at += 2
            elif word == b"DEADLETTER" and left >= 1:
                self.deadletter = argv[at + 1]
                if not self.deadletter or self.deadletter == self.key:
                    raise CommandError(errors.BAD_DEADLETTER)
                self.flags |= records.HAS_DEADLETTER
                at += 2
            else:
                raise errors.syntax()
        if self.flags & records.HAS_RETRY and self.group is None:
            raise CommandError(errors.RETRY_NEEDS_GROUP)
        if self.flags and not self.flags & records.HAS_RETRY:
            raise CommandError(errors.NEEDS_RETRY)


@command(
    "TREAD", key("RW"), arg("last-id"), arg("count", "integer"),
    opt(arg("milliseconds", "integer", token="BLOCK")),
    opt(block("group", arg("name", token="GROUP"), arg("ttl-ms", "integer"))),
    opt(block(
        "retry", arg("retry-ms", "integer", token="RETRY"), arg("expire-ms", "integer"),
        opt(arg("n", "integer", token="MAXDELIVERIES")), opt(key("RW INSERT", "deadletter-key", token="DEADLETTER")),
    )),
    opt(arg("withinfo", "pure-token", token="WITHINFO")),
    flags="write blocking", group="stream", since="0.1.0",
    complexity="O(log N + M): N macro nodes, M entries returned.",
)  # fmt: skip
def tread(ctx: Context, argv: list[bytes]) -> Reply:
    """Return entries after an ID; can wait for them, share them in a group, and redeliver them until acknowledged."""
    options = ReadOptions(argv)
    if options.group is not None:
        return _read_group(ctx, options)
    stream = ctx.ks.stream(options.key, ctx.now)
    if options.from_now:
        options.last_id = stream.last_id if stream is not None else 0
    reply = _serve_plain(ctx, options, stream, options.block < 0)
    if reply is not None:
        return reply
    return _wait(ctx, options, None)


def _wait(ctx: Context, options: ReadOptions, group: Group | None) -> Reply:
    """Park the reader, or, where nothing may wait, the null that a timeout gives [10]."""
    null = encode.null_array(ctx.session.proto)
    if ctx.in_exec:
        return null
    deadline = ctx.now + options.block if options.block else NEVER
    if group is None:

        def serve_plain(ctx: Context) -> bytes | Chunks | None:
            return _serve_plain(ctx, options, ctx.ks.stream(options.key, ctx.now), False)

        return Block(options.key, None, deadline, serve_plain, None, null)

    name = group.name

    def serve_group(ctx: Context) -> bytes | Chunks | None:
        stream = ctx.ks.stream(options.key, ctx.now)
        current = stream.groups.get(name) if stream is not None else None
        if stream is None or current is None:
            raise errors.no_group(options.key, name)
        return _serve_group(ctx, options, stream, current, False)

    def wake_at(ctx: Context) -> int | None:
        stream = ctx.ks.keys.get(options.key)
        current = stream.groups.get(name) if isinstance(stream, Stream) else None
        return current.pending.next_due() if current is not None else None

    return Block(options.key, name, deadline, serve_group, wake_at, null)


def _info(stream: Stream | None, proto: int) -> bytes:
    """WITHINFO's element: [first, last] as of now [12]."""
    if stream is None:
        return b"*2\r\n" + encode.null(proto) + b"$3\r\n0.0\r\n"
    first = encode.bulk(format_id(stream.first_id())) if stream.length else encode.null(proto)
    return b"*2\r\n" + first + encode.bulk(format_id(stream.last_id))


# -- without a group -----------------------------------------------------------------------------------------
def _serve_plain(ctx: Context, options: ReadOptions, stream: Stream | None, anyway: bool) -> bytes | Chunks | None:
    """The reply, or None if there are no entries and the reader may wait (``anyway``: it may not)."""
    lo = hi = 0
    if stream is not None:
        lo = stream.ord_from(options.last_id + 1)
        hi = min(lo + options.count, stream.next_ord)
    if lo >= hi and options.count and not anyway:
        return None
    head, extra = b"", 0
    if options.with_info:
        head, extra = _info(stream, ctx.session.proto), 1
    if stream is not None and options.count and options.last_id < stream.evicted_to and not (
        options.zero or options.from_now
    ):
        head += encode.null_array(ctx.session.proto)  # [17] (a): entries in between are gone
        extra += 1
    return entries_reply(hi - lo + extra, head, stream, lo, hi)


# -- for a group ---------------------------------------------------------------------------------------------
def _read_group(ctx: Context, options: ReadOptions) -> Reply:
    ks, now, name = ctx.ks, ctx.now, options.group or b""
    stream = ks.stream(options.key, now)
    if options.deadletter:
        ks.stream(options.deadletter, now)  # WRONGTYPE is better said now than when a message is lost
    group = stream.groups.get(name) if stream is not None else None
    if stream is None or group is None:
        if stream is None:
            stream = ks.create_stream(options.key)
        offset = options.last_id
        if options.from_now:
            offset = stream.last_id
        elif options.zero:
            offset = stream.evicted_to  # the beginning of what there is: nothing is missing
        deadline = now + options.ttl if options.ttl else NEVER
        group = consume.set_group(ks, options.key, stream, name, offset, options.ttl, deadline)
    elif group.ttl != options.ttl:
        deadline = now + options.ttl if options.ttl else NEVER
        consume.set_group(ks, options.key, stream, name, group.offset, options.ttl, deadline)
    else:
        group.touch(now)
    reply = _serve_group(ctx, options, stream, group, options.block < 0)
    return _wait(ctx, options, group) if reply is None else reply


def _serve_group(
    ctx: Context, options: ReadOptions, stream: Stream, group: Group, anyway: bool
) -> bytes | Chunks | None:
    """As _serve_plain(), and what is delivered moves the group's offset and pending list."""
    ks, now, proto = ctx.ks, ctx.now, ctx.session.proto
    group.touch(now)
    if not options.count:
        if options.with_info:
            return b"*1\r\n" + _info(stream, proto)
        return encode.EMPTY_ARRAY
    due, gone, old = _due(ks, options, stream, group, now)
    lo = stream.ord_from(group.offset + 1)
    hi = min(lo + options.count - len(due), stream.next_ord)
    if lo >= hi and not due and not anyway:
        return None
    overtaken = group.offset < stream.evicted_to  # [17] (a)
    new = stream.ids(lo, hi) if hi > lo else []
    offset = new[-1] if new else max(group.offset, stream.evicted_to)
    parts: list[bytes] = []
    if options.with_info:
        parts.append(_info(stream, proto))
    null = encode.null_array(proto)
    if overtaken:
        parts.append(null)
    parts += [null if wire is None else wire for wire in old]
    reply = entries_reply(len(parts) + len(new), b"".join(parts), stream, lo, hi)
    if due or new or overtaken:
        expire_at = now + options.expire if options.expire else NEVER
        reader = consume.Reader(
            now, options.retry, expire_at, options.max_deliveries, options.deadletter, options.flags
        )
        again = [entry_id for entry_id in due if entry_id not in gone] if gone else due
        consume.deliver(ks, options.key, stream, group, offset, reader, new, again, list(gone))
    return reply


def _due(
    ks: Keyspace, options: ReadOptions, stream: Stream, group: Group, now: int
) -> tuple[list[int], dict[int, None], list[bytes | None]]:
    """Messages that are due, up to count: their IDs, those of them that eviction has taken, and their wire forms
    (None if gone)."""
    soonest = group.pending.next_due()
    if soonest is None or soonest > now:
        return [], {}, []
    leaves = group.pending.next_drop()
    if leaves is not None and leaves <= now:
        drop_overdue(ks, options.key, stream, group, now)  # [24]: expired ones are dropped first
    # after a rewind, what lies ahead of the offset comes as a new entry, not twice in one read
    passed = max(group.offset, stream.evicted_to)
    ids = [entry_id for entry_id in group.pending.due(now, options.count) if entry_id <= passed]
    wires = [stream.find(entry_id) for entry_id in ids]
    gone = {entry_id: None for entry_id, wire in zip(ids, wires, strict=True) if wire is None}
    return ids, gone, wires


DROPS_AT_ONCE: Final = 1000  # messages given up in one go; the rest a moment later


def drop_overdue(ks: Keyspace, key: bytes, stream: Stream, group: Group, now: int) -> int:
    """Give up messages of a group that expired or were delivered often enough [23]; returns how many. The leader's
    business.

    A dead letter whose key holds something else by now stays pending, and is tried again a second later.
    """
    dropped, kept = 0, False
    for entry_id, reason in group.pending.drops(now, DROPS_AT_ONCE):
        row = group.pending.get(entry_id)
        if row is None:
            continue
        ms = seq = 0
        wire = b""
        if row.deadletter:
            try:
                target = ks.stream(row.deadletter, now)
                ms, seq = ks.next_id(target, now)
            except CommandError:
                kept = True
                continue
            wire = dead_letter(ms, seq, stream.find(entry_id), key, group.name, row, reason)
        consume.drop(ks, key, stream, group, entry_id, reason, row.deadletter, ms, seq, wire)
        dropped += 1
    if kept:
        ks.agenda.file(agenda.PENDING_DROP, key, group.name, now + 1000)
    else:  # also if nothing had to go: what this was filed for may have been acknowledged, and others leave later
        ks.file_group(key, group)
    return dropped
