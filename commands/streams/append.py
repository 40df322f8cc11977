"""TAPPEND, TAPPEV, TMAPPEND, TRANGE, TREVRANGE, TLEN, TINFO, TCOUNT, TSEEK: streams without groups.

What each does in every corner stands in docs/semantics.md; the numbers in brackets are its points.
"""

from __future__ import annotations

from array import array

from commands.context import Context, Reply
from commands.declare import arg, batch, block, command, key, oneof, opt, repeat
from commands.parse import integer, positive
from commands.streams.entries import entries_reply, entry_wire, id_bulk, reversed_reply
from commands.streams.rows import Rows
from resp import errors
from resp import reply as encode
from resp.errors import CommandError
from storage.ids import MASK64, format_id, parse_id, parse_range_end, parse_range_start
from storage.keyspace import Keyspace
from storage.stream import Stream


@command(
    "TAPPEND", key("RW"), repeat(block("data", arg("field"), arg("value"))),
    flags="write denyoom fast", group="stream", since="0.1.0", complexity="O(1)",
)  # fmt: skip
def tappend(ctx: Context, argv: list[bytes]) -> Reply:
    """Append an entry to a stream and return its ID. Creates the key if it doesn't exist."""
    if len(argv) & 1:
        raise errors.arity("tappend")
    ks = ctx.ks
    name = argv[1]
    now = ctx.now
    # the usual cases of Keyspace.stream() and next_id() in line
    stream = ks.keys.get(name)
    if ks.expires or not isinstance(stream, Stream):
        stream = ks.stream(name, now)
    if stream is None:
        stream = ks.create_stream(name)
        ms, seq = now, 0
    elif now > stream.last_ms:
        ms, seq = now, 0
    else:
        ms, seq = ks.next_id(stream, now)
    bulk_id = id_bulk(ms, seq)
    ks.append(name, stream, ms, seq, entry_wire(bulk_id, argv[2:]))
    return bulk_id + b"\r\n"


def tappend_run(ctx: Context, calls: list[list[bytes]], raw: bytes, borders: list[int]) -> list[bytes] | None:
    """TAPPENDs to one key that came together: the same IDs, entries and replies, and one record for all.

    None where that would not be the same: a reader waits for the key, the ID's parts are about to overflow, or an
    argument is wrong.
    """
    ks, now = ctx.ks, ctx.now
    first = calls[0]
    name = first[1]
    if name in ks.waiting or len(first) & 1:
        return None
    stream = ks.stream(name, now)
    ms, seq = ks.next_id(stream, now)
    if MASK64 - seq < len(calls):
        return None
    if stream is None:
        stream = ks.create_stream(name)
    replies = [id_bulk(ms, at) + b"\r\n" for at in range(seq, seq + len(calls))]
    sizes = array("I")
    if borders:
        wire = _rewritten(first, raw, borders, replies, sizes)
    else:
        wires = [entry_wire(reply[:-2], argv[2:]) for reply, argv in zip(replies, calls, strict=True)]
        sizes.extend(list(map(len, wires)))
        wire = b"".join(wires)
    ks.append_packed(name, stream, ms, seq, sizes, wire)
    return replies


def _rewritten(first: list[bytes], raw: bytes, borders: list[int], ids: list[bytes], sizes: array[int]) -> bytes:
    """The entries of calls like ``first``: what stands behind the key is in an entry's form already.

        *6 $7 TAPPEND $1 k $6 sensor $2 01 ...      a call as it came
        *5 $15 1486475519747.0 $6 sensor $2 01 ...  its entry
    """
    head = b"*%d\r\n" % (len(first) - 1)
    name, key = first[0], first[1]
    skip = len(b"*%d\r\n$%d\r\n\r\n$%d\r\n\r\n" % (len(first), len(name), len(key))) + len(name) + len(key)
    parts: list[bytes] = []
    start = borders[0]
    for i in range(len(ids)):
        end = borders[i + 1]
        entry_id, data = ids[i], raw[start + skip : end]
        parts.append(head)
        parts.append(entry_id)
        parts.append(data)
        sizes.append(len(head) + len(entry_id) + len(data))
        start = end
    return b"".join(parts)


