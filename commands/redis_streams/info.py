"""XINFO: a stream, its groups and their consumers.

The fields about Redis's radix tree describe the stream's macro nodes: as many keys, and one node more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from commands.context import Chunks, Context, Reply, Slices, nothing
from commands.declare import arg, block, command, key, opt
from commands.parse import integer
from commands.redis_streams.consumers import owner_of
from commands.redis_streams.ids import xid_bulk
from commands.redis_streams.lag import lag
from commands.redis_streams.replies import range_reply
from commands.slicing import AT_ONCE, array_of, gathered, row_pages
from resp import errors
from resp import reply as encode
from resp.errors import CommandError
from storage.groups.group import Consumer, Group
from storage.model.ids import MAX_ID
from storage.nodes.redisform import redis_entries
from storage.streams.stream import Stream

DEFAULT_COUNT: Final = 10  # default COUNT of FULL
GROUPS: Final = 300  # number of groups described in one slice
HELD_BY_GROUP: Final = 1000  # bytes of memory while a long reply is sent
HELD_BY_CONSUMER: Final = 200
NOBODY: Final = 0  # number instead of a consumer's: the owner of messages that XNACK returned

Pairs = list[tuple[bytes, bytes]]


def _stream(ctx: Context, argv: list[bytes]) -> Stream:
    """Return the stream in argv. Raises CommandError."""
    stream = ctx.ks.read_stream(argv[2], ctx.now)
    if stream is None:
        raise CommandError(errors.NO_SUCH_KEY)
    return stream


def _known(number: int | None, proto: int) -> bytes:
    return encode.null(proto) if number is None else encode.integer(number)


def _read(group: Group, proto: int) -> bytes:
    return _known(group.entries_read if group.entries_read >= 0 else None, proto)


def _map(proto: int, pairs: Pairs) -> bytes:
    return encode.map_reply(proto, [(encode.bulk(name), value) for name, value in pairs])


@command(
    "XINFO|STREAM", key("RO ACCESS"),
    opt(block("full-block", arg("full", "pure-token", token="FULL"), opt(arg("count", "integer", token="COUNT")))),
    flags="readonly",
    complexity="O(P): P producers; with FULL O(P + G + M): G groups and consumers, M entries and messages returned.",
)  # fmt: skip
def xinfo_stream(ctx: Context, argv: list[bytes]) -> Reply:
    """Return a map about a stream; with FULL also its entries, groups, consumers and their pending messages."""
    stream = _stream(ctx, argv)
    proto = ctx.session.proto
    words = len(argv)
    if words == 3:
        pairs = _info(stream)
        pairs.append((b"groups", encode.integer(len(stream.groups))))
        pairs.append((b"first-entry", _entry(stream, stream.first_id(), proto)))
        pairs.append((b"last-entry", _entry(stream, stream.newest_id(), proto)))
        return _map(proto, pairs)
    if words not in (4, 6) or argv[3].upper() != b"FULL" or (words == 6 and argv[4].upper() != b"COUNT"):
        raise errors.bad_subcommand(argv)
    count = integer(argv[5]) if words == 6 else DEFAULT_COUNT
    return _full(ctx, stream, count if count >= 0 else DEFAULT_COUNT)


def _info(stream: Stream) -> Pairs:
    nodes = stream.node_count
    keep_ms, most = stream.idmp()
    producers = stream.producers
    pairs = [
        (b"length", encode.integer(stream.length)),
        (b"radix-tree-keys", encode.integer(nodes)),
        (b"radix-tree-nodes", encode.integer(nodes + 1)),
        (b"last-generated-id", xid_bulk(stream.last_id)),
        (b"max-deleted-entry-id", xid_bulk(stream.max_deleted)),
        (b"entries-added", encode.integer(stream.entries_added)),
        (b"recorded-first-entry-id", xid_bulk(stream.first_id())),
        (b"idmp-duration", encode.integer(keep_ms // 1000)),
        (b"idmp-maxsize", encode.integer(most)),
        (b"pids-tracked", encode.integer(0 if producers is None else len(producers.by_name))),
        (b"iids-tracked", encode.integer(0 if producers is None else producers.tracked())),
        (b"iids-added", encode.integer(0 if producers is None else producers.added)),
        (b"iids-duplicates", encode.integer(0 if producers is None else producers.duplicates)),
    ]
    if stream.retention is not None:  # Redis has no such field
        pairs.append((b"retain", encode.bulk(stream.retention.words())))
    if stream.tier_after is not None:
        pairs.append((b"tier", encode.bulk(stream.tier_after.words())))
    return pairs


def _entry(stream: Stream, id: int, proto: int) -> bytes:  # noqa: A002
    wire = stream.find(id) if id else None
    return encode.null(proto) if wire is None else redis_entries([wire])


def _full(ctx: Context, stream: Stream, count: int) -> Reply:
    """Return the reply of FULL. ``count``: of entries, and of messages of each group and consumer; 0: all."""
    full = _Full(stream, count, ctx.session.proto, ctx.ks.away)
    few = len(stream.groups) <= GROUPS and sum([len(group.consumers) for group in stream.groups.values()]) <= AT_ONCE
    adding = full.add_groups(stream, not few)
    if few:
        for _ in adding:
            pass
        return full.reply(False)

    def step(_: Context) -> bytes | Chunks | None:
        return full.reply(True) if next(adding, -1) < 0 else None

    return Slices(step, False, full.close)


class _Full:
    """The reply of XINFO STREAM FULL: the entries as of its creation; add_groups() adds the groups."""

    __slots__ = ("_away", "_count", "_entries", "_groups", "_head", "_proto")

    def __init__(self, stream: Stream, count: int, proto: int, away: int) -> None:
        """Initialize. ``count``: of entries, and of messages of each group and consumer; 0: all. ``away``: the
        keyspace's."""
        self._count = count
        self._proto = proto
        self._away = away
        info = _info(stream)
        head = encode.map_header(proto, len(info) + 2) + b"".join([encode.bulk(name) + value for name, value in info])
        self._head = head + encode.bulk(b"entries")
        lo = stream.first_ord
        hi = stream.after(lo, count) if count else stream.next_ord
        self._entries: bytes | Chunks = encode.EMPTY_ARRAY
        if stream.length:
            self._entries = range_reply(stream, stream.position_of(lo), hi, stream.count(lo, hi))
        self._groups: list[_FullGroup] = []

    def add_groups(self, stream: Stream, freeze: bool) -> Iterator[int]:
        """Add all groups; yield after some of them. ``freeze``: immediately, as other commands may change them."""
        work = 0
        for name in sorted(stream.groups):
            group = stream.groups.get(name)
            if group is None:
                continue
            full = _FullGroup(stream, group, self._count, self._proto, self._away)
            if freeze:
                full.freeze()
            self._groups.append(full)
            consumers = [group.consumers[consumer] for consumer in sorted(group.consumers)]
            for at in range(0, len(consumers), AT_ONCE):
                full.add(consumers[at : at + AT_ONCE])
                work += len(consumers[at : at + AT_ONCE])
                if work > AT_ONCE:
                    work = 0
                    yield work
            work += AT_ONCE // GROUPS
            if work > AT_ONCE:
                work = 0
                yield work

    def close(self) -> None:
        if isinstance(self._entries, Chunks):
            self._entries.close()

    def reply(self, frozen: bool) -> bytes | Chunks:
        """Return the reply. ``frozen``: the groups are frozen."""
        head, entries, groups = self._head, self._entries, self._groups
        tail = encode.bulk(b"groups") + encode.array_header(len(groups))
        listed = sum([group.listed for group in groups])
        if isinstance(entries, bytes) and listed <= AT_ONCE and not frozen:
            return b"".join([head, entries, tail, *[piece for group in groups for piece in group.pieces()]])
        if not frozen:
            for group in groups:
                group.freeze()
        held = len(head) + len(tail) + sum([group.held for group in groups])
        if isinstance(entries, bytes):
            return Chunks(gathered(_in_turn(head, iter([entries]), tail, groups)), nothing, held + len(entries))
        pieces = gathered(_in_turn(head, entries.pieces, tail, groups))
        return Chunks(pieces, entries.close, held + entries.held, entries.pinned)


