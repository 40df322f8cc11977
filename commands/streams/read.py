"""TREAD: plain, blocking, and for groups.

    TREAD key last-id count [BLOCK ms] [GROUP name ttl] [RETRY retry-ms expire-ms [MAXDELIVERIES n] [DEADLETTER key]]
    [WITHINFO]

A read for a group first decides (which messages are due, which entries are new, what is missing), then makes one effect
of it (``effects.deliver``), so that one record carries the whole read. Semantics [8] to [21].
"""

from __future__ import annotations

from typing import Final

from commands.context import Block, Chunks, Context, Reply
from commands.declare import arg, batch, block, command, key, opt
from commands.parse import id_parts, integer, span, timeout_ms
from commands.streams.deadletter import dead_letter
from commands.streams.entries import entries_reply
from resp import errors
from resp import reply as encode
from resp.errors import CommandError
from storage import records, timers
from storage.groups import effects
from storage.groups.group import Group
from storage.ids import format_id
from storage.keyspace import Keyspace
from storage.stream import Stream

NEVER: Final = 0
RUN_BYTES: Final = 64 * 1024  # of replies made at once for calls that came together


class ReadOptions:
    """TREAD's arguments behind the ID, parsed; never changed. Times in ms."""

    __slots__ = (
        "block", "count", "deadletter", "expire", "flags", "group", "max_deliveries", "retry", "ttl", "with_info",
    )  # fmt: skip

    def __init__(self, key: bytes, words: list[bytes]) -> None:
        self.count = integer(words[0])
        if self.count < 0:
            raise CommandError(errors.NOT_POSITIVE)
        self.block = -1  # -1: don't wait; 0: for ever
        self.group = b""  # empty: none
        self.ttl = 0
        self.retry = self.expire = self.max_deliveries = 0
        self.deadletter = b""
        self.flags = 0  # records.HAS_*
        self.with_info = False
        if len(words) > 1:
            self._parse(key, words)

    def _parse(self, key: bytes, words: list[bytes]) -> None:
        seen: list[bytes] = []
        at, end = 1, len(words)
        while at < end:
            word = words[at].upper()
            left = end - at - 1
            if word in seen:
                raise errors.syntax()
            seen.append(word)
            if word == b"WITHINFO":
                self.with_info = True
                at += 1
            elif word == b"BLOCK" and left >= 1:
                self.block = timeout_ms(words[at + 1])
                at += 2
            elif word == b"GROUP" and left >= 2:
                self.group = words[at + 1]
                if not self.group:
                    raise CommandError(errors.EMPTY_GROUP)
                self.ttl = span(words[at + 2])
                at += 3
            elif word == b"RETRY" and left >= 2:
                self.retry = span(words[at + 1], 1, errors.BAD_RETRY)
                self.expire = span(words[at + 2])
                self.flags |= records.HAS_RETRY
                at += 3
            elif word == b"MAXDELIVERIES" and left >= 1:
                self.max_deliveries = integer(words[at + 1])
                if not 1 <= self.max_deliveries < 1 << 32:
                    raise CommandError(errors.BAD_MAXDELIVERIES)
                self.flags |= records.HAS_MAX
                at += 2
            elif word == b"DEADLETTER" and left >= 1:
                self.deadletter = words[at + 1]
                if not self.deadletter or self.deadletter == key:
                    raise CommandError(errors.BAD_DEADLETTER)
                self.flags |= records.HAS_DEADLETTER
                at += 2
            else:
                raise errors.syntax()
        if self.flags & records.HAS_RETRY and not self.group:
            raise CommandError(errors.RETRY_NEEDS_GROUP)
        if self.flags and not self.flags & records.HAS_RETRY:
            raise CommandError(errors.NEEDS_RETRY)


class _Recent:
    """What was parsed last: readers ask in the same words again and again, and many at the same place."""

    __slots__ = ("id", "ms", "options", "seq", "words")

    def __init__(self) -> None:
        self.id = b"0"
        self.ms = self.seq = 0
        self.words = [b"0"]
        self.options = ReadOptions(b"", self.words)


REMEMBERED: Final = 1024  # bytes of the longest word that _recent keeps alive
_recent: Final = _Recent()


def _options(key: bytes, words: list[bytes]) -> ReadOptions:
    recent = _recent
    if words == recent.words and recent.options.deadletter != key:
        return recent.options
    options = ReadOptions(key, words)
    if len(options.group) + len(options.deadletter) <= REMEMBERED:
        recent.words, recent.options = words, options
    return options


class Position:
    """Where a reader is: what it gets lies behind ms.seq."""

    __slots__ = ("from_now", "ms", "seq", "zero")

    def __init__(self, text: bytes) -> None:
        """``text``: last-id as sent. Raises CommandError."""
        self.from_now = not text  # [9]: only what arrives from now on
        self.ms = self.seq = 0
        if text:
            recent = _recent
            if text != recent.id:
                recent.ms, recent.seq = id_parts(text)
                recent.id = text
            self.ms, self.seq = recent.ms, recent.seq
        self.zero = bool(text) and not self.ms and not self.seq  # "from the beginning": nothing is missing

    @property
    def id(self) -> int:
        return self.ms << 64 | self.seq

    def before(self, stream: Stream) -> bool:
        """Whether the stream has given out IDs behind it."""
        return self.ms < stream.last_ms or (self.ms == stream.last_ms and self.seq < stream.last_seq)