batch("TAPPEND")(tappend_run)


@command(
    "TAPPEV", key("RW"),
    oneof("strategy", arg("count", "pure-token", token="COUNT"), arg("time", "pure-token", token="TIME")),
    arg("n", "integer"), opt(repeat(block("data", arg("field"), arg("value")))),
    flags="write denyoom", group="stream", since="0.1.0",
    complexity="O(log N + M): N macro nodes, M of them evicted.",
)  # fmt: skip
def tappev(ctx: Context, argv: list[bytes]) -> Reply:
    """Append an entry if one is given, then evict all but the newest n entries or the entries younger than n ms."""
    if len(argv) & 1:
        raise errors.arity("tappev")
    ks, name, now = ctx.ks, argv[1], ctx.now
    how = argv[2].upper()
    if how not in (b"COUNT", b"TIME"):
        raise errors.syntax()
    limit = positive(argv[3])
    stream = ks.stream(name, now)
    result = b""
    if len(argv) > 4:
        ms, seq = ks.next_id(stream, now)
        if stream is None:
            stream = ks.create_stream(name)
        bulk_id = id_bulk(ms, seq)
        ks.append(name, stream, ms, seq, entry_wire(bulk_id, argv[4:]))
        result = bulk_id + b"\r\n"
    evicted = 0
    if stream is not None:
        if how == b"COUNT":
            border = max(stream.first_ord, stream.next_ord - limit)
        else:
            border = stream.ord_from(max(0, now - limit + 1) << 64)
        if border > stream.first_ord:
            evicted = ks.evict(name, stream, border, stream.id_at(border - 1))
    return result or encode.integer(evicted)


@command(
    "TMAPPEND", key("RW"), arg("n", "integer", token="FIELDS"), repeat(arg("field")),
    arg("value", token="VALUES"), opt(repeat(arg("more-values"))),
    flags="write denyoom", group="stream", since="0.1.0", complexity="O(N): N values.",
)  # fmt: skip
def tmappend(ctx: Context, argv: list[bytes]) -> Reply:
    """Append many entries with the same fields, all or nothing, and return the first and the last ID."""
    ks, name = ctx.ks, argv[1]
    rows = Rows(argv[2:], "tmappend")
    total = rows.total
    stream = ks.stream(name, ctx.now)
    ms, seq = ks.next_id(stream, ctx.now)
    if ms == MASK64 and MASK64 - seq < total - 1:
        raise CommandError(errors.ID_EXHAUSTED)
    if stream is None:
        stream = ks.create_stream(name)
    first = (ms, seq)
    done = 0
    while done < total:
        part = min(total - done, MASK64 - seq + 1)  # a run ends where the sequence number does
        ks.append_packed(name, stream, ms, seq, *rows.written(ms, seq, done, done + part))
        done += part
        last = (ms, seq + part - 1)
        ms, seq = ms + 1, 0
    return b"*2\r\n" + id_bulk(*first) + b"\r\n" + id_bulk(*last) + b"\r\n"


