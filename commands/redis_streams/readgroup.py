"""XREADGROUP: reading for a consumer of a group.

For each key, a read first decides which pending messages are idle for long enough and which entries are new. It then
applies one effect (``groupmutators.own``), which one record contains. The reply is built last, for all keys together.
``longread`` reads many messages.
"""

from __future__ import annotations

from commands.context import Block, Chunks, Context, Reply, Slices, next_pending
from commands.declare import arg, block, command, key, opt, token
from commands.redis_streams.consumers import consumer_of
from commands.redis_streams.deliveries import GONE_AT_ONCE, add_claimed
from commands.redis_streams.elements import ClaimedElements
from commands.redis_streams.lag import count_after
from commands.redis_streams.limits import CLAIMED_MORE, ENTRY_MORE, ReplyLimits
from commands.redis_streams.longread import ALL, HistoryRead, LongRead, is_long
from commands.redis_streams.read import streams_at
from commands.redis_streams.readargs import NEW, NO_BLOCK, NO_CLAIM, GroupReadArgs, read_args
from commands.redis_streams.replies import KeyPart, keys_reply
from commands.slicing import AT_ONCE
from commands.streams.newentries import NEW_AT_ONCE
from resp import errors
from resp import reply as encode
from resp.errors import CommandError, DamagedNodeError
from storage.groups.group import Group
from storage.groups.pending import PendingRow
from storage.keyspace import groupmutators
from storage.keyspace.groupmutators import Messages
from storage.streams.position import StreamPosition
from storage.streams.stream import Stream


@command(
    "XREADGROUP", block("group-block", arg("group"), arg("consumer"), token="GROUP"),
    opt(arg("count", "integer", token="COUNT")), opt(arg("maxcount", "integer", token="MAXCOUNT")),
    opt(arg("maxsize", "integer", token="MAXSIZE")), opt(arg("milliseconds", "integer", token="BLOCK")),
    opt(arg("min-idle-time", "integer", token="CLAIM")), opt(token("NOACK")),
    block("streams", key("RO ACCESS", multiple=True), arg("id", multiple=True), token="STREAMS"),
    flags="write blocking movablekeys", traits="sign_of_life",
    complexity="O(M) for each key: M entries returned. While it waits, O(1) for each change of a key.",
    key_after_token=streams_at,
)  # fmt: skip
def xreadgroup(ctx: Context, argv: list[bytes]) -> Reply:
    """Read new entries for a consumer of a group, or its pending messages; can wait, and claim idle messages."""
    read = read_args(argv)
    ks, now = ctx.ks, ctx.now
    for number, name in enumerate(read.keys):
        stream = ks.read_stream(name, now)
        if stream is None or read.group not in stream.groups:
            raise errors.quoting(errors.NO_GROUP_TO_READ, name, read.group)
        read.ids.append(read.id_of(number))
    null = encode.null_array(ctx.session.proto)
    if is_long(ctx, read):
        long = LongRead(read, now)
        reply = long.first(ctx)
        if reply is None:
            return Slices(long.step, True, long.close)
        if long.begun():
            return reply
    else:
        parts = _serve(ctx, read)
        if parts:
            return keys_reply(ctx.session.proto, parts)
    if read.block == NO_BLOCK or ctx.in_exec:
        return null
    return BlockedGroupRead(read, read.deadline(now), null)


class BlockedGroupRead(Block):
    """A blocked consumer. All its keys are read for new entries: a read from any other ID does not wait."""

    __slots__ = ("read",)

    def __init__(self, read: GroupReadArgs, deadline: int, null: bytes) -> None:
        super().__init__(list(dict.fromkeys(read.keys)), read.group, True, deadline, null)
        self.read = read
        most = AT_ONCE if read.claim != NO_CLAIM else NEW_AT_ONCE
        read.count = min(read.count or most, most)  # a reader that has waited gets at most one slice
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
    """Return stream and group. Raises CommandError, which blocked readers receive."""
    stream = ctx.ks.stream(key, ctx.now)
    group = stream.groups.get(name) if stream is not None else None
    if stream is None or group is None:
        raise errors.quoting(errors.NO_GROUP_TO_READ, key, name)
    return stream, group


def _has_news(stream: Stream, group: Group, claim: int, now: int) -> bool:
    if stream.newest_id() > group.offset:
        return True
    idle = next_pending(group, claim)
    return idle is not None and idle <= now


