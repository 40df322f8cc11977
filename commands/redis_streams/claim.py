"""XCLAIM, XAUTOCLAIM: assign pending messages to another consumer.

Messages whose entries no longer exist leave the pending list instead. Messages that TREAD delivered can be claimed like
any others: they then belong to the consumer, and RETRY no longer applies to them.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from commands.context import Chunks, Context, Reply, Slices
from commands.declare import arg, command, key, opt, repeat, token
from commands.parse import INT_MAX, each_option, integer
from commands.redis_streams.consumers import consumer_of, is_idle
from commands.redis_streams.elements import XElements
from commands.redis_streams.ids import range_start, strict_id, xid_bulk, xid_bulks
from commands.slicing import AT_ONCE, in_pieces
from commands.streams.elements import elements_reply
from commands.streams.lookup import need_group
from resp import errors
from resp import reply as encode
from resp.errors import AbsentNodeError, CommandError, DamagedNodeError
from storage.groups.group import Group
from storage.keyspace import groupmutators
from storage.keyspace.groupmutators import Messages, Ownership
from storage.model.ids import MAX_ID
from storage.streams.stream import Stream

DEFAULT_COUNT: Final = 100  # default COUNT of XAUTOCLAIM
EXAMINED_PER_MATCH: Final = 10  # messages that XAUTOCLAIM examines for each one that it may claim
MOST: Final = INT_MAX // 16  # maximum COUNT
NO_COUNT: Final = -1  # no RETRYCOUNT
FIRST_ID: Final = 5  # index in XCLAIM's argv
_OPTIONS: Final = {b"IDLE": 1, b"TIME": 1, b"RETRYCOUNT": 1, b"FORCE": 0, b"JUSTID": 0, b"LASTID": 1}
_UNRECOGNIZED: Final = partial(errors.quoting, errors.UNKNOWN_OPTION_OF, b"XCLAIM")


@command(
    "XCLAIM", key("RW UPDATE"), arg("group"), arg("consumer"), arg("min-idle-time"), repeat(arg("id")),
    opt(arg("ms", "integer", token="IDLE")), opt(arg("unix-time-milliseconds", "unix-time", token="TIME")),
    opt(arg("count", "integer", token="RETRYCOUNT")), opt(token("FORCE")), opt(token("JUSTID")),
    opt(arg("lastid", token="LASTID")), flags="write fast", traits="sign_of_life reads_keys",
    complexity="O(M log P): M IDs, P pending messages.",
)  # fmt: skip
def xclaim(ctx: Context, argv: list[bytes]) -> Reply:
    """Assign pending messages to a consumer; return their entries, or their IDs."""
    stream, group = need_group(ctx.ks.read_stream(argv[1], ctx.now), argv[1], argv[2])
    claim = ClaimCall(argv)
    if len(argv) > FIRST_ID + AT_ONCE:
        return Slices(claim.step, True, claim.close)
    claim.parse(ctx)
    claim.run(ctx, argv[1], stream, group, claim.ids)
    return claim.reply()


class ClaimReply:
    """The reply of XCLAIM and XAUTOCLAIM: elements; with JUSTID only their IDs."""

    __slots__ = ("_elements", "_just_id", "_number", "_parts")

    def __init__(self, just_id: bool) -> None:
        self._just_id = just_id
        self._elements = XElements(b"")  # with JUSTID, the next two are used instead
        self._parts: list[bytes] = []  # IDs
        self._number = 0  # number of IDs in ``_parts``

    def close(self) -> None:
        """Release everything: there will be no reply."""
        self._elements.close()

    def _find(self, stream: Stream, id: int, wanted: bool) -> bool:  # noqa: A002
        """Return whether there is a living entry with this ID. If it is ``wanted``, it is added to the reply."""
        if wanted and not self._just_id:
            return self._elements.add(stream, id)
        return stream.locate(id) is not None

    def _add_ids(self, ids: list[int]) -> None:
        """Add the IDs of claimed messages, with JUSTID."""
        if self._just_id:
            self._number += len(ids)
            self._parts.append(xid_bulks(ids))

    def _encoded(self, head: bytes, tail: list[bytes]) -> bytes | Chunks:
        """Return the reply: the array of the claimed messages after ``head``, then ``tail``."""
        if self._just_id:
            return in_pieces([head + encode.array_header(self._number), *self._parts, *tail])
        return elements_reply(head + encode.array_header(self._elements.count), self._elements, b"".join(tail))


class ClaimCall(ClaimReply):
    """A call of XCLAIM. Raises CommandError."""

    __slots__ = ("_argv", "_done", "_last_id", "_parsed", "consumer", "count", "force", "ids", "last", "least")

    def __init__(self, argv: list[bytes]) -> None:
        super().__init__(just_id=False)
        self._argv = argv
        self._done = 0  # number of IDs processed
        self._parsed = False
        self.consumer = argv[3]
        self.least = max(0, integer(argv[4], errors.bad_claim("min-idle-time", "XCLAIM").text))
        self.ids: list[int] = []
        self._last_id = 0  # the minimum of the group's offset after the call
        self.count = NO_COUNT
        self.force = False
        self.last = -1  # when the messages were last delivered; -1: now

    def parse(self, ctx: Context) -> bool:
        """Parse the next IDs, and the options after them. Returns False when all are parsed. Raises CommandError."""
        argv, at = self._argv, FIRST_ID + len(self.ids)
        end, stop = len(argv), min(len(argv), at + AT_ONCE)
        while at < stop:
            try:
                self.ids.append(strict_id(argv[at]))
            except CommandError:
                break  # the options begin here
            at += 1
        if at == stop and at < end:
            return True
        for word, value_at in each_option(argv, at, _OPTIONS, _UNRECOGNIZED):
            self._option(ctx, word, argv, value_at)
        if not 0 <= self.last <= ctx.now:  # the clock of the client that computed it may differ
            self.last = ctx.now
        self._parsed = True
        return False

    def _option(self, ctx: Context, word: bytes, argv: list[bytes], at: int) -> None:
        """Set an option, whose value, if it has one, is at ``at``. Raises CommandError."""
        if word == b"FORCE":
            self.force = True
        elif word == b"JUSTID":
            self._just_id = True
        elif word == b"LASTID":
            self._last_id = max(self._last_id, strict_id(argv[at]))
        else:
            number = integer(argv[at], errors.bad_claim(f"{word.decode()} option", "XCLAIM").text)
            if word == b"RETRYCOUNT":
                self.count = max(NO_COUNT, number)
            else:
                self.last = ctx.now - number if word == b"IDLE" else number

    def step(self, ctx: Context) -> bytes | Chunks | None:
        """Claim the next messages. Raises CommandError if the group no longer exists."""
        stream, group = need_group(ctx.ks.stream(self._argv[1], ctx.now), self._argv[1], self._argv[2])
        if not self._parsed:
            self.parse(ctx)
            return None
        ids = self.ids[self._done : self._done + AT_ONCE]
        self._done += len(ids)
        self.run(ctx, self._argv[1], stream, group, ids)
        return self.reply() if self._done == len(self.ids) else None

    def run(self, ctx: Context, key: bytes, stream: Stream, group: Group, ids: list[int]) -> None:
        now = ctx.now
        claimed: list[int] = []
        consumer_of(ctx, key, stream, group, self.consumer)
        new: list[int] = []
        again: list[int] = []
        gone: list[int] = []
        named: set[int] = set()
        for id in ids:  # noqa: A001
            if id in named:  # a duplicate, to be processed after the effect of the first one
                self._own(ctx, key, stream, group, new, again, gone)
                named.clear()
            named.add(id)
            row = group.pending.get(id)
            if row is None and not self.force:
                continue
            idle = row is None or not self.least or is_idle(row, self.least, now, ctx.ks.away)
            if not self._find(stream, id, idle):
                if row is not None:
                    gone.append(id)
                continue
            if not idle:
                continue
            (new if row is None else again).append(id)
            claimed.append(id)
        self._own(ctx, key, stream, group, new, again, gone)
        self._add_ids(claimed)

    def _own(
        self, ctx: Context, key: bytes, stream: Stream, group: Group, new: list[int], again: list[int], gone: list[int]
    ) -> None:  # fmt: skip
        """Apply the effect of the messages processed so far, and empty the lists."""
        consumer = consumer_of(ctx, key, stream, group, self.consumer)
        # between two slices, other commands may read, or move the offset back
        offset = max(self._last_id, group.offset)
        count = None if self.count == NO_COUNT else self.count
        both = [] if count is None and not self._just_id else _raw(new)
        groupmutators.own(
            ctx.ks, key, stream, group, consumer, ctx.now, Messages(both, _raw(again), _raw(gone)),
            Ownership(count=count, last=self.last, step=int(not self._just_id)), position=(offset, group.entries_read),
        )  # fmt: skip
        if new and not both:  # a message that becomes pending counts as delivered before
            groupmutators.own(
                ctx.ks, key, stream, group, consumer, ctx.now, Messages(_raw(new), [], []),
                Ownership(count=2, last=self.last), position=(offset, group.entries_read),
            )  # fmt: skip
        new.clear()
        again.clear()
        gone.clear()
        ctx.ks.signal(key)  # a reader with CLAIM may wait for messages with this idle time

    def reply(self) -> bytes | Chunks:
        return self._encoded(b"", [])


def _raw(ids: list[int]) -> list[bytes]:
    return [id.to_bytes(16, "big") for id in ids]  # noqa: A001


@command(
    "XAUTOCLAIM", key("RW DELETE"), arg("group"), arg("consumer"), arg("min-idle-time"), arg("start"),
    opt(arg("count", "integer", token="COUNT")), opt(token("JUSTID")), flags="write fast",
    traits="sign_of_life reads_keys",
    complexity="O(M log P): P pending messages, M examined, at most ten for each one of COUNT.",
)  # fmt: skip
def xautoclaim(ctx: Context, argv: list[bytes]) -> Reply:
    """Assign idle pending messages to a consumer; return where to continue, their entries or IDs, and deleted IDs."""
    least = max(0, integer(argv[4], errors.bad_claim("min-idle-time", "XAUTOCLAIM").text))
    start = range_start(argv[5])
    count, just_id = DEFAULT_COUNT, False
    for word, at in each_option(argv, 6, {b"COUNT": 1, b"JUSTID": 0}):
        if word == b"JUSTID":
            just_id = True
            continue
        count = integer(argv[at], errors.BAD_CLAIM_COUNT)
        if not 0 < count <= MOST:
            raise CommandError(errors.BAD_CLAIM_COUNT)
    need_group(ctx.ks.read_stream(argv[1], ctx.now), argv[1], argv[2])
    walk = AutoclaimCall(argv, least, start, count, just_id)
    return walk.step(ctx) or Slices(walk.step, True, walk.close)


class AutoclaimCall(ClaimReply):
    """A call of XAUTOCLAIM, in slices."""

    __slots__ = ("_argv", "_at", "_gone", "_least", "_left", "_looks")

    def __init__(self, argv: list[bytes], least: int, start: int, count: int, just_id: bool) -> None:
        super().__init__(just_id)
        self._argv = argv[:4]
        self._least = least
        self._at = start  # the next ID
        self._left = count  # number of messages that may still be added to the reply
        self._looks = count * EXAMINED_PER_MATCH
        self._gone: list[int] = []

    def step(self, ctx: Context) -> bytes | Chunks | None:
        """Claim the next messages. Raises CommandError if the group no longer exists."""
        stream, group = need_group(ctx.ks.stream(self._argv[1], ctx.now), self._argv[1], self._argv[2])
        consumer = consumer_of(ctx, self._argv[1], stream, group, self._argv[3])
        rows = group.pending.rows(self._at, MAX_ID, min(AT_ONCE, self._looks)) if self._at <= MAX_ID else []
        again: list[int] = []
        gone: list[int] = []
        for row in rows:
            if not self._left:
                break
            self._looks -= 1
            self._at = row.id + 1
            idle = not self._least or is_idle(row, self._least, ctx.now, ctx.ks.away)
            try:
                found = self._find(stream, row.id, idle)
            except DamagedNodeError as error:
                if isinstance(error, AbsentNodeError):
                    raise
                ctx.ks.note_damage(error)  # it stays pending; with an error, no call could continue after the node
                continue
            if not found:
                gone.append(row.id)
            elif idle:
                again.append(row.id)
            else:
                continue
            self._left -= 1
        groupmutators.own(
            ctx.ks, self._argv[1], stream, group, consumer, ctx.now, Messages([], _raw(again), _raw(gone)),
            Ownership(step=int(not self._just_id)),
        )  # fmt: skip
        self._add_ids(again)
        self._gone += gone
        following = group.pending.rows(self._at, MAX_ID, 1) if self._at <= MAX_ID else []
        if following and self._left and self._looks:
            return None
        cursor = following[0].id if following else 0
        parts = [xid_bulks(self._gone[at : at + AT_ONCE]) for at in range(0, len(self._gone), AT_ONCE)]
        return self._encoded(b"*3\r\n" + xid_bulk(cursor), [encode.array_header(len(self._gone)), *parts])