@command(
    "TRANGE", key("RO"), arg("start-id"), arg("end-id"), opt(arg("count", "integer", token="COUNT")),
    flags="readonly", group="stream", since="0.1.0",
    complexity="O(log N + M): N macro nodes, M entries returned.",
)  # fmt: skip
def trange(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the entries between two IDs, both included, oldest first."""
    found = _range(ctx, argv, 2, 3)
    if found is None:
        return encode.EMPTY_ARRAY
    stream, lo, hi, count = found
    hi = min(hi, lo + count)
    return entries_reply(hi - lo, b"", stream, lo, hi)


@command(
    "TREVRANGE", key("RO"), arg("end-id"), arg("start-id"), opt(arg("count", "integer", token="COUNT")),
    flags="readonly", group="stream", since="0.1.0",
    complexity="O(log N + M): N macro nodes, M entries returned.",
)  # fmt: skip
def trevrange(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the entries between two IDs, both included, newest first."""
    found = _range(ctx, argv, 3, 2)
    if found is None:
        return encode.EMPTY_ARRAY
    stream, lo, hi, count = found
    lo = max(lo, hi - count)
    return reversed_reply(stream, lo, hi)


def _range(ctx: Context, argv: list[bytes], start_at: int, end_at: int) -> tuple[Stream, int, int, int] | None:
    """Stream, ordinals [lo, hi) and count; None if there is nothing."""
    start, end = parse_range_start(argv[start_at]), parse_range_end(argv[end_at])
    count = 1 << 62
    if len(argv) > 4:
        if len(argv) != 6 or argv[4].upper() != b"COUNT":
            raise errors.syntax()
        count = integer(argv[5])
    stream = ctx.ks.stream(argv[1], ctx.now)
    if stream is None or count <= 0 or start > end:
        return None
    hi = stream.next_ord if end >= stream.last_id else stream.ord_from(end + 1)
    lo = stream.ord_from(start)  # last, so that its node is at hand for the read
    return (stream, lo, hi, count) if lo < hi else None


@command("TLEN", key("RO"), flags="readonly fast", group="stream", since="0.1.0", complexity="O(1)")
def tlen(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of entries in a stream, 0 if the key doesn't exist."""
    stream = ctx.ks.stream(argv[1], ctx.now)
    return encode.integer(stream.length if stream is not None else 0)


@command(
    "TCOUNT", key("RO"), arg("start-id"), arg("end-id"),
    flags="readonly fast", group="stream", since="0.1.0", complexity="O(log N): N macro nodes.",
)  # fmt: skip
def tcount(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of entries between two IDs, both included, without reading them."""
    found = _range(ctx, argv, 2, 3)
    return encode.integer(found[2] - found[1] if found is not None else 0)


@command(
    "TSEEK", key("RO"), arg("last-id"), arg("n", "integer"),
    flags="readonly fast", group="stream", since="0.1.0", complexity="O(log N): N macro nodes.",
)  # fmt: skip
def tseek(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the ID of the n-th entry after last-id, or of the last entry if there are fewer."""
    last_id, n = parse_id(argv[2]), integer(argv[3])
    if n < 1:
        raise CommandError(errors.NOT_POSITIVE)
    stream = ctx.ks.stream(argv[1], ctx.now)
    if stream is None:
        return encode.null(ctx.session.proto)
    lo = stream.ord_from(last_id + 1)
    if lo >= stream.next_ord:
        return encode.null(ctx.session.proto)
    return encode.bulk(format_id(stream.id_at(min(lo + n, stream.next_ord) - 1)))


@command("TINFO", key("RO"), flags="readonly", group="stream", since="0.1.0", complexity="O(log N): N macro nodes.")
def tinfo(ctx: Context, argv: list[bytes]) -> Reply:
    """Return what is known of a stream: its length, IDs, counters, and the space that it takes."""
    stream = ctx.ks.stream(argv[1], ctx.now)
    if stream is None:
        raise CommandError(errors.NO_SUCH_KEY)
    return encode.encode(ctx.session.proto, stream_facts(ctx.ks, stream))


def stream_facts(ks: Keyspace, stream: Stream) -> dict[str, int | bytes | None]:
    """TINFO's map."""
    groups = stream.groups.values()
    return {
        "length": stream.length,
        "first": format_id(stream.first_id()) if stream.length else None,
        "last": format_id(stream.last_id),
        "entries-added": stream.next_ord,
        "evicted": stream.first_ord,
        "evicted-to": format_id(stream.evicted_to),
        "nodes": stream.node_count,
        "memory-bytes": stream.memory_bytes() + sum(g.pending.memory_bytes() for g in groups),
        "disk-bytes": stream.disk_bytes(),
        "groups": len(stream.groups),
        "pending": sum(len(g.pending) for g in groups),
        "redelivered": sum(g.redelivered for g in groups),
        "expired": sum(g.expired for g in groups),
        "dead-lettered": sum(g.deadlettered for g in groups),
    }
