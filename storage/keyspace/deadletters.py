"""Removes messages that expired or reached their maximum number of deliveries, and appends their dead letters [23]."""

from __future__ import annotations

from typing import Final

from resp.errors import CommandError
from storage.groups.group import Group
from storage.groups.pending import PendingRow
from storage.keyspace import events, groupmutators
from storage.keyspace.groupmutators import GroupDeadLetter
from storage.keyspace.keyspace import Keyspace
from storage.model import timers
from storage.model.entries import entry_wire, id_bulk, wire_values
from storage.model.ids import format_id
from storage.streams.stream import Stream

AT_ONCE: Final = 1000  # maximum messages that one call removes; the others are removed shortly after
BYTES_AT_ONCE: Final = 4 << 20  # size of the dead letters, with the names of their stream, group, and key
RETRY_MS: Final = 1000  # delay after a dead letter could not be appended


def drop_overdue(ks: Keyspace, key: bytes, stream: Stream, group: Group, now: int) -> int:
    """Remove overdue messages of a group. Return their number, or AT_ONCE if there may be more.

    Only a leader does this. A message whose dead letter cannot be appended stays pending and is retried later: the key
    holds a string, or another group of a cluster has its slot.
    """
    dropped, postponed, size, served = 0, False, 0, ks.served(now)
    for entry_id, reason in group.pending.drops(served, AT_ONCE):
        row = group.pending.get(entry_id)
        if row is None:
            continue
        letter = None
        if row.deadletter:
            if ks.foreign is not None and ks.foreign(row.deadletter):
                postponed = True
                continue
            try:
                target = ks.stream(row.deadletter, now)
                ms, seq = ks.next_id(target, now)
            except CommandError:
                postponed = True
                continue
            wire = dead_letter(ms, seq, stream.find(entry_id), key, group.name, row, reason)
            letter = GroupDeadLetter(row.deadletter, ms, seq, wire)
            size += len(wire)
        groupmutators.drop(ks, key, stream, group, entry_id, reason, letter)
        if letter is not None:
            ks.notify(events.STREAM, b"tappend", row.deadletter)
        dropped += 1
        size += len(key) + len(group.name) + len(row.deadletter)
        if size > BYTES_AT_ONCE:
            dropped = AT_ONCE
            break
    if postponed:
        ks.timers.arm(timers.PENDING_DROP, key, group.name, served + RETRY_MS)
    else:  # even if nothing was removed: the timer's messages may be acknowledged, and others may leave later
        ks.arm_group(key, group)
    return dropped


def dead_letter(ms: int, seq: int, wire: bytes | None, key: bytes, group: bytes, row: PendingRow, reason: str) -> bytes:
    """Return the dead letter with the ID ms.seq: the fields of the message, its origin, and the reason.

    ``wire``: the message's entry; None if the entry was evicted.
    """
    values = wire_values(wire) if wire is not None else []
    values += (
        b"__stream", key, b"__group", group, b"__id", format_id(row.id),
        b"__deliveries", b"%d" % row.deliveries, b"__reason", reason.encode(),
    )  # fmt: skip
    return entry_wire(id_bulk(ms, seq), values)
