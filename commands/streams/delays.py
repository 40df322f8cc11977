"""TDELAY: entries that join a stream later. Semantics [104], [105]."""

from __future__ import annotations

from typing import Final

from commands.context import Context, Reply
from commands.declare import arg, block, command, key, oneof, opt, repeat, token
from commands.parse import MOST_FIELDS, integer, positive, span
from resp import errors
from resp import reply as encode
from resp.errors import CommandError
from storage.keyspace import delaymutators, events
from storage.model.entries import entry_wire, id_bulk, wire_values
from storage.model.ids import MASK64, format_id
from storage.streams.delayed import LAST_DUE, LONGEST_TOKEN, OWN, WALL, DelayedEntries, split, stored_head

LISTED: Final = 100  # entries of a page, unless COUNT is given
MOST_LISTED: Final = 1000
LISTED_BYTES: Final = 1 << 20  # of the entries of a page; there is at least one
LISTED_NODES: Final = 100  # that a page opens, which takes about 20 ms
START: Final = b"0"  # the first cursor, and the one after the last page

Cursor = tuple[tuple[int, int], tuple[int, int]]  # due time and ordinal from which on to list, for each clock


def _adds(argv: list[bytes]) -> bool:
    return argv[2].upper() in (b"IN", b"AT") if len(argv) > 2 else False


def _writes(argv: list[bytes]) -> bool:
    return _adds(argv) or (len(argv) > 2 and argv[2].upper() == b"CANCEL")


def _reads(argv: list[bytes]) -> bool:
    return not _writes(argv)


_ENTRY: Final = (opt(arg("token", token="ID")), repeat(block("data", arg("field"), arg("value"))))


@command(
    "TDELAY", key("RW ACCESS INSERT DELETE"),
    oneof(
        "action",
        block("in", arg("ms", "integer", token="IN"), *_ENTRY),
        block("at", arg("unix-time-milliseconds", "unix-time", token="AT"), *_ENTRY),
        arg("cancelled-token", token="CANCEL"),
        block("list", token("LIST"), opt(arg("cursor")), opt(arg("count", "integer", token="COUNT"))),
        token("COUNT"),
    ),
    flags="write denyoom", writes=_writes, adds=_adds, reads=_reads, most=5 + 2 * MOST_FIELDS,
    complexity="O(log N): N delayed entries; with LIST O(log N + M): M entries returned.",
)  # fmt: skip
def tdelay(ctx: Context, argv: list[bytes]) -> Reply:
    """Add an entry that joins the stream when it is due, and return its token; cancel, list or count such entries."""
    action = argv[2].upper()
    if action in (b"IN", b"AT"):
        return _delay(ctx, argv, WALL if action == b"AT" else 0)
    if action == b"CANCEL" and len(argv) == 4:
        return _cancel(ctx, argv[1], argv[3])
    if action == b"LIST":
        return _list(ctx, argv)
    if action == b"COUNT" and len(argv) == 3:
        stream = ctx.ks.read_stream(argv[1], ctx.now)
        delayed = ctx.ks.delayed.get(argv[1]) if stream is not None else None
        return encode.integer(0 if delayed is None else len(delayed))
    raise errors.syntax()


def _delay(ctx: Context, argv: list[bytes], wall: int) -> bytes:
    ks, name, now = ctx.ks, argv[1], ctx.now
    chosen, at = b"", 4
    if len(argv) > 5 and argv[4].upper() == b"ID":
        chosen, at = argv[5], 6
        if not 1 <= len(chosen) <= LONGEST_TOKEN:
            raise CommandError(f"ERR the token of a delayed entry has 1 to {LONGEST_TOKEN} bytes")
    if len(argv) < at + 2 or (len(argv) - at) & 1:
        raise errors.arity("tdelay")
    if wall:
        due = positive(argv[3])
    else:
        served = ctx.served_for_deadline()
        ks.served_seen = max(ks.served_seen, served)
        due = served + span(argv[3])
    if not 0 <= due <= LAST_DUE:
        raise CommandError(errors.NOT_INTEGER)
    stream, delayed = ks.stream(name, now), ks.delayed.get(name)
    if chosen and stream is not None:
        if delayed is not None and delayed.find(chosen) is not None:
            return encode.bulk(chosen)
        if stream.producers is not None and stream.producers.find(delaymutators.TOKENS, chosen, now):
            return encode.bulk(chosen)
    ms, seq = ks.next_id(None if delayed is None else delayed.entries, now)
    used = chosen or format_id(ms << 64 | seq)
    while not chosen and delayed is not None and delayed.find(used) is not None and seq < MASK64:
        seq += 1  # a client chose a token of this form
        used = format_id(ms << 64 | seq)
    head = stored_head(used, due, wall | (OWN if chosen else 0))
    wire = entry_wire(id_bulk(ms, seq), [*head, *argv[at:]])
    if stream is None:
        stream = ks.create_stream(name)
    delaymutators.delay(ks, name, stream, delaymutators.companion(ks, name), ms, seq, wire, split(wire))
    ks.notify(events.STREAM, b"tdelay", name)
    return encode.bulk(used)


