"""Messages that XREADGROUP delivers: the effect, and how the reply has them."""

from __future__ import annotations

from typing import Final

from commands.context import Context
from commands.redis_streams.ids import xid_bulk
from commands.redis_streams.lag import count_after
from commands.redis_streams.owners import idle_of
from resp import reply as encode
from storage.groups import effects
from storage.groups.group import Consumer, Group
from storage.groups.pending import PendingRow
from storage.nodes.dashed import dashed
from storage.stream import Stream

GONE_AT_ONCE: Final = 3000  # messages without an entry that a read with CLAIM looks at; the next one goes on there
_NEVER_DELIVERED: Final = b":0\r\n:0\r\n"  # idle time and deliveries of a new entry, in a reply to CLAIM


def deliver_new(
    ctx: Context, key: bytes, stream: Stream, group: Group, consumer: Consumer, lo: int, hi: int, noack: bool
) -> None:  # fmt: skip
    """The consumer gets the entries from the group's cursor ``lo`` to before ``hi``."""
    new = stream.raw_ids(stream.place(lo), hi)
    last = int.from_bytes(new[-1], "big")
    entries_read = count_after(stream, group, len(new), int.from_bytes(new[0], "big"), last)
    effects.own(ctx.ks, key, stream, group, consumer, ctx.now, last, entries_read, [] if noack else new, [], [])
    group.cursor, group.cursor_of = hi, last


def deliver_again(
    ctx: Context, key: bytes, stream: Stream, group: Group, consumer: Consumer, rows: list[PendingRow]
) -> bytes:  # fmt: skip
    """Deliver what the consumer has pending once more; returns the elements of the reply. Entries that are gone are
    null, and stay pending."""
    null = encode.null_array(ctx.session.proto)
    entries: list[bytes] = []
    again: list[bytes] = []
    for row in rows:
        wire = stream.find(row.id)
        if wire is None:
            entries.append(b"*2\r\n" + xid_bulk(row.id) + null)
        else:
            entries.append(dashed(wire))
            again.append(row.id.to_bytes(16, "big"))
    if again:
        effects.own(
            ctx.ks, key, stream, group, consumer, ctx.now, group.offset, group.entries_read, [], again, [], quiet=True
        )
    return b"".join(entries)


def add_claimed(
    stream: Stream, group: Group, rows: list[PendingRow], now: int, claimed: list[bytes], again: list[bytes], most: int
) -> int:  # fmt: skip
    """``claimed``: gets the entries as the reply has them, up to ``most``; ``again``: their IDs, which the caller
    delivers.

    Messages without an entry stay as they are. Returns how many these are; they are passed (pass_idle()), so that the
    next read need not look at them.
    """
    gone: PendingRow | None = None
    count = 0
    for row in rows:
        if len(claimed) >= most:
            break
        wire = stream.find(row.id)
        if wire is None:
            gone = row
            count += 1
            continue
        claimed.append(_with_delivery(wire, b":%d\r\n:%d\r\n" % (idle_of(row, now, 0), row.deliveries)))
        again.append(row.id.to_bytes(16, "big"))
    if gone is not None:
        group.pending.pass_idle(gone)
    return count


def fresh_entries(stream: Stream, lo: int, hi: int) -> list[bytes]:
    """New entries as a reply to CLAIM has them."""
    return [_with_delivery(entry, _NEVER_DELIVERED) for entry in stream.each(lo, hi)]


def _with_delivery(entry: bytes, delivery: bytes) -> bytes:
    """An entry (T form) in the X form, with two more elements."""
    return b"*4" + dashed(entry)[2:] + delivery
