"""Consumers, and the owner and idle time of pending messages in replies.

Messages that TREAD delivered or XNACK returned have no owner, and an empty name in replies. A returned message has the
idle time -1 and the delivery time 0.
"""

from __future__ import annotations

from typing import Final

from commands.context import Context
from commands.parse import LONGEST_NAME
from resp import errors
from resp import reply as encode
from storage.groups.group import Consumer, Group
from storage.groups.pending import PendingRow
from storage.keyspace import events, groupmutators
from storage.streams.stream import Stream

RETURNED: Final = -1  # idle time of returned messages


def consumer_of(ctx: Context, key: bytes, stream: Stream, group: Group, name: bytes) -> Consumer:
    """Return the consumer of that name, which is active now. Create it if necessary; CommandError if it is too long."""
    if len(name) > LONGEST_NAME and name not in group.consumers:
        raise errors.long_name("consumer", len(name), LONGEST_NAME)
    ks = ctx.ks
    before = len(ks.log) + ks.changes.count
    consumer, made = groupmutators.consumer(ks, key, stream, group, name, ctx.now)
    if made:
        ks.repeatable += len(ks.log) + ks.changes.count - before
        ctx.ks.notify(events.STREAM, b"xgroup-createconsumer", key)
    return consumer


def is_returned(row: PendingRow) -> bool:
    return not row.owner and not row.due


def idle_of(row: PendingRow, now: int, away: int) -> int:
    """Return ms since the last delivery; RETURNED if the message was returned. ``away``: the keyspace's."""
    return RETURNED if is_returned(row) else max(0, now - row.delivered(away))


def is_idle(row: PendingRow, least: int, now: int, away: int) -> bool:
    """Return whether the message has been idle for at least ``least`` ms."""
    return is_returned(row) or now - row.delivered(away) >= least


def owner_of(owners: dict[int, Consumer], row: PendingRow) -> bytes:
    """Return the name of the message's consumer, as a bulk string. ``owners``: consumers by number."""
    return encode.bulk(owners[row.owner].name) if row.owner else b"$0\r\n\r\n"