def _cancel(ctx: Context, name: bytes, used: bytes) -> bytes:
    stream, delayed = ctx.ks.stream(name, ctx.now), ctx.ks.delayed.get(name)
    found = delayed.find(used) if stream is not None and delayed is not None else None
    if delayed is None or found is None:
        return encode.integer(0)
    ordinal, entry = found
    delaymutators.cancel(ctx.ks, name, delayed, ordinal, delayed.read(ordinal), entry)
    ctx.ks.notify(events.STREAM, b"tdelay-cancel", name)
    return encode.integer(1)


def _list(ctx: Context, argv: list[bytes]) -> bytes:
    at, cursor, count = 3, START, LISTED
    if len(argv) in (4, 6):
        cursor, at = argv[3], 4
    if len(argv) == at + 2 and argv[at].upper() == b"COUNT":
        count, at = integer(argv[at + 1]), at + 2
        if not 1 <= count <= MOST_LISTED:
            raise CommandError(f"ERR COUNT must be 1 to {MOST_LISTED}: continue with the cursor that LIST returns")
    if len(argv) != at:
        raise errors.syntax()
    since = _parsed(cursor)
    stream, delayed = ctx.ks.read_stream(argv[1], ctx.now), ctx.ks.delayed.get(argv[1])
    if stream is None or delayed is None:
        return encode.array_header(2) + encode.bulk(START) + encode.array_header(0)
    return _page(ctx, delayed, since, count)


def _page(ctx: Context, delayed: DelayedEntries, since: Cursor, count: int) -> bytes:
    """Return a page of LIST: the next cursor, and entries in due order."""
    ks, cache = ctx.ks, ctx.ks.pool.cache
    before, size = cache.misses, 0
    rows = sorted(
        [(at + ks.away, ordinal, 0, at) for at, ordinal in delayed.listed(0, since[0], count + 1)]
        + [(at, ordinal, WALL, at) for at, ordinal in delayed.listed(WALL, since[1], count + 1)]
    )
    following = list(since)
    parts: list[bytes] = []
    for unix, ordinal, wall, at in rows:
        following[wall] = at, ordinal
        if len(parts) == count or size >= LISTED_BYTES or cache.misses - before >= LISTED_NODES:
            break
        wire = delayed.read(ordinal)
        values = wire_values(wire)
        words = [encode.bulk(values[0]), encode.integer(max(0, unix)), *map(encode.bulk, values[2:])]
        parts.append(encode.array_header(len(words)) + b"".join(words))
        size += len(wire)
        following[wall] = at, ordinal + 1
    last = len(parts) == len(rows)
    cursor = START if last else b"%d-%d-%d-%d" % (*following[0], *following[1])
    return b"".join((encode.array_header(2), encode.bulk(cursor), encode.array_header(len(parts)), *parts))


def _parsed(cursor: bytes) -> Cursor:
    """Parse a cursor. Raises CommandError."""
    if cursor == START:
        return (0, 0), (0, 0)
    words = cursor.split(b"-")
    if len(words) != 4 or not all(word.isdigit() and len(word) <= 20 for word in words):
        raise CommandError("ERR invalid cursor: use 0, or the cursor that LIST has returned")
    numbers = [int(word) for word in words]
    if max(numbers[0], numbers[2]) > LAST_DUE or max(numbers[1], numbers[3]) > MASK64:
        raise CommandError("ERR invalid cursor: use 0, or the cursor that LIST has returned")
    return (numbers[0], numbers[1]), (numbers[2], numbers[3])
