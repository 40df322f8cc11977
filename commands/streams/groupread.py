"""Reading for a group: due messages first, then new entries. Semantics [14] to [21].

A read first decides (which messages are due, which entries are new, what is missing), then makes one effect of it
(``effects.deliver``), so that one record carries the whole read.
"""

from __future__ import annotations

from typing import Final

from commands.context import Block, Chunks, Context, Reply, Slices
from commands.streams.readargs import Position, ReadOptions
from commands.streams.replies import entries_reply, info_element
from resp import errors
from resp import reply as encode
from storage.groups import effects
from storage.groups.group import Group
from storage.groups.overdue import drop_overdue
from storage.keyspace import Keyspace
from storage.stream import Stream
from storage.timers import NEVER

DUE_AT_ONCE: Final = 1000  # due messages in a slice; a reader that waited gets at most so many


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
        return _serve_group(ctx, self.key, self.options, stream, group, False, ctx.now, [])

    def wake_at(self, ctx: Context) -> int | None:
        stream = ctx.ks.keys.get(self.key)
        group = stream.groups.get(self.name) if isinstance(stream, Stream) else None
        return group.pending.next_due() if group is not None else None


def read_group(ctx: Context, key: bytes, position: Position, options: ReadOptions) -> Reply:
    """TREAD with GROUP."""
    ks, now, name = ctx.ks, ctx.now, options.group
    if options.deadletter:
        ks.stream(options.deadletter, now)  # raises WRONGTYPE now rather than when a message is given up
    stream = ks.read_stream(key, now)
    group = stream.groups.get(name) if stream is not None else None
    if stream is None or group is None:
        if stream is None:
            stream = ks.create_stream(key)
        offset = position.id
        if position.from_now:
            offset = stream.last_id
        elif position.zero:
            offset = stream.evicted_to  # the beginning of what there is: nothing counts as missing
        deadline = now + options.ttl if options.ttl else NEVER
        group = effects.set_group(ks, key, stream, name, offset, options.ttl, deadline)
    elif group.ttl != options.ttl:
        deadline = now + options.ttl if options.ttl else NEVER
        effects.set_group(ks, key, stream, name, group.offset, options.ttl, deadline)
    else:
        group.touch(now)
    if options.count > DUE_AT_ONCE and group.pending.due_at(now) >= DUE_AT_ONCE:
        return Slices(DueSlices(key, options, group, now).step, True)
    reply = _serve_group(ctx, key, options, stream, group, options.block < 0, now, [])
    if reply is not None:
        return reply
    null = encode.null_array(ctx.session.proto)
    return null if ctx.in_exec else GroupRead(key, options.deadline(now), null, options)


class DueSlices:
    """A read of many due messages: they are delivered in slices, and the reply comes with the last one."""

    __slots__ = ("_group", "_key", "_moment", "_options", "_sent")

    def __init__(self, key: bytes, options: ReadOptions, group: Group, moment: int) -> None:
        self._key = key
        self._options = options
        self._group = group
        self._moment = moment  # of the command: what falls due later, maybe once more, is left for the next one
        self._sent: list[bytes] = []

    def step(self, ctx: Context) -> bytes | Chunks | None:
        key, options, group = self._key, self._options, self._group
        stream = ctx.ks.stream(key, ctx.now)
        if stream is None or stream.groups.get(options.group) is not group:
            raise errors.no_group(key, options.group)
        left = options.count - len(self._sent)
        due, gone, wires = _due(ctx.ks, key, min(left, DUE_AT_ONCE), stream, group, self._moment)
        if not due:
            return _serve_group(ctx, key, options, stream, group, True, self._moment, self._sent)
        group.touch(ctx.now)
        null = encode.null_array(ctx.session.proto)
        self._sent += [null if wire is None else wire for wire in wires]
        _deliver(ctx, key, options, stream, group, group.offset, [], due, gone)
        return None


def _serve_group(
    ctx: Context, key: bytes, options: ReadOptions, stream: Stream, group: Group, anyway: bool, moment: int,
    sent: list[bytes],
) -> bytes | Chunks | None:  # fmt: skip
    """The reply, or None if there is nothing to deliver and the reader may wait (``anyway``: it may not).

    What is delivered moves the group's offset and is added to its pending list. ``moment``: messages that are due then
    are delivered; ``sent``: those that slices before this one have delivered.
    """
    ks, now, proto = ctx.ks, ctx.now, ctx.session.proto
    group.touch(now)
    if not options.count:
        if options.with_info:
            return b"*1\r\n" + info_element(stream, proto)
        return encode.EMPTY_ARRAY
    count = options.count - len(sent)
    most = min(count, DUE_AT_ONCE)
    due, gone, old = _due(ks, key, most, stream, group, moment)
    lo = effects.cursor(stream, group)
    hi = min(lo + count - len(due), stream.next_ord)
    if len(due) == most < count:  # there may be more: new entries come after all of them
        hi = lo
    if lo >= hi and not due and not anyway:
        return None
    overtaken = group.offset < stream.evicted_to  # [17] (a)
    place = stream.place(lo) if lo < hi else None
    new = stream.raw_ids(place, hi) if place is not None else []
    offset = int.from_bytes(new[-1], "big") if new else max(group.offset, stream.evicted_to)
    parts: list[bytes] = []
    if options.with_info:
        parts.append(info_element(stream, proto))
    null = encode.null_array(proto)
    if overtaken:
        parts.append(null)
    parts += sent
    if old:
        parts += [null if wire is None else wire for wire in old]
    reply = entries_reply(len(parts) + len(new), b"".join(parts), stream, place, hi)
    if due or new or overtaken:
        _deliver(ctx, key, options, stream, group, offset, new, due, gone)
        if new:
            group.cursor, group.cursor_of = hi, offset
    return reply


def _deliver(
    ctx: Context, key: bytes, options: ReadOptions, stream: Stream, group: Group, offset: int, new: list[bytes],
    due: list[int], gone: dict[int, None],
) -> None:  # fmt: skip
    """Make the effect of a read: ``due`` are delivered once more, but for those that are ``gone``."""
    now = ctx.now
    expire_at = now + options.expire if options.expire else NEVER
    reader = effects.Reader(now, options.retry, expire_at, options.max_deliveries, options.deadletter, options.flags)
    again = [entry_id.to_bytes(16, "big") for entry_id in due if entry_id not in gone]
    effects.deliver(
        ctx.ks, key, stream, group, offset, reader, new, again, [entry_id.to_bytes(16, "big") for entry_id in gone]
    )


def _due(
    ks: Keyspace, key: bytes, count: int, stream: Stream, group: Group, now: int
) -> tuple[list[int], dict[int, None], list[bytes | None]]:
    """Messages that are due, at most ``count``: all IDs, the IDs of evicted ones, and the entries (None if evicted)."""
    soonest = group.pending.next_due()
    if soonest is None or soonest > now:
        return [], {}, []
    leaves = group.pending.next_drop()
    if leaves is not None and leaves <= now:
        drop_overdue(ks, key, stream, group, now)  # [24]: expired ones are dropped first
    # after a rewind, messages after the offset are delivered as new entries; not twice in one read
    passed = max(group.offset, stream.evicted_to)
    ids = [entry_id for entry_id in group.pending.due(now, count) if entry_id <= passed]
    wires = [stream.find(entry_id) for entry_id in ids]
    gone = {entry_id: None for entry_id, wire in zip(ids, wires, strict=True) if wire is None}
    return ids, gone, wires