def _in_turn(head: bytes, entries: Iterator[bytes], tail: bytes, groups: list[_FullGroup]) -> Iterator[bytes]:
    first = next(entries, b"")  # if an entry is damaged, the reply can still be an error
    yield head + first
    yield from entries
    yield tail
    groups.reverse()
    while groups:  # freed one by one: freeing 40,000 groups together at the end takes 90 ms
        yield from groups.pop().pieces()


class _FullGroup:
    """A group as it was when the command ran; after freeze(), its part of the reply can be built while it is sent."""

    __slots__ = ("_away", "_consumers", "_count", "_head", "_most", "_owners", "_pending", "_proto", "held", "listed")

    def __init__(self, stream: Stream, group: Group, count: int, proto: int, away: int) -> None:
        """Initialize. ``count``: of messages, of the group and each consumer; 0: all. ``away``: the keyspace's."""
        pending = group.pending
        self._proto = proto
        self._count = count
        self._away = away
        most = min(count, len(pending)) if count else len(pending)
        self._pending = pending
        self._owners = group.owners
        # of each consumer: the part of the reply before its messages, its number, and how many messages follow
        self._consumers: list[tuple[bytes, int, int]] = []
        self.listed = self._most = most
        self.held = HELD_BY_GROUP + len(pending) // 4
        pairs = [
            (b"name", encode.bulk(group.name)),
            (b"last-delivered-id", xid_bulk(group.offset)),
            (b"entries-read", _read(group, proto)),
            (b"lag", _known(lag(stream, group), proto)),
            (b"pel-count", encode.integer(len(pending))),
            (b"nacked-count", encode.integer(pending.owned(NOBODY))),
        ]
        self._head = _before_pending(proto, pairs, len(pairs) + 2, most)

    def add(self, consumers: list[Consumer]) -> None:
        """Add the next consumers, sorted by name."""
        for one in consumers:
            owned = self._pending.owned(one.number)
            listed = min(self._count, owned) if self._count else owned
            pairs = [
                (b"name", encode.bulk(one.name)),
                (b"seen-time", encode.integer(one.seen)),
                (b"active-time", encode.integer(one.active)),
                (b"pel-count", encode.integer(owned)),
            ]
            head = _before_pending(self._proto, pairs, len(pairs) + 1, listed)
            self._consumers.append((head, one.number, listed))
            self.listed += listed + 1
            self.held += HELD_BY_CONSUMER + len(head)

    def freeze(self) -> None:
        """Copy what a streamed reply needs, because other commands change the group before it is built."""
        self._pending = self._pending.freeze()
        self._owners = self._owners.copy()

    def pieces(self) -> Iterator[bytes]:
        yield self._head
        for rows in row_pages(self._pending, 0, MAX_ID, self._most):
            yield b"".join(
                [
                    b"*4\r\n%b%b:%d\r\n:%d\r\n"
                    % (xid_bulk(row.id), owner_of(self._owners, row), row.delivered(self._away), row.deliveries)
                    for row in rows
                ]
            )
        yield encode.bulk(b"consumers") + encode.array_header(len(self._consumers))
        for head, number, listed in self._consumers:
            yield head
            for rows in row_pages(self._pending, 0, MAX_ID, listed, number):
                yield b"".join(
                    [b"*3\r\n%b:%d\r\n:%d\r\n" % (xid_bulk(row.id), row.last, row.deliveries) for row in rows]
                )