def _has_group(argv: list[bytes]) -> bool:
    """A read changes data only for a group [13]."""
    return any(word.upper() == b"GROUP" for word in argv[4:])


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
    complexity="O(log N + M): N macro nodes, M entries returned.", writes=_has_group,
)  # fmt: skip
def tread(ctx: Context, argv: list[bytes]) -> Reply:
    """Return entries after an ID; can wait for them, share them in a group, and redeliver them until acknowledged."""
    position = Position(argv[2])
    options = _options(argv[1], argv[3:])
    if options.group:
        return _read_group(ctx, argv[1], position, options)
    stream = ctx.ks.stream(argv[1], ctx.now)
    if position.from_now and stream is not None:
        position.ms, position.seq = stream.last_ms, stream.last_seq
    reply = _serve_plain(ctx, position, options, stream, options.block < 0)
    if reply is not None:
        return reply
    null = encode.null_array(ctx.session.proto)
    return null if ctx.in_exec else PlainRead(argv[1], _deadline(ctx, options), null, position, options)


def tread_run(ctx: Context, calls: list[list[bytes]], raw: bytes, borders: list[int]) -> list[bytes] | None:
    """Plain TREADs of one key that came together: their replies, of the first ones only where they become large.

    None where the first is of another kind or has to be refused.
    """
    first = calls[0]
    if len(first) != 4:
        return None
    stream = ctx.ks.stream(first[1], ctx.now)
    replies: list[bytes] = []
    size = 0
    for argv in calls:
        try:
            position, options = Position(argv[2]), _options(argv[1], argv[3:])
        except CommandError:  # it is this call's alone
            break
        reply = _serve_plain(ctx, position, options, stream, True) if not position.from_now else encode.EMPTY_ARRAY
        if not isinstance(reply, bytes):
            if isinstance(reply, Chunks):
                reply.close()
            break
        replies.append(reply)
        size += len(reply)
        if size > RUN_BYTES:
            break
    if replies:
        if stream is not None:
            ctx.ks.hits += len(replies) - 1  # as if each had looked
        else:
            ctx.ks.misses += len(replies) - 1
    return replies or None


batch("TREAD")(tread_run)


def _deadline(ctx: Context, options: ReadOptions) -> int:
    return ctx.now + options.block if options.block else NEVER


class PlainRead(Block):
    """A blocked reader without a group."""

    __slots__ = ("options", "position")

    def __init__(self, key: bytes, deadline: int, null: bytes, position: Position, options: ReadOptions) -> None:
        super().__init__(key, None, deadline, null)
        self.position = position
        self.options = options

    def serve(self, ctx: Context) -> bytes | Chunks | None:
        return _serve_plain(ctx, self.position, self.options, ctx.ks.stream(self.key, ctx.now), False)

    def same(self, other: Block) -> bool:
        if not isinstance(other, PlainRead) or other.options is not self.options:
            return False
        mine, its = self.position, other.position
        return (
            mine.ms == its.ms and mine.seq == its.seq and mine.from_now == its.from_now and mine.zero == its.zero
        )


class GroupRead(Block):
    """A blocked reader of a group."""

    __slots__ = ("name", "options")

    def __init__(self, key: bytes, deadline: int, null: bytes, options: ReadOptions) -> None:
        super().__init__(key, options.group, deadline, null)
        self.name = options.group
        self.options = options

    def serve(self, ctx: Context) -> bytes | Chunks | None:
        stream = ctx.ks.stream(self.key, ctx.now)
        group = stream.groups.get(self.name) if stream is not None else None
        if stream is None or group is None:
            raise errors.no_group(self.key, self.name)
        return _serve_group(ctx, self.key, self.options, stream, group, False)

    def wake_at(self, ctx: Context) -> int | None:
        stream = ctx.ks.keys.get(self.key)
        group = stream.groups.get(self.name) if isinstance(stream, Stream) else None
        return group.pending.next_due() if group is not None else None


def _info(stream: Stream | None, proto: int) -> bytes:
    """WITHINFO's element: [first, last] as of now [12]."""
    if stream is None:
        return b"*2\r\n" + encode.null(proto) + b"$3\r\n0.0\r\n"
    first = encode.bulk(format_id(stream.first_id())) if stream.length else encode.null(proto)
    return b"*2\r\n" + first + encode.bulk(format_id(stream.last_id))


