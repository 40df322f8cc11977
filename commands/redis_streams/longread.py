"""XREADGROUP of many messages: they are delivered in slices, key after key, and the reply is sent with the last one.

Each slice is one effect with its record, like a whole read of that many messages. After a crash, or if the leader
becomes a replica, the result is therefore a shorter read: its messages are pending for the consumer, which finds them
in its history.
"""

from __future__ import annotations

from typing import Final

from commands.context import Chunks, Context
from commands.redis_streams.consumers import consumer_of
from commands.redis_streams.deliveries import GONE_AT_ONCE, add_claimed, deliver_again, deliver_new
from commands.redis_streams.elements import ClaimedElements, XElements
from commands.redis_streams.limits import CLAIMED_MORE, ENTRY_MORE, ReplyLimits
from commands.redis_streams.readargs import NEW, NO_CLAIM, GroupReadArgs
from commands.redis_streams.replies import KeyPart, keys_reply
from commands.slicing import AT_ONCE
from commands.streams.newentries import NEW_AT_ONCE, NO_MORE, NewEntries
from resp import errors
from resp import reply as encode
from resp.errors import DamagedNodeError
from storage.groups.group import Group
from storage.keyspace import groupmutators
from storage.keyspace.groupmutators import Messages, Ownership
from storage.model.ids import MAX_ID
from storage.streams.stream import Stream

ALL: Final = 1 << 62


def is_long(ctx: Context, read: GroupReadArgs) -> bool:
    """Return whether to deliver in slices, so that other clients need not wait. All groups of the read exist."""
    keys = len(read.keys)
    if keys > AT_ONCE:
        return True
    if 0 < read.count * keys <= AT_ONCE or 0 < read.maxcount <= AT_ONCE:
        return False
    left = AT_ONCE
    for at in range(keys):
        stream = ctx.ks.stream(read.keys[at], ctx.now)
        group = stream.groups.get(read.group) if stream is not None else None
        if stream is None or group is None:
            continue
        left -= min(read.count or read.maxcount or ALL, _expected(stream, group, read, read.ids[at]))
        if left < 0:
            return True
    return False


def _expected(stream: Stream, group: Group, read: GroupReadArgs, after: int) -> int:
    """Return an upper bound of the cost of a key; a new entry costs less than a message that was delivered before."""
    if after != NEW:
        consumer = group.consumers.get(read.consumer)
        return 0 if consumer is None else group.pending.owned(consumer.number)
    new = stream.count(groupmutators.cursor(stream, group), stream.next_ord)
    if read.claim == NO_CLAIM:
        return new * AT_ONCE // NEW_AT_ONCE
    return new + len(group.pending)


class LongRead:
    """A call of XREADGROUP, in slices."""

    __slots__ = ("_at", "_key", "_limits", "_parts", "_read", "_started")

    def __init__(self, read: GroupReadArgs, started: int) -> None:
        self._read = read
        self._started = started  # time of the command
        self._at = 0  # index of the current key
        self._key: HistoryRead | NewRead | None = None  # None: not started
        self._parts: list[KeyPart] = []  # parts of the keys before it
        self._limits: ReplyLimits | None = None  # set by first()

    def begun(self) -> bool:
        """Return whether anything was delivered."""
        return bool(self._parts) or (self._key is not None and self._key.begun())

    def close(self) -> None:
        """Release everything: there will be no reply."""
        if self._key is not None:
            self._key.close()
        for part in self._parts:
            part.close()

    def first(self, ctx: Context) -> bytes | Chunks | None:
        """Run slices until something is delivered, or all keys were read. Returns the reply, None if slices remain."""
        self._limits = self._read.limits(ctx.session.proto)
        try:
            answer = self.step(ctx)
            while answer is None and not self.begun():
                answer = self.step(ctx)
        except BaseException:
            self.close()
            raise
        return answer

    def step(self, ctx: Context) -> bytes | Chunks | None:
        """Deliver the next messages. Returns the reply, null if there were none. Raises CommandError if a group no
        longer exists."""
        read, key, limits = self._read, self._key, self._limits
        if key is None:
            if limits is not None:
                limits.start(read.keys[self._at])
            name, after = read.keys[self._at], read.ids[self._at]
            kind = NewRead if after == NEW else HistoryRead
            key = self._key = kind(read, name, after, self._started, limits)
        damaged = False
        try:
            if key.step(ctx):
                return None
        except DamagedNodeError as error:
            if not self.begun():
                raise
            ctx.ks.note_damage(error)  # the reply has what was delivered
            damaged = True
        part = key.part()
        if part is not None:
            self._parts.append(part)
            if limits is not None:
                limits.end(part.count)
        self._key = None
        self._at += 1
        if self._at < len(read.keys) and not damaged and not (limits is not None and limits.reached()):
            return None
        proto = ctx.session.proto
        return keys_reply(proto, self._parts) if self._parts else encode.null_array(proto)


class KeyRead:
    """The read of one key."""

    __slots__ = ("_after", "_count", "_group", "_limits", "_name", "_read", "_started", "_stream")

    def __init__(
        self, read: GroupReadArgs, name: bytes, after: int, started: int, limits: ReplyLimits | None
    ) -> None:  # fmt: skip
        self._read = read
        self._limits = limits
        self._count = read.count if limits is None else limits.most(read.count)  # 0: no limit
        self._name = name
        self._after = after  # the last ID of a history that was read
        self._started = started
        self._group: Group | None = None
        self._stream: Stream | None = None

    def _find(self, ctx: Context) -> tuple[Stream, Group]:
        """Return stream and group. Raises CommandError if the group was deleted, even if it was recreated."""
        name, read = self._name, self._read
        stream = ctx.ks.stream(name, ctx.now)
        group = stream.groups.get(read.group) if stream is not None else None
        if stream is None or group is None or (self._group is not None and group is not self._group):
            raise errors.quoting(errors.NO_GROUP_TO_READ, name, read.group)
        self._group, self._stream = group, stream
        ctx.touch(group)
        return stream, group


