"""Consumers, and how pending messages are shown: whose they are, and for how long they have been idle.

Nobody owns what TREAD delivered, nor what XNACK gave back. Both have an empty name; what was given back has no idle
time: -1, and 0 as the time of its delivery.
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

GIVEN_BACK: Final = -1  # as an idle time


def consumer_of(ctx: Context, key: bytes, stream: Stream, group: Group, name: bytes) -> Consumer:
    """The consumer of that name, who is there now; made if there is none. Raises CommandError for a name that is too
    long."""
    if len(name) > LONGEST_NAME and name not in group.consumers:
        raise errors.long_name("consumer", len(name), LONGEST_NAME)
    consumer, made = groupmutators.consumer(ctx.ks, key, stream, group, name, ctx.now)
    if made:
        ctx.ks.notify(events.STREAM, b"xgroup-createconsumer", key)
    return consumer


def is_given_back(row: PendingRow) -> bool:
    return not row.owner and not row.due


def idle_of(row: PendingRow, now: int, away: int) -> int:
    """ms since it was delivered last; GIVEN_BACK: it was given back. ``away``: the keyspace's."""
    return GIVEN_BACK if is_given_back(row) else max(0, now - row.delivered(away))


def is_idle(row: PendingRow, least: int, now: int, away: int) -> bool:
    """Whether it has been idle for at least so many ms."""
    return is_given_back(row) or now - row.delivered(away) >= least


def owner_of(owners: dict[int, Consumer], row: PendingRow) -> bytes:
    """The name of its consumer, as a bulk string. ``owners``: by their numbers."""
    return encode.bulk(owners[row.owner].name) if row.owner else b"$0\r\n\r\n"