# -- without a group -----------------------------------------------------------------------------------------
def _serve_plain(
    ctx: Context, position: Position, options: ReadOptions, stream: Stream | None, anyway: bool
) -> bytes | Chunks | None:  # fmt: skip
    """The reply, or None if there are no entries and the reader may wait (``anyway``: it may not)."""
    lo = hi = 0
    if stream is not None and position.before(stream):
        lo = stream.ord_from(position.id + 1)
        hi = min(lo + options.count, stream.next_ord)
    elif not options.with_info:  # the usual answer to who asks again and again
        return None if options.count and not anyway else encode.EMPTY_ARRAY
    if lo >= hi and options.count and not anyway:
        return None
    head, extra = b"", 0
    if options.with_info:
        head, extra = _info(stream, ctx.session.proto), 1
    if stream is not None and options.count and stream.evicted_to and not (position.zero or position.from_now) and (
        position.id < stream.evicted_to
    ):
        head += encode.null_array(ctx.session.proto)  # [17] (a): entries in between are gone
        extra += 1
    return entries_reply(hi - lo + extra, head, stream, lo, hi)


# -- for a group ---------------------------------------------------------------------------------------------
def _read_group(ctx: Context, key: bytes, position: Position, options: ReadOptions) -> Reply:
    ks, now, name = ctx.ks, ctx.now, options.group
    if options.deadletter:
        ks.stream(options.deadletter, now)  # WRONGTYPE is better said now than when a message is lost
    stream = ks.stream(key, now)
    group = stream.groups.get(name) if stream is not None else None
    if stream is None or group is None:
        if stream is None:
            stream = ks.create_stream(key)
        offset = position.id
        if position.from_now:
            offset = stream.last_id
        elif position.zero:
            offset = stream.evicted_to  # the beginning of what there is: nothing is missing
        deadline = now + options.ttl if options.ttl else NEVER
        group = effects.set_group(ks, key, stream, name, offset, options.ttl, deadline)
    elif group.ttl != options.ttl:
        deadline = now + options.ttl if options.ttl else NEVER
        effects.set_group(ks, key, stream, name, group.offset, options.ttl, deadline)
    else:
        group.touch(now)
    reply = _serve_group(ctx, key, options, stream, group, options.block < 0)
    if reply is not None:
        return reply
    null = encode.null_array(ctx.session.proto)
    return null if ctx.in_exec else GroupRead(key, _deadline(ctx, options), null, options)


def _serve_group(
    ctx: Context, key: bytes, options: ReadOptions, stream: Stream, group: Group, anyway: bool
) -> bytes | Chunks | None:
    """As _serve_plain(), and what is delivered moves the group's offset and pending list."""
    ks, now, proto = ctx.ks, ctx.now, ctx.session.proto
    group.touch(now)
    if not options.count:
        if options.with_info:
            return b"*1\r\n" + _info(stream, proto)
        return encode.EMPTY_ARRAY
    due, gone, old = _due(ks, key, options, stream, group, now)
    lo = effects.place(stream, group)
    hi = min(lo + options.count - len(due), stream.next_ord)
    if lo >= hi and not due and not anyway:
        return None
    overtaken = group.offset < stream.evicted_to  # [17] (a)
    ids = stream.ids(lo, hi) if hi > lo else []
    offset = ids[-1] if ids else max(group.offset, stream.evicted_to)
    new = [entry_id.to_bytes(16, "big") for entry_id in ids]
    parts: list[bytes] = []
    if options.with_info:
        parts.append(_info(stream, proto))
    null = encode.null_array(proto)
    if overtaken:
        parts.append(null)
    if old:
        parts += [null if wire is None else wire for wire in old]
    reply = entries_reply(len(parts) + len(new), b"".join(parts), stream, lo, hi)
    if due or new or overtaken:
        expire_at = now + options.expire if options.expire else NEVER
        reader = effects.Reader(
            now, options.retry, expire_at, options.max_deliveries, options.deadletter, options.flags
        )
        again = [entry_id for entry_id in due if entry_id not in gone] if gone else due
        effects.deliver(ks, key, stream, group, offset, reader, new, again, list(gone))
        if new:
            group.place, group.place_of = hi, offset
    return reply


def _due(
    ks: Keyspace, key: bytes, options: ReadOptions, stream: Stream, group: Group, now: int
) -> tuple[list[int], dict[int, None], list[bytes | None]]:
    """Messages that are due, up to count: their IDs, those of them that eviction has taken, and their wire forms
    (None if gone)."""
    soonest = group.pending.next_due()
    if soonest is None or soonest > now:
        return [], {}, []
    leaves = group.pending.next_drop()
    if leaves is not None and leaves <= now:
        drop_overdue(ks, key, stream, group, now)  # [24]: expired ones are dropped first
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
        effects.drop(ks, key, stream, group, entry_id, reason, row.deadletter, ms, seq, wire)
        dropped += 1
    if kept:
        ks.agenda.file(timers.PENDING_DROP, key, group.name, now + 1000)
    else:  # also if nothing had to go: what this was filed for may have been acknowledged, and others leave later
        ks.file_group(key, group)
    return dropped
