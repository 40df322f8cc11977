"""What happens to a stream's groups: the mutators below TREAD GROUP, TACK, TNACK, TTOUCH and TGROUP, and below
XREADGROUP, XACK, XCLAIM and XGROUP, which have consumers.

As in ``keyspace``, each makes one effect and logs its record, and replay calls them again. The callers decide which
messages are due and which are gone; here IDs and times are explicit.
"""

from __future__ import annotations

from storage.groups.group import Consumer, Group
from storage.keyspace import events
from storage.keyspace.keyspace import Keyspace
from storage.model import records, timers
from storage.streams.stream import Stream


class Reader:
    """How the reader of a group wants its messages redelivered, in ms. Without HAS_RETRY only ``now`` has a meaning."""

    __slots__ = ("deadletter", "expire_at", "flags", "max_deliveries", "now", "retry")

    def __init__(
        self, now: int, retry: int, expire_at: int, max_deliveries: int, deadletter: bytes, flags: int
    ) -> None:  # fmt: skip
        self.now = now
        self.retry = retry  # ms until a message is due again
        self.expire_at = expire_at  # when messages delivered now are given up, in served time (ms), or NEVER
        self.max_deliveries = max_deliveries  # 0: no limit
        self.deadletter = deadletter  # key; empty for none
        self.flags = flags  # records.HAS_RETRY | HAS_MAX | HAS_DEADLETTER


def set_group(
    ks: Keyspace, key: bytes, stream: Stream, name: bytes, offset: int, ttl: int, deadline: int
) -> Group:  # fmt: skip
    """Make a group, or give an existing one another offset or TTL."""
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
    """Ordinal of the first living entry that the group has not read yet; the stream's next_ord if there is none."""
    if group.cursor_of == group.offset:  # where the last read ended
        at = max(group.cursor, stream.first_ord)
        return at if stream.marks is None else stream.marks.live_from(at)
    return stream.ord_from(group.offset + 1)


def deliver(
    ks: Keyspace, key: bytes, stream: Stream, group: Group, offset: int, reader: Reader,
    new: list[bytes], again: list[bytes], gone: list[bytes],
) -> None:  # fmt: skip
    """One read of a group, after which its offset is ``offset``. IDs have 16 bytes each.

    ``new``: of new entries; ``again``: of due messages; ``gone``: of due messages whose entries were evicted.
    """
    ks.before(key)
    now, retry, expire_at = reader.now, reader.retry, reader.expire_at
    served = now - ks.away  # what the log says, whatever the bounds of served time are
    most, deadletter, flags = reader.max_deliveries, reader.deadletter, reader.flags
    pending = group.pending
    has_retry = flags & records.HAS_RETRY
    if group.entries_read >= 0 and group.offset != offset:
        # XSETID may have said that fewer entries were added than are gone
        group.entries_read = max(-1, stream.ord_from(offset + 1) + stream.entries_added - stream.next_ord)
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
    """Remove messages from the pending list (IDs of 16 bytes each); returns how many of them were pending."""
    ks.before(key)
    removed = group.pending.remove(ids)
    if removed:
        ks.group_changed(key, stream, group, records.ack(key, group.name, ids))
    return removed


def set_due(ks: Keyspace, key: bytes, stream: Stream, group: Group, due: int, ids: list[bytes]) -> int:
    """Let messages (IDs of 16 bytes each) fall due at a served time (ms); returns how many were pending."""
    ks.before(key)
    found = group.pending.set_due(ids, due)
    if found:
        ks.group_changed(key, stream, group, records.due(key, group.name, due, found))
        ks.arm_group(key, group)
        ks.signal(key)
    return len(found)


