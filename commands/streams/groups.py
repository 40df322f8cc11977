"""TACK, TNACK, TTOUCH, TPENDING, TGROUP: commands that change messages and groups. Semantics [22], [28] to [30]."""

from __future__ import annotations

from functools import partial
from typing import Final

from commands.context import Context, Reply
from commands.declare import arg, block, command, key, opt, repeat
from commands.parse import integer, raw_ids, span
from commands.slicing import AT_ONCE, array_of, by_id, rows_reply
from commands.streams.lookup import group_of, need_group
from resp import errors
from resp import reply as encode
from storage.groups.group import Group
from storage.groups.pending import PendingRow
from storage.keyspace import events, groupmutators
from storage.model.ids import MAX_ID, format_id, parse_id, parse_range_end, parse_range_start

# declares a command that takes IDs of messages
on_messages: Final = partial(
    command, flags="write fast", traits="sign_of_life", complexity="O(M log P): M IDs, P pending messages.",
)  # fmt: skip
GROUPS: Final = 300  # number of groups described in one slice


@on_messages("TACK", key("RW UPDATE"), arg("group"), repeat(arg("id")))
def tack(ctx: Context, argv: list[bytes]) -> Reply:
    """Acknowledge messages of a group; return how many were pending."""
    if len(argv) <= AT_ONCE:
        return encode.integer(acknowledge(argv, ctx, raw_ids(argv, 3)))
    return by_id(argv, 3, partial(acknowledge, argv[:3]), ctx)


def acknowledge(argv: list[bytes], ctx: Context, ids: list[bytes]) -> int:
    """Acknowledge messages of the group argv[2] of argv[1]. Returns how many were pending."""
    found = group_of(ctx.ks.stream(argv[1], ctx.now), argv[2])
    if found is None:
        return 0
    stream, group = found
    ctx.touch(group)
    return groupmutators.ack(ctx.ks, argv[1], stream, group, ids)


@on_messages(
    "TNACK", key("RW UPDATE"), arg("group"), opt(arg("milliseconds", "integer", token="DELAY")), repeat(arg("id")),
)  # fmt: skip
def tnack(ctx: Context, argv: list[bytes]) -> Reply:
    """Return messages to the group: they become due now or after the delay; return how many were pending."""
    delay, first = 0, 3
    if argv[3].upper() == b"DELAY":
        if len(argv) < 6:
            raise errors.arity("tnack")
        delay, first = span(argv[4]), 5
    return _fall_due(ctx, argv, first, delay)


@on_messages("TTOUCH", key("RW UPDATE"), arg("group"), arg("milliseconds", "integer"), repeat(arg("id")))
def ttouch(ctx: Context, argv: list[bytes]) -> Reply:
    """Postpone redelivery of messages: they become due so many ms from now; return how many were pending."""
    return _fall_due(ctx, argv, 4, span(argv[3]))


def _fall_due(ctx: Context, argv: list[bytes], first: int, delay: int) -> Reply:
    return by_id(argv, first, partial(_set_due, argv[:3], ctx.served_for_deadline() + delay), ctx)


def _set_due(argv: list[bytes], due: int, ctx: Context, ids: list[bytes]) -> int:
    found = group_of(ctx.ks.stream(argv[1], ctx.now), argv[2])
    if found is None:
        return 0
    stream, group = found
    ctx.touch(group)
    return groupmutators.set_due(ctx.ks, argv[1], stream, group, due, ids)


@command(
    "TPENDING", key("RO ACCESS"), arg("group"),
    opt(block("range", arg("start-id"), arg("end-id"), arg("count", "integer"))), flags="readonly",
    complexity="O(log P + M): P pending messages, M returned.",
)  # fmt: skip
def tpending(ctx: Context, argv: list[bytes]) -> Reply:
    """Return a summary of a group's pending messages, or the messages in a range of IDs."""
    if len(argv) not in (3, 6):
        raise errors.syntax()
    if len(argv) == 6:
        start, end = parse_range_start(argv[3]), parse_range_end(argv[4])
        count = integer(argv[5])
    pending = need_group(ctx.ks.read_stream(argv[1], ctx.now), argv[1], argv[2])[1].pending
    proto = ctx.session.proto
    away = ctx.now - ctx.served()  # due times are shown in wall-clock time, as if the server remained available
    if len(argv) == 3:
        low, high, due = pending.lowest(), pending.highest(), pending.next_due()
        summary = [
            len(pending),
            None if low is None else format_id(low),
            None if high is None else format_id(high),
            None if due is None else due + away,
        ]
        return encode.encode(proto, summary)
    if count <= 0 or start > end:
        return encode.EMPTY_ARRAY
    return rows_reply(pending, start, min(end, MAX_ID), count, partial(_listed, away))


def _listed(away: int, rows: list[PendingRow]) -> bytes:
    return b"".join([
        b"*5\r\n%b:%d\r\n:%d\r\n:%d\r\n:%d\r\n"
        % (encode.bulk(format_id(r.id)), r.deliveries, r.first, r.due and r.due + away, r.expire and r.expire + away)
        for r in rows
    ])  # fmt: skip


@command("TGROUP|LIST", key("RO ACCESS"), flags="readonly", complexity="O(G): G groups.")
def tgroup_list(ctx: Context, argv: list[bytes]) -> Reply:
    """Return a map for each group of a stream."""
    stream, proto = ctx.ks.read_stream(argv[2], ctx.now), ctx.session.proto
    groups = {} if stream is None else stream.groups

    def described(name: bytes) -> bytes:
        group = groups.get(name)  # the group may have been deleted in the meantime
        return encode.encode(proto, _info(group)) if group is not None else b""

    return array_of(sorted(groups), described, ctx, GROUPS)


def _info(group: Group) -> dict[str, int | bytes]:
    """Return the map of TGROUP LIST."""
    return {
        "name": group.name,
        "offset": format_id(group.offset),
        "ttl": group.ttl,
        "pending": len(group.pending),
        "readers": group.waiters,
        "redelivered": group.redelivered,
        "expired": group.expired,
        "dead-lettered": group.deadlettered,
    }


@command("TGROUP|SETID", key("RW UPDATE"), arg("group"), arg("id"), flags="write", traits="sign_of_life")
def tgroup_setid(ctx: Context, argv: list[bytes]) -> Reply:
    """Move a group's offset backward or forward; its pending messages stay."""
    offset = parse_id(argv[4])
    stream, group = need_group(ctx.ks.stream(argv[2], ctx.now), argv[2], argv[3])
    if offset == 0:
        offset = stream.evicted_to  # the position of the oldest entry: nothing counts as missing
    ctx.touch(group)
    groupmutators.set_group(ctx.ks, argv[2], stream, group.name, offset, group.ttl, group.deadline)
    ctx.ks.notify(events.STREAM, b"tgroup-setid", argv[2])
    return encode.OK


@command("TGROUP|DESTROY", key("RW DELETE"), arg("group"), flags="write", complexity="O(P): P pending messages.")
def tgroup_destroy(ctx: Context, argv: list[bytes]) -> Reply:
    """Delete a group and its pending messages; return 1, or 0 if there was none."""
    found = group_of(ctx.ks.stream(argv[2], ctx.now), argv[3])
    if found is None:
        return encode.integer(0)
    groupmutators.end_group(ctx.ks, argv[2], found[0], found[1].name)
    return encode.integer(1)
