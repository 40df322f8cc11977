"""XINFO: a stream, its groups and their consumers.

What Redis tells of its radix tree is told of the stream's macro nodes: as many keys, and one node more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from commands.context import Chunks, Context, Reply
from commands.declare import arg, block, command, key, opt
from commands.help import help_reply
from commands.parse import integer
from commands.redis_streams.ids import xid_bulk
from commands.redis_streams.lag import lag
from commands.redis_streams.owners import is_given_back, owner_of
from commands.redis_streams.replies import range_reply
from resp import errors
from resp import reply as encode
from resp.errors import CommandError
from storage.groups.group import Consumer, Group
from storage.groups.pending import PendingRow
from storage.ids import MAX_ID
from storage.nodes.dashed import dashed_many
from storage.stream import Stream

DEFAULT_COUNT: Final = 10  # of FULL
NOBODY: Final = 0  # in place of a consumer's number: who owns what XNACK has given back

Pairs = list[tuple[bytes, bytes]]


def _stream(ctx: Context, argv: list[bytes]) -> Stream:
    """Raises CommandError."""
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
    flags="readonly", group="stream", since="0.1.0",
    complexity="O(P): P producers; with FULL O(P + G + M): G groups and consumers, M entries and messages returned.",
)  # fmt: skip
def xinfo_stream(ctx: Context, argv: list[bytes]) -> Reply:
    """Return a map about a stream; with FULL also its entries, groups, consumers and what they have pending."""
    stream = _stream(ctx, argv)
    proto = ctx.session.proto
    words = len(argv)
    if words == 3:
        pairs = _facts(stream)
        pairs.append((b"groups", encode.integer(len(stream.groups))))
        pairs.append((b"first-entry", _entry(stream, stream.first_id(), proto)))
        pairs.append((b"last-entry", _entry(stream, stream.newest_id(), proto)))
        return _map(proto, pairs)
    if words not in (4, 6) or argv[3].upper() != b"FULL" or (words == 6 and argv[4].upper() != b"COUNT"):
        raise errors.bad_subcommand(argv)
    count = integer(argv[5]) if words == 6 else DEFAULT_COUNT
    return _full(stream, count if count >= 0 else DEFAULT_COUNT, proto)


def _facts(stream: Stream) -> Pairs:
    nodes = stream.node_count
    keep_ms, most = stream.idmp()
    producers = stream.producers
    return [
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


def _entry(stream: Stream, id: int, proto: int) -> bytes:  # noqa: A002
    wire = stream.find(id) if id else None
    return encode.null(proto) if wire is None else dashed_many([wire])


def _full(stream: Stream, count: int, proto: int) -> bytes | Chunks:
    """``count``: of entries, and of messages of each group and consumer; 0: all."""
    groups = [_full_group(stream, stream.groups[name], count, proto) for name in sorted(stream.groups)]
    facts = _facts(stream)
    head = encode.map_header(proto, len(facts) + 2) + b"".join([encode.bulk(name) + value for name, value in facts])
    head += encode.bulk(b"entries")
    tail = encode.bulk(b"groups") + encode.array(groups)
    lo = stream.first_ord
    hi = stream.after(lo, count) if count else stream.next_ord
    entries = range_reply(stream, stream.place(lo), hi, stream.count(lo, hi)) if stream.length else encode.EMPTY_ARRAY
    if isinstance(entries, bytes):
        return head + entries + tail
    return Chunks(_around(head, entries.pieces, tail), entries.close, entries.held + len(head) + len(tail))


def _around(head: bytes, pieces: Iterator[bytes], tail: bytes) -> Iterator[bytes]:
    first = next(pieces, b"")  # if it is damaged, the reply can still be an error
    yield head + first
    yield from pieces
    yield tail


def _full_group(stream: Stream, group: Group, count: int, proto: int) -> bytes:
    pending = group.pending
    rows = pending.rows(0, MAX_ID, count or len(pending))
    listed = [
        b"*4\r\n%b%b:%d\r\n:%d\r\n" % (xid_bulk(row.id), owner_of(group.owners, row), _delivered(row), row.deliveries)
        for row in rows
    ]
    return _map(proto, [
        (b"name", encode.bulk(group.name)),
        (b"last-delivered-id", xid_bulk(group.offset)),
        (b"entries-read", _read(group, proto)),
        (b"lag", _known(lag(stream, group), proto)),
        (b"pel-count", encode.integer(len(pending))),
        (b"nacked-count", encode.integer(pending.owned(NOBODY))),
        (b"pending", encode.array(listed)),
        (b"consumers", encode.array([
            _full_consumer(group, group.consumers[name], count, proto) for name in sorted(group.consumers)
        ])),
    ])  # fmt: skip


def _full_consumer(group: Group, consumer: Consumer, count: int, proto: int) -> bytes:
    owned = group.pending.owned(consumer.number)
    rows = group.pending.rows_of(consumer.number, 0, MAX_ID, min(count, owned) if count else owned)
    listed = [b"*3\r\n%b:%d\r\n:%d\r\n" % (xid_bulk(row.id), row.last, row.deliveries) for row in rows]
    return _map(proto, [
        (b"name", encode.bulk(consumer.name)),
        (b"seen-time", encode.integer(consumer.seen)),
        (b"active-time", encode.integer(consumer.active)),
        (b"pel-count", encode.integer(owned)),
        (b"pending", encode.array(listed)),
    ])  # fmt: skip


def _delivered(row: PendingRow) -> int:
    return 0 if is_given_back(row) else row.last


@command(
    "XINFO|GROUPS", key("RO ACCESS"),
    flags="readonly", group="stream", since="0.1.0", complexity="O(G): G groups.",
)  # fmt: skip
def xinfo_groups(ctx: Context, argv: list[bytes]) -> Reply:
    """Return a map for each group of a stream."""
    stream = _stream(ctx, argv)
    proto = ctx.session.proto
    return encode.array([
        _map(proto, [
            (b"name", encode.bulk(name)),
            (b"consumers", encode.integer(len(group.consumers))),
            (b"pending", encode.integer(len(group.pending))),
            (b"last-delivered-id", xid_bulk(group.offset)),
            (b"entries-read", _read(group, proto)),
            (b"lag", _known(lag(stream, group), proto)),
        ])
        for name, group in sorted(stream.groups.items())
    ])  # fmt: skip


@command(
    "XINFO|CONSUMERS", key("RO ACCESS"), arg("group"),
    flags="readonly", group="stream", since="0.1.0", complexity="O(C): C consumers.",
)  # fmt: skip
def xinfo_consumers(ctx: Context, argv: list[bytes]) -> Reply:
    """Return a map for each consumer of a group."""
    group = _stream(ctx, argv).groups.get(argv[3])
    if group is None:
        raise errors.no_group_of_key(argv[2], argv[3])
    proto, now = ctx.session.proto, ctx.now
    return encode.array([
        _map(proto, [
            (b"name", encode.bulk(name)),
            (b"pending", encode.integer(group.pending.owned(consumer.number))),
            (b"idle", encode.integer(max(0, now - consumer.seen))),
            (b"inactive", encode.integer(now - consumer.active if consumer.active >= 0 else -1)),
        ])
        for name, consumer in sorted(group.consumers.items())
    ])  # fmt: skip


@command("XINFO|HELP", flags="loading stale", group="stream", since="0.1.0", complexity="O(1)")
def xinfo_help(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the subcommands with their summaries."""
    return help_reply("XINFO")
