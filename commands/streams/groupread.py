"""Reading for a group: due messages first, then new entries. Semantics [14] to [21].

A read first decides which messages are due, which entries are new, and whether entries are missing. It then applies one
effect (``groupmutators.deliver``), so that one record contains the whole read.

Decision: a TREAD that only refreshes the group's time to live logs nothing. After a restart, the deadline of every
group is at least now + ttl, so a logged refresh would change nothing.
"""

from __future__ import annotations

from typing import Final

from commands.context import Block, Chunks, Context, Reply, Slices
from commands.parse import check_group_name
from commands.streams import measured
from commands.streams.elements import Elements, followed
from commands.streams.newentries import NEW_AT_ONCE, NO_MORE, NewEntries
from commands.streams.readargs import ReadPosition, TreadOptions
from commands.streams.replies import entries_reply, info_element
from resp import errors
from resp import reply as encode
from resp.errors import AbsentNodeError, DamagedNodeError
from storage.groups.group import Group
from storage.keyspace import events, groupmutators
from storage.keyspace.deadletters import drop_overdue
from storage.keyspace.groupmutators import Messages
from storage.keyspace.keyspace import Keyspace
from storage.model import records
from storage.model.timers import NEVER
from storage.streams.position import StreamPosition
from storage.streams.stream import Stream

# The maximum for a reader that has waited, and for a slice of a long read, which takes some milliseconds. (NEW_AT_ONCE
# limits new entries with RETRY.)
DUE_AT_ONCE: Final = 1000  # due messages
MOST_WAITS: Final = 1000  # of a long read that has delivered nothing, before it fails
NULL_BYTES: Final = 5  # size of the element of a message without an entry, for MAXBYTES
NOTHING: Final[dict[int, None]] = {}


class GroupRead(Block):
    """A blocked reader of a group."""

    __slots__ = ("name", "options")

    def __init__(self, key: bytes, deadline: int, null: bytes, options: TreadOptions) -> None:
        super().__init__((key,), options.group, True, deadline, null)
        self.name = options.group
        self.options = options

    def serve(self, ctx: Context, key: bytes) -> bytes | Chunks | None:
        stream = ctx.ks.stream(key, ctx.now)
        group = stream.groups.get(self.name) if stream is not None else None
        if stream is None or group is None:
            raise errors.quoting(errors.NO_GROUP, key, self.name)
        served = ctx.served()
        group.touch(served)
        return _serve_group(ctx, key, self.options, stream, group, False, served)


def read_group(ctx: Context, key: bytes, position: ReadPosition, options: TreadOptions) -> Reply:
    """Execute TREAD with GROUP."""
    ks, now, name = ctx.ks, ctx.now, options.group
    served = ctx.served()
    if options.deadletter:
        ks.stream(options.deadletter, now)  # raises WRONGTYPE now rather than when a message is moved there
    stream = ks.read_stream(key, now)
    group = stream.groups.get(name) if stream is not None else None
    if stream is None or group is None:
        check_group_name(name)
        if stream is None:
            stream = ks.create_stream(key)
        offset = position.id
        if position.from_now:
            offset = stream.last_id
        elif position.zero:
            offset = stream.evicted_to  # the position of the oldest entry: nothing counts as missing
        deadline = served + options.ttl if options.ttl else NEVER
        group = _set_group(ctx, key, stream, name, offset, options.ttl, deadline)
        ks.notify(events.STREAM, b"tgroup-create", key)
    elif group.ttl != options.ttl:
        deadline = served + options.ttl if options.ttl else NEVER
        _set_group(ctx, key, stream, name, group.offset, options.ttl, deadline)
    else:
        group.touch(served)
    if (options.count > DUE_AT_ONCE or options.max_bytes) and _is_long(stream, group, options, served):
        read = ReadSlices(key, options, group, served)
        return Slices(read.step, True, read.close, resumes=True)
    reply = _serve_group(ctx, key, options, stream, group, options.block < 0, served)
    if reply is not None:
        return reply
    null = encode.null_array(ctx.session.proto)
    return null if ctx.in_exec else GroupRead(key, options.deadline(now), null, options)


