"""TAPPEND, TAPPEV, TMAPPEND. Semantics [3] to [7] and [31]."""

from __future__ import annotations

from array import array

from commands.context import Context, Reply
from commands.declare import arg, batch, block, command, key, oneof, opt, repeat
from commands.parse import positive
from commands.streams.rows import parsed_rows
from resp import errors
from resp import reply as encode
from resp.errors import CommandError
from storage.entries import entry_wire, id_bulk
from storage.ids import MASK64, parse_id
from storage.stream import Stream


@command(
    "TAPPEND", key("RW INSERT"), repeat(block("data", arg("field"), arg("value"))),
    flags="write denyoom fast", group="stream", since="0.1.0", complexity="O(1)",
)  # fmt: skip
def tappend(ctx: Context, argv: list[bytes]) -> Reply:
    """Append an entry to a stream and return its ID. Creates the key if it doesn't exist."""
    if len(argv) & 1:
        raise errors.arity("tappend")
    ks = ctx.ks
    name = argv[1]
    now = ctx.now
    # the usual cases of Keyspace.stream() and next_id() in line: saves 5 % of the instructions, 8 % of the time
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


@batch("TAPPEND")
def tappend_batch(ctx: Context, calls: list[list[bytes]], raw: bytes, borders: list[int]) -> list[bytes] | None:
    """A batch of TAPPENDs to one key: the same IDs, entries and replies as one by one, but one record for all.

    None if the result would not be the same: a reader waits for the key, the sequence numbers are about to run out, or
    the arguments are wrong.
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
    """The entries of calls like ``first``, joined: the bytes after the key have an entry's form already.

        *6 $7 TAPPEND $1 k $6 sensor $2 01 ...      a call as received
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


@command(
    "TAPPEV", key("RW INSERT DELETE"),
    oneof(
        "strategy", arg("count", "integer", token="COUNT"), arg("ms", "integer", token="TIME"), arg("id", token="MINID")
    ),
    opt(repeat(block("data", arg("field"), arg("value")))),
    flags="write denyoom", group="stream", since="0.1.0",
    complexity="O(log N + M): N macro nodes, M of them evicted.", adds=lambda argv: len(argv) > 4,
)  # fmt: skip
def tappev(ctx: Context, argv: list[bytes]) -> Reply:
    """Append an entry if one is given, then evict all but the newest ones, by number, age or ID."""
    if len(argv) & 1:
        raise errors.arity("tappev")
    ks, name, now = ctx.ks, argv[1], ctx.now
    how = argv[2].upper()
    if how == b"COUNT" or how == b"TIME":
        limit = positive(argv[3])
    elif how == b"MINID":
        limit = parse_id(argv[3])
    else:
        raise errors.syntax()
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
            border = stream.ord_from(limit if how == b"MINID" else max(0, now - limit + 1) << 64)
        if border > stream.first_ord:
            evicted = ks.evict(name, stream, border, stream.id_at(border - 1))
    return result or encode.integer(evicted)


@command(
    "TMAPPEND", key("RW INSERT"), arg("n", "integer", token="FIELDS"), repeat(arg("field")),
    arg("value", token="VALUES"), opt(repeat(arg("more-values"))),
    flags="write denyoom", group="stream", since="0.1.0", complexity="O(N): N values.",
)  # fmt: skip
def tmappend(ctx: Context, argv: list[bytes]) -> Reply:
    """Append many entries with the same fields, all or nothing, and return the first and the last ID."""
    ks, name = ctx.ks, argv[1]
    rows = parsed_rows(ctx, argv[2:], "tmappend")
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
        part = min(total - done, MASK64 - seq + 1)  # the rest belongs to the next millisecond
        ks.append_packed(name, stream, ms, seq, *rows.written(ms, seq, done, done + part))
        done += part
        last = (ms, seq + part - 1)
        ms, seq = ms + 1, 0
    return b"*2\r\n" + id_bulk(*first) + b"\r\n" + id_bulk(*last) + b"\r\n"