def drop(
    ks: Keyspace, key: bytes, stream: Stream, group: Group, entry_id: int, reason: str,
    deadletter: bytes, ms: int, seq: int, wire: bytes,
) -> None:  # fmt: skip
    """A message is given up. Where ``deadletter`` names a stream, the same record appends ``wire`` to it as ms.seq."""
    ks.before(key)
    group.pending.remove([entry_id.to_bytes(16, "big")])
    group.expired += 1
    record = records.drop(key, group.name, entry_id, reason, deadletter, ms, seq, wire)
    ks.group_changed(key, stream, group, record)
    if deadletter:
        group.deadlettered += 1
        target = ks.keys.get(deadletter)
        if not isinstance(target, Stream):
            target = ks.create_stream(deadletter)
        ks.append_unlogged(deadletter, target, ms, seq, wire)


def destroy_group(ks: Keyspace, key: bytes, stream: Stream, name: bytes) -> None:
    """Remove the group and its pending list; its blocked readers must be told."""
    ks.before(key)
    group = stream.groups.pop(name)
    ks.group_gone(key, stream, group, records.destroy(key, name))
    ks.signal(key)


def end_group(ks: Keyspace, key: bytes, stream: Stream, name: bytes, event: bytes = b"tgroup-destroy") -> None:
    """Destroy the group, and then the stream if only groups kept it alive: it never had an entry [14].

    One that XGROUP made is ``lone``, and stays. ``event`` is fired, and ``del`` for the stream.
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
    """Make a group without a time to live; there must be none of that name. ``entries_read``: -1 if not known.

    ``lone``: the stream is made for it, and lives on when the group is gone.
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
    """Give a group another offset. ``entries_read``: -1 if not known."""
    ks.before(key)
    group.offset, group.entries_read = offset, entries_read
    ks.group_changed(key, stream, group, records.xgroup(key, group.name, offset, entries_read, 0))
    ks.signal(key)


def consumer(
    ks: Keyspace, key: bytes, stream: Stream, group: Group, name: bytes, now: int
) -> tuple[Consumer, bool]:  # fmt: skip
    """The consumer of that name, and whether it had to be made. Both are a sign of life, which isn't logged."""
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
    """Remove a consumer and the messages that it owns; returns how many these were."""
    ks.before(key)
    del group.consumers[consumer.name], group.owners[consumer.number]
    dropped = group.pending.forget(consumer.number)
    ks.group_changed(key, stream, group, records.forget(key, group.name, consumer.number))
    return dropped


def own(
    ks: Keyspace, key: bytes, stream: Stream, group: Group, consumer: Consumer | None, now: int, offset: int,
    entries_read: int, new: list[bytes], again: list[bytes], gone: list[bytes], count: int | None = None,
    last: int | None = None, increment: bool = True, decrement: bool = False, quiet: bool = False,
) -> None:  # fmt: skip
    """A consumer gets messages, after which the group's offset and its entries read are these. IDs have 16 bytes each.

    ``new``: of messages that become pending; those that are pending, because the offset was moved back, begin anew.
    ``again``: of pending ones that become the consumer's, whoever's they were: no message of a consumer falls due,
    expires or becomes a dead letter. ``gone``: of those that leave the pending list. ``consumer``: None to give
    messages back, so that they are nobody's. ``count``: of deliveries from now on; None is 1 for new ones, and for
    others one more, one less or as many as they had, by ``increment`` and ``decrement``. ``last``: when they were
    delivered, now unless it is given. ``quiet``: the consumer doesn't count as active by that. All that is one record,
    or none where nothing changes.
    """
    if not (new or again or gone) and group.offset == offset and group.entries_read == entries_read:
        return
    ks.before(key)
    pending = group.pending
    if consumer is None:
        number = 0
        last = pending.next_of_nobody(now) if last is None else last
    else:
        number = consumer.number
        last = now if last is None else last
        if (new or again) and not quiet:
            consumer.active = now
        consumer.seen = max(consumer.seen, now)
    flags = step = 0
    if count is not None:
        flags = records.HAS_COUNT
    elif decrement:
        flags, step = records.DECREMENT, -1
    elif increment:
        flags, step = records.INCREMENT, 1
    if quiet:
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