def _set_group(
    ctx: Context, key: bytes, stream: Stream, name: bytes, offset: int, ttl: int, deadline: int
) -> Group:  # fmt: skip
    """Create or change the group. If the read is repeated because it has to wait for entries, the group remains."""
    ks = ctx.ks
    before = len(ks.log) + ks.changes.count
    group = groupmutators.set_group(ks, key, stream, name, offset, ttl, deadline)
    ks.repeatable += len(ks.log) + ks.changes.count - before
    return group


def _is_long(stream: Stream, group: Group, options: TreadOptions, served: int) -> bool:
    """Return whether to deliver in slices because the count is large and other clients should not wait."""
    if options.count > DUE_AT_ONCE and group.pending.due_at(served) >= DUE_AT_ONCE:
        return True
    lo = groupmutators.cursor(stream, group)
    new = min(options.count, stream.count(lo, stream.next_ord))
    if new > _at_once(new, options):
        return True
    if options.max_bytes <= measured.MEASURED_AT_ONCE or not new:
        return False
    return stream.wire_size(lo, stream.after(lo, new)) > measured.MEASURED_AT_ONCE


def _at_once(count: int, options: TreadOptions) -> int:
    """Return how many of ``count`` new entries are delivered in one step: all, without RETRY and MAXBYTES."""
    return NEW_AT_ONCE if count > NEW_AT_ONCE and (options.flags & records.HAS_RETRY or options.max_bytes) else count


class ReadSlices:
    """A read of many messages: they are delivered in slices, and the reply is sent with the last one.

    It delivers the messages that were due when the command started, then the new entries that exist when that is done
    (``NewEntries``).
    """

    __slots__ = ("_due", "_group", "_key", "_missing", "_new", "_options", "_size", "_started", "_waits")

    def __init__(self, key: bytes, options: TreadOptions, group: Group, started: int) -> None:
        self._key = key
        self._options = options
        self._group = group
        self._started = started  # the command's served time; messages that fall due later are left for the next read
        self._due: Elements | None = None  # the due messages delivered so far
        self._size = 0  # size of the elements so far, with MAXBYTES
        self._missing = 0  # 1: entries that the group did not receive are missing [17]
        self._waits = 0  # for entries that are only in the object store
        self._new: NewEntries | None = None  # None: new entries have not been reached

    def close(self) -> None:
        """Release everything: there will be no reply."""
        if self._due is not None:
            self._due.close()
        if self._new is not None:
            self._new.close()

    def _full(self) -> bool:
        """Return whether MAXBYTES allows no more elements."""
        return 0 < self._options.max_bytes <= self._size

    def _count(self) -> int:
        """Return the number of elements so far, without new entries."""
        return self._missing + (0 if self._due is None else self._due.count)

    def step(self, ctx: Context) -> Chunks | None:
        key, options, group = self._key, self._options, self._group
        stream = ctx.ks.stream(key, ctx.now)
        if stream is None or stream.groups.get(options.group) is not group:
            raise errors.quoting(errors.NO_GROUP, key, options.group)
        ctx.touch(group)
        try:
            if (self._new is None and self._redeliver(ctx, stream)) or self._deliver(ctx, stream):
                return None
        except DamagedNodeError as error:
            if not self._delivered():
                self._begin_again(error)
                raise
            ctx.ks.note_damage(error)  # the reply has what was delivered
        return self._reply(ctx, stream)

    def _begin_again(self, error: DamagedNodeError) -> None:
        """Let the next call of step() begin the read, after ``error``: it waits for entries in the object store."""
        if self._new is not None:
            self._new.close()
        self._new, self._size, self._missing = None, 0, 0
        self._waits += 1
        if self._waits > MOST_WAITS and isinstance(error, AbsentNodeError):
            error.failed = "the disk cache is too small (tier-cache)"

    def _delivered(self) -> bool:
        """Return whether anything was delivered."""
        return (self._due is not None and self._due.count > 0) or (self._new is not None and self._new.count > 0)

    def _redeliver(self, ctx: Context, stream: Stream) -> bool:
        """Deliver some due messages. Returns False if there are no more."""
        key, options, group = self._key, self._options, self._group
        if self._due is None:
            self._due = Elements(encode.null_array(ctx.session.proto))
        most = min(options.count - self._due.count, DUE_AT_ONCE)
        due = [] if self._full() else _due_ids(ctx.ks, key, most, stream, group, ctx.now, self._started)
        if not due:
            return False
        if options.max_bytes:
            due, size = _due_within(stream, due, options.max_bytes - self._size)
            self._size += size
        gone: dict[int, None] = {}
        before = self._due.count
        try:
            _add_due(stream, due, self._due, gone)
        finally:  # even if a node is damaged: what is in the reply was delivered
            due = due[: self._due.count - before]
            if due:
                _deliver(ctx, key, options, stream, group, group.offset, [], due, gone)
        return True

    def _deliver(self, ctx: Context, stream: Stream) -> bool:
        """Deliver some new entries. Returns False if there are no more."""
        group, new = self._group, self._new
        if self._full():
            return False
        if new is None:
            new = self._new = NewEntries(stream, group, self._options.count - self._count())
            if group.offset < stream.evicted_to:  # [17] (a)
                self._missing = 1
                if not new.left():
                    _deliver(ctx, self._key, self._options, stream, group, stream.evicted_to, [], [], {})
        hi = new.following(stream, group, _at_once(new.left(), self._options))
        if hi == NO_MORE:
            return False
        lo = groupmutators.cursor(stream, group)
        if self._options.max_bytes:
            room = min(self._options.max_bytes - self._size, measured.MEASURED_AT_ONCE)
            number, size = stream.fitting(lo, hi, room, 0)
            hi = stream.after(lo, number)
            self._size += size
        _deliver_new(ctx, self._key, self._options, stream, group, stream.position_of(lo), hi, [], {})
        return new.delivered(stream, group, lo, hi)

    def _reply(self, ctx: Context, stream: Stream) -> Chunks:
        parts, count, proto = list[bytes](), self._count(), ctx.session.proto
        if self._options.with_info:
            parts.append(info_element(stream, proto))
            count += 1
        if self._missing:
            parts.append(encode.null_array(proto))
        snapshot = None
        if self._new is not None:
            count += self._new.count
            snapshot = self._new.take()
        due = self._due or Elements(b"")
        return followed(encode.array_header(count) + b"".join(parts), due, snapshot)