def _serve(ctx: Context, read: GroupReadArgs) -> list[KeyPart]:
    """Return the part of the reply for each key that has one. Raises CommandError."""
    parts: list[KeyPart] = []
    limits = read.limits(ctx.session.proto)
    try:
        for number, name in enumerate(read.keys):
            if limits is not None:
                if limits.reached():
                    break
                limits.start(name)
            after = read.ids[number]
            stream, group = _find(ctx, name, read.group)
            ctx.touch(group)
            if after != NEW:
                history = HistoryRead(read, name, after, ctx.now, limits)
                while history.step(ctx):  # more than is_long() counted if the same call has delivered new entries
                    pass
                part = history.part()
            else:
                part = _deliver(ctx, read, name, stream, group, limits)
            if part is not None:
                parts.append(part)
                if limits is not None:
                    limits.end(part.count)
    except DamagedNodeError as error:
        if not parts:
            raise
        ctx.ks.note_damage(error)  # the reply has what was delivered
    except CommandError:
        for part in parts:
            part.close()
        raise
    return parts


def _deliver(
    ctx: Context, read: GroupReadArgs, key: bytes, stream: Stream, group: Group, limits: ReplyLimits | None
) -> KeyPart | None:
    """Deliver idle messages, with CLAIM, and new entries; None if there are none."""
    ks, now = ctx.ks, ctx.now
    consumer = consumer_of(ctx, key, stream, group, read.consumer)
    claimed = None if read.claim == NO_CLAIM else ClaimedElements()
    again: list[bytes] = []
    count = read.count if limits is None else limits.most(read.count)
    if claimed is not None:
        _claim(read, stream, group, now, claimed, again, count, limits)
    number = 0 if claimed is None else claimed.count
    offset, entries_read = group.offset, group.entries_read
    lo, hi = groupmutators.cursor(stream, group), 0
    new: list[bytes] = []
    place: StreamPosition | None = None
    if lo < stream.next_ord and not 0 < count <= number:
        hi = stream.after(lo, count - number) if count else stream.next_ord
        if limits is not None:
            hi = limits.fit(stream, lo, hi, ENTRY_MORE if claimed is None else CLAIMED_MORE)
    if lo < hi:
        place = stream.position_of(lo)
        new = stream.raw_ids(place, hi)
        last = int.from_bytes(new[-1], "big")
        first = last if len(new) == 1 else int.from_bytes(new[0], "big")
        entries_read = count_after(stream, group, len(new), first, last)
        offset = last
    elif not again:
        return KeyPart(key, stream, 0, 0) if limits is not None and limits.begun else None
    part: KeyPart | None = None
    if claimed is None:
        if new:
            part = KeyPart(key, stream, lo, hi, place)
    elif new or number:
        if new:
            claimed.add_new(stream, lo, hi)
        part = KeyPart(key, stream, 0, 0)
        part.set_elements(claimed)
    # after the offset was moved back, a message can be both; its delivery count then restarts
    if again and new and not read.noack:
        fresh_ids = set(new)
        again = [raw for raw in again if raw not in fresh_ids]
    groupmutators.own(
        ks, key, stream, group, consumer, now, Messages([] if read.noack else new, again, []),
        position=(offset, entries_read),
    )  # fmt: skip
    if new:
        group.cursor, group.cursor_of = hi, offset
    return part


def _claim(
    read: GroupReadArgs, stream: Stream, group: Group, now: int, claimed: ClaimedElements, again: list[bytes],
    count: int, limits: ReplyLimits | None,
) -> None:  # fmt: skip
    """Find the messages that are idle for long enough, at most ``count`` (0: all), oldest first: see add_claimed()."""
    row: PendingRow | None = None
    latest, gone, most = max(0, now - read.claim), 0, count or ALL
    page = min(most, AT_ONCE)
    while gone < GONE_AT_ONCE and claimed.count < most:
        rows = group.pending.idle_before(latest, row, page)
        gone += add_claimed(stream, group, rows, now, claimed, again, most, limits)
        if len(rows) < page or (limits is not None and limits.reached()):
            break
        row = rows[-1]
        page = min(4 * page, AT_ONCE)  # so that deleted entries take fewer pages