def _before_pending(proto: int, pairs: Pairs, size: int, listed: int) -> bytes:
    """Return the beginning of a map of ``size`` pairs, up to the ``listed`` elements of its list of messages."""
    fields = [encode.bulk(name) + value for name, value in pairs]
    return b"".join([encode.map_header(proto, size), *fields, encode.bulk(b"pending"), encode.array_header(listed)])


@command("XINFO|GROUPS", key("RO ACCESS"), flags="readonly", complexity="O(G): G groups.")
def xinfo_groups(ctx: Context, argv: list[bytes]) -> Reply:
    """Return a map for each group of a stream."""
    stream, proto = _stream(ctx, argv), ctx.session.proto

    def described(name: bytes) -> bytes:
        group = stream.groups.get(name)
        if group is None:  # the group was deleted in the meantime
            return b""
        return _map(proto, [
            (b"name", encode.bulk(name)),
            (b"consumers", encode.integer(len(group.consumers))),
            (b"pending", encode.integer(len(group.pending))),
            (b"last-delivered-id", xid_bulk(group.offset)),
            (b"entries-read", _read(group, proto)),
            (b"lag", _known(lag(stream, group), proto)),
        ])  # fmt: skip

    return array_of(sorted(stream.groups), described, ctx, GROUPS)


@command("XINFO|CONSUMERS", key("RO ACCESS"), arg("group"), flags="readonly", complexity="O(C): C consumers.")
def xinfo_consumers(ctx: Context, argv: list[bytes]) -> Reply:
    """Return a map for each consumer of a group."""
    group = _stream(ctx, argv).groups.get(argv[3])
    if group is None:
        raise errors.quoting(errors.NO_GROUP_OF_KEY, argv[3], argv[2])
    proto, now = ctx.session.proto, ctx.now

    def described(name: bytes) -> bytes:
        consumer = group.consumers.get(name)
        if consumer is None:
            return b""
        return _map(proto, [
            (b"name", encode.bulk(name)),
            (b"pending", encode.integer(group.pending.owned(consumer.number))),
            (b"idle", encode.integer(max(0, now - consumer.seen))),
            (b"inactive", encode.integer(max(0, now - consumer.active) if consumer.active >= 0 else -1)),
        ])  # fmt: skip

    return array_of(sorted(group.consumers), described, ctx)
