"""Messages that are given up: because they expired, or after so many deliveries without an acknowledgement [23]."""

from __future__ import annotations

from typing import Final

from resp.errors import CommandError
from storage.groups.group import Group
from storage.groups.pending import PendingRow
from storage.keyspace import events, groupmutators
from storage.keyspace.keyspace import Keyspace
from storage.model import timers
from storage.model.entries import entry_wire, id_bulk, wire_values
from storage.model.ids import format_id
from storage.streams.stream import Stream

AT_ONCE: Final = 1000  # messages given up by one call; the rest are given up a moment later
BYTES_AT_ONCE: Final = 4 << 20  # of dead letters, each of which also names its stream, its group and its key
TRY_AGAIN_MS: Final = 1000  # after a dead letter that could not be appended


def drop_overdue(ks: Keyspace, key: bytes, stream: Stream, group: Group, now: int) -> int:
    """Give up messages of a group whose time has come; returns how many, or AT_ONCE if that was work enough.

    Only a leader does this. A message whose dead letter can't be appended, because that key holds a string, stays
    pending for now.
    """
    dropped, kept, size, served = 0, False, 0, ks.served(now)
    for entry_id, reason in group.pending.drops(served, AT_ONCE):
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
        groupmutators.drop(ks, key, stream, group, entry_id, reason, row.deadletter, ms, seq, wire)
        if row.deadletter:
            ks.notify(events.STREAM, b"tappend", row.deadletter)
        dropped += 1
        size += len(wire) + len(key) + len(group.name) + len(row.deadletter)
        if size > BYTES_AT_ONCE:
            dropped = AT_ONCE
            break
    if kept:
        ks.timers.arm(timers.PENDING_DROP, key, group.name, served + TRY_AGAIN_MS)
    else:  # also if nothing was dropped: the messages of this timer may be acknowledged, and others leave later
        ks.arm_group(key, group)
    return dropped


def dead_letter(ms: int, seq: int, wire: bytes | None, key: bytes, group: bytes, row: PendingRow, reason: str) -> bytes:
    """The dead letter with the ID ms.seq: the message's fields, followed by where it came from and why.

    ``wire`` is the message's entry, None if that was evicted.
    """
    values = wire_values(wire) if wire is not None else []
    values += (
        b"__stream", key, b"__group", group, b"__id", format_id(row.id),
        b"__deliveries", b"%d" % row.deliveries, b"__reason", reason.encode(),
    )  # fmt: skip
    return entry_wire(id_bulk(ms, seq), values)