def _serve_group(
    ctx: Context, key: bytes, options: TreadOptions, stream: Stream, group: Group, anyway: bool, served: int
) -> bytes | Chunks | None:  # fmt: skip
    """Return the reply, or None if there is nothing to deliver and the reader may wait (``anyway``: it may not). A
    delivery moves the group's offset and adds entries to its pending list."""
    proto = ctx.session.proto
    if not options.count:
        if options.with_info:
            return b"*1\r\n" + info_element(stream, proto)
        return encode.EMPTY_ARRAY
    count = options.count
    most = min(count, DUE_AT_ONCE)
    due = _due_ids(ctx.ks, key, most, stream, group, ctx.now, served)
    size = 0
    if options.max_bytes and due:
        due, size = _due_within(stream, due, options.max_bytes)
    old = Elements(encode.null_array(proto)) if due else None
    gone = NOTHING if old is None else _add_due(stream, due, old, {})
    lo = groupmutators.cursor(stream, group)
    hi = stream.after(lo, count - len(due))
    new = stream.count(lo, hi)
    if new > NEW_AT_ONCE:
        new = _at_once(new, options)
        hi = stream.after(lo, new)
    if options.max_bytes and new:
        new = 0 if size >= options.max_bytes else stream.fitting(lo, hi, options.max_bytes - size, 0)[0]
        hi = stream.after(lo, new)
    if len(due) == most < count:  # there may be more due messages; new entries come after all of them
        hi, new = lo, 0
    if lo >= hi and not due and not anyway:
        return None
    overtaken = group.offset < stream.evicted_to  # [17] (a)
    place = stream.position_of(lo) if lo < hi else None
    parts: list[bytes] = []
    if options.with_info:
        parts.append(info_element(stream, proto))
    if overtaken:
        parts.append(encode.null_array(proto))
    head, count = b"".join(parts), len(parts) + len(due) + new
    reply = entries_reply(count, head, stream, place, hi) if old is None else (
        _with_due(count, head, old, stream, place, hi)
    )  # fmt: skip
    if place is not None:
        _deliver_new(ctx, key, options, stream, group, place, hi, due, gone)
    elif due or overtaken:
        _deliver(ctx, key, options, stream, group, max(group.offset, stream.evicted_to), [], due, gone)
    return reply


