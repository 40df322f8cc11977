"""The mutators of groups: the effects of TREAD GROUP, TACK, TNACK, TTOUCH, and TGROUP, and of XREADGROUP, XACK, XCLAIM,
and XGROUP, whose groups have consumers.

As in ``keyspace``, each mutator applies one effect and logs its record, and replay calls the same mutators. The callers
decide which messages are due and which entries were deleted. IDs and times are explicit arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from resp.errors import DamagedNodeError
from storage.groups.group import Consumer, Group
from storage.keyspace import events
from storage.keyspace.keyspace import Keyspace
from storage.model import records, timers
from storage.streams.stream import Stream


class Reader:
    """The redelivery options of a group's reader, in ms. Without HAS_RETRY, only ``now`` is used."""

    __slots__ = ("deadletter", "expire_at", "flags", "max_deliveries", "now", "retry")

    def __init__(
        self, now: int, retry: int, expire_at: int, max_deliveries: int, deadletter: bytes, flags: int
    ) -> None:  # fmt: skip
        self.now = now
        self.retry = retry  # ms until a message is due again
        self.expire_at = expire_at  # when messages delivered now expire, in served time (ms), or NEVER
        self.max_deliveries = max_deliveries  # 0: no limit
        self.deadletter = deadletter  # key; empty: no dead letters
        self.flags = flags  # records.HAS_RETRY | HAS_MAX | HAS_DEADLETTER


class Messages:
    """The messages that one effect changes; IDs of 16 bytes each."""

    __slots__ = ("again", "gone", "new")

    def __init__(self, new: list[bytes], again: list[bytes], gone: list[bytes]) -> None:
        self.new = new  # delivered for the first time
        self.again = again  # pending messages that are delivered again, or transferred
        self.gone = gone  # pending messages whose entries were deleted


class Ownership:
    """The number of deliveries and the last delivery of messages that a consumer gets."""

    __slots__ = ("count", "last", "quiet", "step")

    def __init__(self, count: int | None = None, last: int | None = None, step: int = 1, quiet: bool = False) -> None:
        self.count = count  # number of deliveries; None: 1 for new messages, and ``step`` is added for others
        self.last = last  # time of the last delivery; None: now
        self.step = step  # 1, 0, or -1
        self.quiet = quiet  # the consumer does not count as active


@dataclass(slots=True)
class GroupDeadLetter:
    """An entry that is appended to a dead-letter stream."""

    key: bytes
    ms: int
    seq: int
    wire: bytes


DELIVERED_NOW: Final = Ownership()
SAME: Final = -2  # instead of entries read
# A value and not None: compiled, a tuple that can be None is an object, which takes 1 % of the instructions of reading
# and acknowledging 10 messages.
SAME_POSITION: Final = (0, SAME)


def set_group(
    ks: Keyspace, key: bytes, stream: Stream, name: bytes, offset: int, ttl: int, deadline: int
) -> Group:  # fmt: skip
    """Create a group, or change the offset and TTL of an existing one."""
    ks.before(key)
    group = stream.groups.get(name)
    if group is None:
        group = stream.groups[name] = Group(name, offset, ttl, deadline)
    else:
        if group.offset != offset:
            group.entries_read = -1
        group.offset, group.ttl, group.deadline = offset, ttl, deadline
    ks.group_changed(key, stream, group, records.group(key, name, offset, ttl, deadline))
    ks.arm_group(key, group)
    ks.signal(key)
    return group


def cursor(stream: Stream, group: Group) -> int:
    """Return the ordinal of the first living entry after the group's offset; next_ord if there is none."""
    if group.cursor_of == group.offset:  # where the last read ended
        at = max(group.cursor, stream.first_ord)
        return at if stream.tombstones is None else stream.tombstones.live_from(at)
    return stream.ord_from(group.offset + 1)


