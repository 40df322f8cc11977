"""XREADGROUP: reading for a consumer of a group.

For each key a read first decides (which pending messages are idle for long enough, which entries are new, what is
gone), then makes one effect of it (``effects.own``), so that one record carries it. The reply is made last, for all
keys at once.
"""

from __future__ import annotations

from commands.context import Block, Chunks, Context, Reply, next_pending
from commands.declare import arg, block, command, key, opt, token
from commands.parts import AT_ONCE
from commands.redis_streams.ids import xid_bulk
from commands.redis_streams.lag import count_after
from commands.redis_streams.owners import consumer_of, idle_of
from commands.redis_streams.read import streams_at
from commands.redis_streams.readargs import NEW, NO_BLOCK, NO_CLAIM, GroupReadArgs
from commands.redis_streams.replies import KeyPart, keys_reply
from resp import errors
from resp import reply as encode
from storage.groups import effects
from storage.groups.group import Group
from storage.groups.pending import PendingRow
from storage.ids import MAX_ID
from storage.nodes.dashed import dashed
from storage.stream import Stream

_NEVER_DELIVERED = b":0\r\n:0\r\n"  # idle time and deliveries of a new entry, in a reply to CLAIM


@command(
    "XREADGROUP", block("group-block", arg("group"), arg("consumer"), token="GROUP"),
    opt(arg("count", "integer", token="COUNT")), opt(arg("milliseconds", "integer", token="BLOCK")),
    opt(arg("min-idle-time", "integer", token="CLAIM")), opt(token("NOACK")),
    block("streams", key("RO ACCESS", multiple=True), arg("id", multiple=True), token="STREAMS"),
    flags="write blocking movablekeys", group="stream", since="0.1.0",
    complexity="O(M) for each key: M entries returned. While it waits, O(1) for each change of a key.",
    key_after_token=streams_at,
)  # fmt: skip
def xreadgroup(ctx: Context, argv: list[bytes]) -> Reply:
    """Read new entries for a consumer of a group, or those that it has pending; can wait, and claim idle ones."""
    read = GroupReadArgs(argv)
    ks, now = ctx.ks, ctx.now
    for number, name in enumerate(read.keys):
        stream = ks.read_stream(name, now)
        if stream is None or read.group not in stream.groups:
            raise errors.no_group_to_read(name, read.group)
        read.ids.append(read.id_of(number))
    parts = _serve(ctx, read)
    if parts:
        return keys_reply(ctx.session.proto, parts)
    null = encode.null_array(ctx.session.proto)
    if read.block == NO_BLOCK or ctx.in_exec:
        return null
    return GroupReader(read, read.deadline(now), null)


class GroupReader(Block):
    """A blocked consumer. All its keys are read for new entries: for any other ID nothing waits."""

    __slots__ = ("read",)

    def __init__(self, read: GroupReadArgs, deadline: int, null: bytes) -> None:
        super().__init__(list(dict.fromkeys(read.keys)), read.group, True, deadline, null)
        self.read = read
        self.wants, self.by_name = read.claim, True

    def serve(self, ctx: Context, key: bytes) -> bytes | Chunks | None:
        read, now = self.read, ctx.now
        stream, group = _find(ctx, key, read.group)
        if not _has_news(stream, group, read.claim, now):
            consumer_of(ctx, key, stream, group, read.consumer)
            return None
        parts = _serve(ctx, read)
        return keys_reply(ctx.session.proto, parts) if parts else None


def _find(ctx: Context, key: bytes, name: bytes) -> tuple[Stream, Group]:
    """Raises CommandError, which blocked readers are sent."""
    stream = ctx.ks.stream(key, ctx.now)
    group = stream.groups.get(name) if stream is not None else None
    if stream is None or group is None:
        raise errors.no_group_to_read(key, name)
    return stream, group


def _has_news(stream: Stream, group: Group, claim: int, now: int) -> bool:
    if stream.newest_id() > group.offset:
        return True
    idle = next_pending(group, claim)
    return idle is not None and idle <= now