def _with_due(
    count: int, head: bytes, due: Elements, stream: Stream, place: StreamPosition | None, hi: int
) -> bytes | Chunks:
    """Return entries_reply() with due messages after ``head``."""
    if not due.picked:
        return entries_reply(count, head + due.encoded(), stream, place, hi)
    snapshot = None if place is None else stream.snapshot(place.ordinal, hi)
    return followed(encode.array_header(count) + head, due, snapshot)


def _deliver_new(
    ctx: Context, key: bytes, options: TreadOptions, stream: Stream, group: Group, place: StreamPosition, hi: int,
    due: list[int], gone: dict[int, None],
) -> None:  # fmt: skip
    """Apply the effect of a read of the entries from ``place`` to before ``hi``, and of due messages."""
    if options.flags & records.HAS_RETRY:
        new = stream.raw_ids(place, hi)
        offset = int.from_bytes(new[-1], "big")
    else:  # nothing becomes pending
        new, offset = [], stream.id_before(hi)
    _deliver(ctx, key, options, stream, group, offset, new, due, gone)
    group.cursor, group.cursor_of = hi, offset


def _deliver(
    ctx: Context, key: bytes, options: TreadOptions, stream: Stream, group: Group, offset: int, new: list[bytes],
    due: list[int], gone: dict[int, None],
) -> None:  # fmt: skip
    """Apply the effect of a read: ``due`` are redelivered, except those that are ``gone``."""
    now = ctx.now
    served = ctx.served_for_deadline()
    expire_at = served + options.expire if options.expire else NEVER
    reader = groupmutators.Reader(
        now, options.retry, expire_at, options.max_deliveries, options.deadletter, options.flags
    )
    again: list[bytes] = []
    left: list[bytes] = []
    for entry_id in due:
        if entry_id in gone:
            left.append(entry_id.to_bytes(16, "big"))
        else:
            again.append(entry_id.to_bytes(16, "big"))
    groupmutators.deliver(ctx.ks, key, stream, group, offset, reader, Messages(new, again, left))


def _add_due(stream: Stream, ids: list[int], elements: Elements, gone: dict[int, None]) -> dict[int, None]:
    """Add the messages with these IDs to ``elements``. Return ``gone``, with the IDs of those without an entry."""
    for entry_id in ids:
        if not elements.add(stream, entry_id):
            elements.add_gone()
            gone[entry_id] = None
    return gone


def _due_within(stream: Stream, due: list[int], limit: int) -> tuple[list[int], int]:
    """Return the due messages that begin within ``limit`` bytes, at least one, and the size of these."""
    size = 0
    for number, entry_id in enumerate(due):
        if size >= limit and number:
            return due[:number], size
        wire = stream.find(entry_id)
        size += NULL_BYTES if wire is None else len(wire)
    return due, size


def _due_ids(ks: Keyspace, key: bytes, count: int, stream: Stream, group: Group, now: int, served: int) -> list[int]:
    """Return the IDs of due messages, at most ``count``."""
    soonest = group.pending.next_due()
    if soonest is None or soonest > served:
        return []
    leaves = group.pending.next_drop()
    if leaves is not None and leaves <= served:
        drop_overdue(ks, key, stream, group, now)  # [24]: expired messages are dropped first
    # after the offset was moved back, messages after it are delivered as new entries, but not twice in one read
    passed = max(group.offset, stream.evicted_to)
    return [entry_id for entry_id in group.pending.due(served, count) if entry_id <= passed]


def has_messages(ks: Keyspace, key: bytes, stream: Stream, group: Group, now: int) -> bool:
    """Return whether a TREAD for the group would return an entry, or a null for a message that is due and evicted."""
    if group.offset < stream.last_id and groupmutators.cursor(stream, group) < stream.next_ord:
        return True
    return bool(_due_ids(ks, key, 1, stream, group, now, ks.served(now)))
