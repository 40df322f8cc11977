"""What happens to a stream's groups: the mutators below TREAD GROUP, TACK, TNACK, TTOUCH and TGROUP.

As in ``keyspace``, each makes one effect and logs its record, and replay calls them again. The callers decide which
messages are due and which are gone; here IDs and times are explicit.
"""

from __future__ import annotations

from typing import NamedTuple

from storage import records, timers
from storage.groups.group import Group
from storage.keyspace import Keyspace
from storage.stream import Stream


class Reader(NamedTuple):
    """How the reader of a group wants its messages redelivered, in ms. Without HAS_RETRY only ``now`` has a meaning."""

    now: int
    retry: int  # ms until a message is due again
    expire_at: int  # ms since epoch at which messages delivered now are given up, or NEVER
    max_deliveries: int  # 0: no limit
    deadletter: bytes  # key; empty for none
    flags: int  # records.HAS_RETRY | HAS_MAX | HAS_DEADLETTER


def set_group(
    ks: Keyspace, key: bytes, stream: Stream, name: bytes, offset: int, ttl: int, deadline: int
) -> Group:  # fmt: skip
    """Make a group, or give an existing one another offset or TTL."""
    ks.before(key)
    group = stream.groups.get(name)
    if group is None:
        group = stream.groups[name] = Group(name, offset, ttl, deadline)
    else:
        group.offset, group.ttl, group.deadline = offset, ttl, deadline
    ks.group_changed(key, stream, group, records.group(key, name, offset, ttl, deadline))
    ks.arm_group(key, group)
    ks.signal(key)
    return group


def cursor(stream: Stream, group: Group) -> int:
    """Ordinal of the first entry that the group has not read yet; the stream's next_ord if there is none."""
    if group.cursor_of == group.offset:  # where the last read ended
        return max(group.cursor, stream.first_ord)
    return stream.ord_from(group.offset + 1)


def deliver(
    ks: Keyspace, key: bytes, stream: Stream, group: Group, offset: int, reader: Reader,
    new: list[bytes], again: list[bytes], gone: list[bytes],
) -> None:  # fmt: skip
    """One read of a group, after which its offset is ``offset``. IDs have 16 bytes each.

    ``new``: of new entries; ``again``: of due messages; ``gone``: of due messages whose entries were evicted.
    """
    ks.before(key)
    now, retry, expire_at, most, deadletter, flags = reader
    pending = group.pending
    has_retry = flags & records.HAS_RETRY
    group.offset = offset
    if has_retry and new:
        pending.add(new, now, now + retry, expire_at, retry, most, deadletter)
    if has_retry and again:
        pending.redeliver(
            again,
            now + retry,
            retry,
            most if flags & records.HAS_MAX else None,
            deadletter if flags & records.HAS_DEADLETTER else None,
        )
    elif again:
        pending.redeliver(again, now, own_retry=True)
    if gone:
        pending.remove(gone)
    group.redelivered += len(again)
    record = records.deliver(
        key, group.name, offset, now, retry, expire_at, most, deadletter, flags, new, again, gone
    )
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
    """Let messages (IDs of 16 bytes each) fall due at ``due`` (ms since epoch); returns how many were pending."""
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


def end_group(ks: Keyspace, key: bytes, stream: Stream, name: bytes) -> None:
    """Destroy the group, and then the stream if only groups kept it alive: it never had an entry [14]."""
    destroy_group(ks, key, stream, name)
    if not stream.groups and not stream.last_id:
        ks.remove(key)