class HistoryRead(KeyRead):
    """The messages that are pending for the consumer when the read reaches them, without those lost in the meantime."""

    __slots__ = ("_elements", "_left")

    def __init__(
        self, read: GroupReadArgs, name: bytes, after: int, started: int, limits: ReplyLimits | None
    ) -> None:  # fmt: skip
        super().__init__(read, name, after, started, limits)
        self._left = -1
        self._elements: XElements | None = None

    def begun(self) -> bool:
        return self._elements is not None and self._elements.count > 0

    def close(self) -> None:
        if self._elements is not None:
            self._elements.close()

    def step(self, ctx: Context) -> bool:
        stream, group = self._find(ctx)
        consumer = consumer_of(ctx, self._name, stream, group, self._read.consumer)
        if self._left < 0:
            self._left = min(self._count or ALL, group.pending.owned(consumer.number))
            if self._limits is not None:
                self._limits.begin()
        most = min(self._left, AT_ONCE)
        rows = group.pending.rows_of(consumer.number, self._after + 1, MAX_ID, most) if most else []
        if self._limits is not None:
            rows = self._limits.admit_history(stream, rows)
        if rows:
            if self._elements is None:
                self._elements = XElements(encode.null_array(ctx.session.proto))
            deliver_again(ctx, self._name, stream, group, consumer, rows, self._elements)
            self._left -= len(rows)
            self._after = rows[-1].id
        return len(rows) == most and self._left > 0

    def part(self) -> KeyPart | None:
        if self._stream is None:
            return None
        part = KeyPart(self._name, self._stream, 0, 0)
        if self._elements is not None:
            part.set_elements(self._elements)
        return part


class NewRead(KeyRead):
    """The entries that were never delivered. With CLAIM, messages that have been idle for long enough precede them."""

    __slots__ = ("_claimed", "_claims", "_gone", "_new")

    def __init__(
        self, read: GroupReadArgs, name: bytes, after: int, started: int, limits: ReplyLimits | None
    ) -> None:  # fmt: skip
        super().__init__(read, name, after, started, limits)
        self._claims = read.claim != NO_CLAIM  # there may be more messages to claim
        self._claimed = ClaimedElements()  # with CLAIM: everything that it delivers
        self._gone = 0  # number of messages without an entry so far
        self._new: NewEntries | None = None  # None: new entries have not been reached

    def begun(self) -> bool:
        return self._claimed.count > 0 or (self._new is not None and self._new.count > 0)

    def close(self) -> None:
        self._claimed.close()
        if self._new is not None:
            self._new.close()

    def step(self, ctx: Context) -> bool:
        stream, group = self._find(ctx)
        if self._claims:
            return self._claim(ctx, stream, group)
        return self._deliver(ctx, stream, group)

    def _left(self) -> int:
        return self._count - self._claimed.count if self._count else ALL

    def _claim(self, ctx: Context, stream: Stream, group: Group) -> bool:
        read, most = self._read, self._left()
        consumer = consumer_of(ctx, self._name, stream, group, read.consumer)
        rows = group.pending.idle_before(max(0, self._started - read.claim), None, AT_ONCE)
        again: list[bytes] = []
        most += self._claimed.count
        # Messages that are delivered here must not look idle to the next slice. CLAIM 0 therefore requires a later
        # time.
        last = max(ctx.now, self._started + 1) if not read.claim else ctx.now
        try:
            self._gone += add_claimed(stream, group, rows, self._started, self._claimed, again, most, self._limits)
        finally:  # even if a node is damaged: what is in the reply was delivered
            groupmutators.own(
                ctx.ks, self._name, stream, group, consumer, ctx.now, Messages([], again, []), Ownership(last=last)
            )
        self._claims = len(rows) == AT_ONCE and self._left() > 0 and self._gone < GONE_AT_ONCE
        if self._limits is not None and self._limits.reached():
            self._claims = False
        return self._claims or self._left() > 0

    def _deliver(self, ctx: Context, stream: Stream, group: Group) -> bool:
        read, new = self._read, self._new
        consumer = consumer_of(ctx, self._name, stream, group, read.consumer)
        if new is None:
            new = self._new = NewEntries(stream, group, self._left())
        with_delivery = read.claim != NO_CLAIM
        hi = new.following(stream, group, AT_ONCE if with_delivery else NEW_AT_ONCE)
        if hi == NO_MORE:
            return False
        lo = groupmutators.cursor(stream, group)
        if self._limits is not None:
            hi = self._limits.fit(stream, lo, hi, CLAIMED_MORE if with_delivery else ENTRY_MORE)
            if hi == lo:
                return False
        deliver_new(ctx, self._name, stream, group, consumer, lo, hi, read.noack)  # first, since a node may be damaged
        if with_delivery:
            self._claimed.add_new(stream, lo, hi)
        return new.delivered(stream, group, lo, hi)

    def part(self) -> KeyPart | None:
        if self._stream is None or not self.begun():
            self.close()
            limited = self._stream is not None and self._limits is not None and self._limits.begun
            return KeyPart(self._name, self._stream, 0, 0) if limited and self._stream is not None else None
        part, new = KeyPart(self._name, self._stream, 0, 0), self._new
        if self._read.claim == NO_CLAIM:
            if new is not None:
                part.set_snapshot(new.count, new.take())
            return part
        part.set_elements(self._claimed)
        if new is not None:
            new.close()
        return part