def deliver(
    ks: Keyspace, key: bytes, stream: Stream, group: Group, offset: int, reader: Reader, messages: Messages
) -> None:  # fmt: skip
    """Deliver messages to a reader of the group and set the group's offset."""
    ks.before(key)
    now, retry, expire_at = reader.now, reader.retry, reader.expire_at
    served = now - ks.away  # as logged, without the bounds of served time
    most, deadletter, flags = reader.max_deliveries, reader.deadletter, reader.flags
    new, again, gone = messages.new, messages.again, messages.gone
    pending = group.pending
    has_retry = flags & records.HAS_RETRY
    if group.entries_read >= 0 and group.offset != offset:
        # XSETID can set the number of added entries to less than that of deleted ones
        try:
            group.entries_read = max(-1, stream.ord_from(offset + 1) + stream.entries_added - stream.next_ord)
        except DamagedNodeError:  # a replica may have the damage, and must apply the record
            group.entries_read = -1
    group.offset = offset
    if has_retry and new:
        pending.add(new, now, served + retry, expire_at, retry, most, deadletter)
    if has_retry and again:
        pending.redeliver(
            again,
            served + retry,
            retry,
            most if flags & records.HAS_MAX else None,
            deadletter if flags & records.HAS_DEADLETTER else None,
        )
    elif again:
        pending.redeliver(again, served, own_retry=True)
    if gone:
        pending.remove(gone)
    group.redelivered += len(again)
    record = records.deliver(key, group.name, offset, now, retry, expire_at, most, deadletter, flags, new, again, gone)
    ks.group_changed(key, stream, group, record)
    if expire_at or most or again:
        leaves = pending.next_drop()
        if leaves is not None:
            ks.timers.arm(timers.PENDING_DROP, key, group.name, leaves)


def ack(ks: Keyspace, key: bytes, stream: Stream, group: Group, ids: list[bytes]) -> int:
    """Remove messages (IDs of 16 bytes each) from the pending list. Return how many of them were pending."""
    ks.before(key)
    removed = group.pending.remove(ids)
    if removed:
        ks.group_changed(key, stream, group, records.ack(key, group.name, ids))
    return removed


def set_due(ks: Keyspace, key: bytes, stream: Stream, group: Group, due: int, ids: list[bytes]) -> int:
    """Set the due time (served time, ms) of messages (IDs of 16 bytes each). Return how many were pending."""
    ks.before(key)
    found = group.pending.set_due(ids, due)
    if found:
        ks.group_changed(key, stream, group, records.due(key, group.name, due, found))
        ks.arm_group(key, group)
        ks.signal(key)
    return len(found)


def drop(
    ks: Keyspace, key: bytes, stream: Stream, group: Group, entry_id: int, reason: str, letter: GroupDeadLetter | None
) -> None:  # fmt: skip
    """Remove a message that was not acknowledged in time. The same record appends the dead letter, if there is one."""
    ks.before(key)
    group.pending.remove([entry_id.to_bytes(16, "big")])
    group.expired += 1
    if letter is None:
        ks.group_changed(key, stream, group, records.drop(key, group.name, entry_id, reason, b"", 0, 0, b""))
        return
    record = records.drop(key, group.name, entry_id, reason, letter.key, letter.ms, letter.seq, letter.wire)
    ks.group_changed(key, stream, group, record)
    group.deadlettered += 1
    target = ks.keys.get(letter.key)
    if not isinstance(target, Stream):
        target = ks.create_stream(letter.key)
    ks.append_unlogged(letter.key, target, letter.ms, letter.seq, letter.wire)


def destroy_group(ks: Keyspace, key: bytes, stream: Stream, name: bytes) -> None:
    """Remove a group and its pending list, and unblock its blocked readers."""
    ks.before(key)
    group = stream.groups.pop(name)
    ks.group_gone(key, stream, group, records.destroy(key, name))
    ks.signal(key)


def end_group(ks: Keyspace, key: bytes, stream: Stream, name: bytes, event: bytes = b"tgroup-destroy") -> None:
    """Remove a group, and then its stream if it never had an entry and has no other groups [14].

    A stream that XGROUP created is ``lone`` and is not removed. Publishes ``event``, and ``del`` for the stream.
    """
    destroy_group(ks, key, stream, name)
    ks.notify(events.STREAM, event, key)
    if not (stream.groups or stream.last_id or stream.next_ord or stream.lone):
        ks.remove(key)
        ks.notify(events.GENERIC, b"del", key)