def _serve(ctx: Context, read: GroupReadArgs) -> list[KeyPart]:
    """What the reply has for each key that has something. Raises CommandError."""
    parts: list[KeyPart] = []
    for name, after in zip(read.keys, read.ids, strict=True):
        stream, group = _find(ctx, name, read.group)
        group.touch(ctx.now)
        if after != NEW:
            parts.append(_history(ctx, read, name, stream, group, after))
            continue
        part = _deliver(ctx, read, name, stream, group)
        if part is not None:
            parts.append(part)
    return parts


def _deliver(ctx: Context, read: GroupReadArgs, key: bytes, stream: Stream, group: Group) -> KeyPart | None:
    """Deliver messages that are idle, if CLAIM asks for them, and new entries; None if there are none."""
    ks, now = ctx.ks, ctx.now
    consumer = consumer_of(ctx, key, stream, group, read.consumer)
    claimed: list[bytes] = []
    again: list[bytes] = []
    gone: list[bytes] = []
    if read.claim != NO_CLAIM:
        _claim(read, stream, group, now, claimed, again, gone)
    offset, entries_read = group.offset, group.entries_read
    lo = hi = 0
    new: list[bytes] = []
    if stream.newest_id() > offset and not 0 < read.count <= len(claimed):
        lo = effects.cursor(stream, group)
        hi = stream.after(lo, read.count - len(claimed)) if read.count else stream.next_ord
        new = stream.raw_ids(stream.place(lo), hi)
        last = int.from_bytes(new[-1], "big")
        entries_read = count_after(stream, group, len(new), int.from_bytes(new[0], "big"), last)
        offset = last
    elif not again and not gone:
        return None
    part: KeyPart | None = None
    if new or claimed:
        if read.claim == NO_CLAIM:
            part = KeyPart(key, stream, lo, hi)
        else:
            part = KeyPart(key, stream, 0, 0)
            fresh = [_with_delivery(entry, _NEVER_DELIVERED) for entry in stream.each(lo, hi)] if new else []
            part.prepend(len(claimed) + len(fresh), b"".join(claimed + fresh))
    if again and new:  # after a rewind a message can be both; then it starts over
        fresh_ids = set(new)
        again = [raw for raw in again if raw not in fresh_ids]
    effects.own(
        ks, key, stream, group, consumer, now, offset, entries_read, [] if read.noack else new, again, gone
    )
    if new:
        group.cursor, group.cursor_of = hi, offset
    return part


def _claim(
    read: GroupReadArgs, stream: Stream, group: Group, now: int, claimed: list[bytes], again: list[bytes],
    gone: list[bytes],
) -> None:  # fmt: skip
    """Find the messages that are idle for long enough, at most COUNT, oldest first.

    ``claimed``: their entries as the reply has them; ``again``: their IDs; ``gone``: those on the way without an entry.
    """
    row: PendingRow | None = None
    latest = max(0, now - read.claim)
    while not read.count or len(claimed) < read.count:
        most = min(AT_ONCE, read.count - len(claimed)) if read.count else AT_ONCE
        rows = group.pending.idle_before(latest, row, most)
        for row in rows:
            raw = row.id.to_bytes(16, "big")
            wire = stream.find(row.id)
            if wire is None:
                gone.append(raw)
                continue
            claimed.append(_with_delivery(wire, b":%d\r\n:%d\r\n" % (idle_of(row, now), row.deliveries)))
            again.append(raw)
        if len(rows) < most:
            break


def _with_delivery(entry: bytes, delivery: bytes) -> bytes:
    """An entry (T form) in the X form, with two more elements."""
    return b"*4" + dashed(entry)[2:] + delivery


def _history(ctx: Context, read: GroupReadArgs, key: bytes, stream: Stream, group: Group, after: int) -> KeyPart:
    """Deliver what the consumer has pending after an ID once more. Entries that are gone are null, and stay pending."""
    ks, now = ctx.ks, ctx.now
    consumer = consumer_of(ctx, key, stream, group, read.consumer)
    owned = group.pending.owned(consumer.number)
    most = min(read.count, owned) if read.count else owned
    rows: list[PendingRow] = group.pending.rows_of(consumer.number, after + 1, MAX_ID, most) if most else []
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
    part = KeyPart(key, stream, 0, 0)
    part.prepend(len(entries), b"".join(entries))
    if again:
        effects.own(ks, key, stream, group, consumer, now, group.offset, group.entries_read, [], again, [], quiet=True)
    return part
