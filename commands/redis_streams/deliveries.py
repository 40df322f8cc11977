"""Messages that XREADGROUP delivers: the effect, and their elements in the reply."""

from __future__ import annotations

from typing import Final

from commands.context import Context
from commands.redis_streams.consumers import idle_of
from commands.redis_streams.elements import ClaimedElements, XElements
from commands.redis_streams.lag import count_after
from commands.redis_streams.limits import ENTRY_MORE, ReplyLimits
from storage.groups.group import Consumer, Group
from storage.groups.pending import PendingRow
from storage.keyspace import groupmutators
from storage.keyspace.groupmutators import Messages, Ownership
from storage.streams.stream import Stream

# maximum messages without an entry that a read with CLAIM examines; the next read continues there
GONE_AT_ONCE: Final = 3000


def deliver_new(
    ctx: Context, key: bytes, stream: Stream, group: Group, consumer: Consumer, lo: int, hi: int, noack: bool
) -> None:  # fmt: skip
    """Deliver the entries from the group's cursor ``lo`` to before ``hi`` to the consumer."""
    new = stream.raw_ids(stream.position_of(lo), hi)
    last = int.from_bytes(new[-1], "big")
    entries_read = count_after(stream, group, len(new), int.from_bytes(new[0], "big"), last)
    groupmutators.own(
        ctx.ks, key, stream, group, consumer, ctx.now, Messages([] if noack else new, [], []),
        position=(last, entries_read),
    )  # fmt: skip
    group.cursor, group.cursor_of = hi, last


def deliver_again(
    ctx: Context, key: bytes, stream: Stream, group: Group, consumer: Consumer, rows: list[PendingRow],
    elements: XElements,
) -> None:  # fmt: skip
    """Redeliver the consumer's pending messages and add them to ``elements``; those without an entry stay pending."""
    again: list[bytes] = []
    for row in rows:
        if elements.add(stream, row.id):
            again.append(row.id.to_bytes(16, "big"))
        else:
            elements.add_gone_one(row.id)
    if again:
        groupmutators.own(ctx.ks, key, stream, group, consumer, ctx.now, Messages([], again, []), Ownership(quiet=True))


def add_claimed(
    stream: Stream, group: Group, rows: list[PendingRow], now: int, claimed: ClaimedElements, again: list[bytes],
    most: int, limits: ReplyLimits | None,
) -> int:  # fmt: skip
    """Add entries to ``claimed``, until it has ``most``, and their IDs to ``again``; the caller delivers these.

    Messages without an entry are unchanged. Returns their number. They are skipped (pass_idle()), so that the next read
    need not examine them.
    """
    gone: PendingRow | None = None
    count = 0
    for row in rows:
        if claimed.count >= most:
            break
        idle = idle_of(row, now, 0)
        if limits is not None:
            more = ENTRY_MORE + len(b":%d\r\n:%d\r\n" % (idle, row.deliveries))
            if not limits.admit(stream, row.id, more):
                break
        if claimed.add_claimed(stream, row.id, idle, row.deliveries):
            again.append(row.id.to_bytes(16, "big"))
        else:
            gone = row
            count += 1
    if gone is not None:
        group.pending.pass_idle(gone)
    return count