# -- consumers -----------------------------------------------------------------------------------------------------
def create_group(
    ks: Keyspace, key: bytes, stream: Stream, name: bytes, offset: int, entries_read: int, lone: bool = False
) -> Group:  # fmt: skip
    """Create a group without a TTL. Its name must be new. ``entries_read``: -1 if unknown.

    ``lone``: the stream was created for the group and remains after the group is removed.
    """
    ks.before(key)
    group = stream.groups[name] = Group(name, offset)
    group.entries_read = entries_read
    if lone:
        stream.lone = True
    ks.group_changed(key, stream, group, records.xgroup(key, name, offset, entries_read, records.LONE if lone else 0))
    ks.signal(key)
    return group


def move_group(ks: Keyspace, key: bytes, stream: Stream, group: Group, offset: int, entries_read: int) -> None:
    """Change the offset of a group. ``entries_read``: -1 if unknown."""
    ks.before(key)
    group.offset, group.entries_read = offset, entries_read
    ks.group_changed(key, stream, group, records.xgroup(key, group.name, offset, entries_read, 0))
    ks.signal(key)


def consumer(
    ks: Keyspace, key: bytes, stream: Stream, group: Group, name: bytes, now: int
) -> tuple[Consumer, bool]:  # fmt: skip
    """Return the consumer with this name, and whether it was created. Extends the group's deadline (not logged)."""
    served = ks.served(now)
    found = group.consumers.get(name)
    if found is not None:
        group.touch(served)
        found.seen = now
        return found, False
    ks.before(key)
    group.touch(served)
    found = Consumer(name, group.free_number(), now)
    group.add_consumer(found)
    group.next_consumer = max(group.next_consumer, found.number + 1)
    ks.group_changed(key, stream, group, records.consumer(key, group.name, found.number, now, name))
    return found, True


def forget_consumer(ks: Keyspace, key: bytes, stream: Stream, group: Group, consumer: Consumer) -> int:
    """Remove a consumer and its messages. Return the number of messages."""
    ks.before(key)
    del group.consumers[consumer.name], group.owners[consumer.number]
    dropped = group.pending.forget(consumer.number)
    ks.group_changed(key, stream, group, records.forget(key, group.name, consumer.number))
    return dropped


def own(
    ks: Keyspace, key: bytes, stream: Stream, group: Group, consumer: Consumer | None, now: int, messages: Messages,
    terms: Ownership = DELIVERED_NOW, position: tuple[int, int] = SAME_POSITION,
) -> None:  # fmt: skip
    """Give messages to a consumer and move the group, in one record (none if nothing changes).

    ``position``: the group's new offset and entries read.

    New messages that are still pending, because the offset was moved back, are counted as new. Messages of a consumer
    never fall due, never expire, and never become dead letters. If ``consumer`` is None, the messages are returned to
    the group and have no owner.
    """
    new, again, gone = messages.new, messages.again, messages.gone
    offset, entries_read = position
    if entries_read == SAME:
        offset, entries_read = group.offset, group.entries_read
    if not (new or again or gone) and group.offset == offset and group.entries_read == entries_read:
        return
    ks.before(key)
    pending = group.pending
    if consumer is None:
        number = 0
        last = pending.next_of_nobody(now) if terms.last is None else terms.last
    else:
        number = consumer.number
        last = now if terms.last is None else terms.last
        if (new or again) and not terms.quiet:
            consumer.active = now
        consumer.seen = max(consumer.seen, now)
    count, step, flags = terms.count, terms.step, 0
    if count is not None:
        flags = records.HAS_COUNT
    elif step:
        flags = records.DECREMENT if step < 0 else records.INCREMENT
    if terms.quiet:
        flags |= records.QUIET
    group.offset, group.entries_read = offset, entries_read
    if again:
        pending.own(again, number, last, -1 if count is None else count, step)
    if new:
        pending.own_new(new, number, last, 1 if count is None else count)
    if gone:
        pending.remove(gone)
    record = records.own(key, group.name, number, flags, offset, entries_read, last, now, count or 0, new, again, gone)
    ks.group_changed(key, stream, group, record)
    if consumer is None:
        ks.signal(key)
