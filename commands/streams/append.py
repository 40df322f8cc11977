"""TAPPEND, TAPPEV, TMAPPEND. Semantics [3] to [7] and [31]."""

from __future__ import annotations

from array import array
from typing import Final

from commands.context import Context, Reply
from commands.declare import alike, arg, batch, block, command, key, oneof, opt, repeat
from commands.parse import MOST_FIELDS, positive
from commands.streams.rows import parsed_rows
from resp import errors
from resp import reply as encode
from resp.errors import CommandError
from storage.keyspace import events
from storage.keyspace.keyspace import Keyspace
from storage.model.entries import COUNTS, bulk_ranges, entry_of, id_bulk
from storage.model.ids import MASK64, parse_id
from storage.streams.stream import Stream

LARGE: Final = 4096  # bytes of a value: from here on to copy it once more takes longer than to write its length
NO_END: Final = 1 << 62  # more calls than there can be


@command(
    "TAPPEND", key("RW INSERT"), repeat(block("data", arg("field"), arg("value"))),
    flags="write denyoom fast", group="stream", since="0.1.0", complexity="O(1)", most=1 + 2 * MOST_FIELDS,
)  # fmt: skip
def tappend(ctx: Context, argv: list[bytes]) -> Reply:
    """Append an entry to a stream and return its ID. Creates the key if it doesn't exist."""
    if len(argv) & 1:
        raise errors.arity("tappend")
    bulk_id = append_one(ctx, argv, 2)
    if ctx.ks.event_classes:
        ctx.ks.notify(events.STREAM, b"tappend", argv[1])
    return bulk_id + b"\r\n"


def append_one(ctx: Context, argv: list[bytes], at: int) -> bytes:
    """Append an entry now, of the arguments from ``at`` on; returns its id_bulk()."""
    ks = ctx.ks
    now = ctx.now
    name = argv[1]
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
    if not ks.no_touch:
        stream.used = now
    bulk_id = id_bulk(ms, seq)
    ks.append(name, stream, ms, seq, entry_of(bulk_id, argv, at))
    return bulk_id


def tappend_head(argv: list[bytes]) -> int:
    """Of TAPPENDs that are alike: command and key."""
    return 0 if len(argv) & 1 else head_of(argv, 2)


def head_of(argv: list[bytes], words: int) -> int:
    """So many words, if at least a field and its value follow, and no large ones."""
    return words if words + 2 <= len(argv) < len(COUNTS) and len(argv[-1]) < LARGE else 0


@alike("TAPPEND", tappend_head)
def tappend_alike(ctx: Context, argv: list[bytes], bodies: list[bytes]) -> bytes:
    """TAPPENDs to one key: see tappend_batch()."""
    ids = append_alike(ctx, argv, bodies, 2)
    if ids and ctx.ks.event_classes:
        for _ in bodies:
            ctx.ks.notify(events.STREAM, b"tappend", argv[1])
    return ids


def append_alike(ctx: Context, argv: list[bytes], bodies: list[bytes], values_at: int) -> bytes:
    """See append_batch(), and AlikeHandler: a body has an entry's form already.

        *6 $7 TAPPEND $1 k $6 sensor $2 01 ...      a call as received
        *5 $15 1486475519747.0 $6 sensor $2 01 ...  its entry

    Returns the IDs as bulk strings, joined; nothing if it can't be done so.
    """
    ks, now, name = ctx.ks, ctx.now, argv[1]
    stream = ks.stream(name, now)
    ms, seq = ks.next_id(stream, now)
    runs = bulk_ranges(ms, seq, len(bodies))
    if not runs:
        return b""
    if stream is None:
        stream = ks.create_stream(name)
    words = COUNTS[len(argv) - values_at + 1]
    sizes: list[int] = []
    wire = ids = b""
    for id_head, id_ends in runs:
        count, done = len(id_ends), len(sizes)
        some = bodies if len(bodies) == count else bodies[done : done + count]
        head = words + id_head
        more = len(head) + len(id_ends[0])
        body = some[0]
        if body is some[-1]:  # the same in all calls
            sizes += [more + len(body)] * count
            wire += head + (body + head).join(id_ends) + body
        else:
            sizes += [more + len(body) for body in some]
            parts = [head] * (3 * count)
            parts[1::3] = id_ends
            parts[2::3] = some
            wire += b"".join(parts)
        ids += id_head + (b"\r\n" + id_head).join(id_ends) + b"\r\n"
    ks.append_packed(name, stream, ms, seq, array("I", sizes), wire)
    return ids


@batch("TAPPEND")
def tappend_batch(ctx: Context, calls: list[list[bytes]], raw: bytes, borders: list[int]) -> list[bytes] | None:
    """A batch of TAPPENDs to one key: the same IDs, entries and replies as one by one, but one record for all.

    None if the result would not be the same: a reader waits for the key, the sequence numbers are about to run out, or
    the arguments are wrong.
    """
    ids = append_batch(ctx, calls, raw, borders, 2) if not len(calls[0]) & 1 else None
    if ids is not None and ctx.ks.event_classes:
        for argv in calls:
            ctx.ks.notify(events.STREAM, b"tappend", argv[1])
    return ids


def append_batch(
    ctx: Context, calls: list[list[bytes]], raw: bytes, borders: list[int], values_at: int
) -> list[bytes] | None:  # fmt: skip
    """See tappend_batch(). ``values_at``: which argument is the first field.

    Returns the IDs as bulk strings, one for each call, or all in the first one and no bytes in the others: made one by
    one they take a batch of 16 a tenth of its time.
    """
    ks, now = ctx.ks, ctx.now
    first = calls[0]
    name = first[1]
    if name in ks.waiting:
        return None
    stream = ks.stream(name, now)
    ms, seq = ks.next_id(stream, now)
    if MASK64 - seq < len(calls):
        return None
    if stream is None:
        stream = ks.create_stream(name)
    large = len(first[-1]) >= LARGE
    runs = bulk_ranges(ms, seq, len(calls)) if borders and not large else []
    if runs:
        ids = [b""] * len(calls)
        ids[0] = b"".join([head + (b"\r\n" + head).join(ends) + b"\r\n" for head, ends in runs])
        sizes, wire = _rewritten(first, raw, borders, runs, values_at)
    else:
        ids = [id_bulk(ms, at) + b"\r\n" for at in range(seq, seq + len(calls))]
        if large:
            sizes, parts, counts = _in_parts(calls, ids, values_at)
            ks.append_parts(name, stream, ms, seq, sizes, parts, counts)
            return ids
        wires = [entry_of(entry_id[:-2], argv, values_at) for entry_id, argv in zip(ids, calls, strict=True)]
        sizes, wire = array("I", list(map(len, wires))), b"".join(wires)
    ks.append_packed(name, stream, ms, seq, sizes, wire)
    return ids


def _in_parts(
    calls: list[list[bytes]], ids: list[bytes], values_at: int
) -> tuple[array[int], list[bytes], list[int]]:  # fmt: skip
    """The entries of calls with large values, which are not copied: bytes of each, all parts, and how many each has."""
    sizes = array("I")
    parts: list[bytes] = []
    counts: list[int] = []
    for entry_id, argv in zip(ids, calls, strict=True):
        small = [b"*%d\r\n%b" % (len(argv) - values_at + 1, entry_id)]
        size, before = 0, len(parts)
        for at in range(values_at, len(argv)):
            value = argv[at]
            length = len(value)
            small.append(b"$%d\r\n" % length)
            if length < LARGE:
                small.append(value)
                small.append(b"\r\n")
            else:
                head = b"".join(small)
                parts.append(head)
                parts.append(value)
                size += len(head) + length
                small = [b"\r\n"]
        last = b"".join(small)
        parts.append(last)
        sizes.append(size + len(last))
        counts.append(len(parts) - before)
    return sizes, parts, counts


def _rewritten(
    first: list[bytes], raw: bytes, borders: list[int], runs: list[tuple[bytes, list[bytes]]], values_at: int
) -> tuple[array[int], bytes]:  # fmt: skip
    """The entries of calls like ``first``, bytes of each and all joined: the bytes from the CRLF before the first field
    on have an entry's form already.

        *6 $7 TAPPEND $1 k $6 sensor $2 01 ...      a call as received
        *5 $15 1486475519747.0 $6 sensor $2 01 ...  its entry
    """
    words = b"*%d\r\n" % (len(first) - values_at + 1)
    skip = len(b"*%d" % len(first))
    for word in first[:values_at]:
        skip += len(b"\r\n$%d\r\n" % len(word)) + len(word)
    sizes: list[int] = []
    parts: list[bytes] = []
    start, i = borders[0] + skip, 0
    for id_head, id_ends in runs:
        head = words + id_head
        more = len(head) + len(id_ends[0])
        at = len(parts) + 1
        parts += [head] * (3 * len(id_ends))
        for id_end in id_ends:
            i += 1
            end = borders[i]
            parts[at] = id_end
            parts[at + 1] = raw[start:end]
            sizes.append(more + end - start)
            start = end + skip
            at += 3
    return array("I", sizes), b"".join(parts)


@command(
    "TAPPEV", key("RW INSERT DELETE"),
    oneof(
        "strategy", arg("count", "integer", token="COUNT"), arg("ms", "integer", token="TIME"), arg("id", token="MINID")
    ),
    opt(repeat(block("data", arg("field"), arg("value")))),
    flags="write denyoom", group="stream", since="0.1.0",
    complexity="O(log N + M): N macro nodes, M of them evicted.", adds=lambda argv: len(argv) > 4,
    most=3 + 2 * MOST_FIELDS,
)  # fmt: skip
def tappev(ctx: Context, argv: list[bytes]) -> Reply:
    """Append an entry if one is given, then evict all but the newest ones, by number, age or ID."""
    if len(argv) & 1:
        raise errors.arity("tappev")
    ks, name = ctx.ks, argv[1]
    if argv[2] == b"COUNT":
        by_count, kept = True, positive(argv[3])
    else:
        by_count, kept = _kept(argv[2], argv[3], ctx.now)
    result = b""
    if len(argv) > 4:
        result = append_one(ctx, argv, 4)
        if ks.event_classes:
            ks.notify(events.STREAM, b"tappend", name)
        result += b"\r\n"
    stream = touched(ctx, name) if result else ks.stream(name, ctx.now)
    evicted = 0
    if stream is not None:
        border = stream.ahead(stream.next_ord, kept) if by_count else stream.ord_from(kept)
        if border > stream.first_ord:
            evicted = ks.evict_before(name, stream, border, not result)
            if ks.event_classes:
                ks.notify(events.STREAM, b"tevict", name)
    return result or encode.integer(evicted)


def touched(ctx: Context, name: bytes) -> Stream | None:
    """The stream that append_one() has just appended to."""
    stream = ctx.ks.keys.get(name)
    if not isinstance(stream, Stream):
        return None
    if not ctx.ks.no_touch:
        stream.used = ctx.now
    return stream


def _kept(strategy: bytes, text: bytes, now: int) -> tuple[bool, int]:
    """What TAPPEV keeps: True and the number of the newest entries, or False and the lowest ID. Raises CommandError."""
    how = strategy.upper()
    if how == b"COUNT":
        return True, positive(text)
    if how == b"TIME":
        return False, max(0, now - positive(text) + 1) << 64
    if how == b"MINID":
        return False, parse_id(text)
    raise errors.syntax()


def tappev_head(argv: list[bytes]) -> int:
    """Of TAPPEVs that are alike: command, key, strategy and threshold, where each of them keeps a number of entries."""
    return 0 if len(argv) & 1 or len(argv) < 6 or argv[2].upper() != b"COUNT" else head_of(argv, 4)


@alike("TAPPEV", tappev_head)
def tappev_alike(ctx: Context, argv: list[bytes], bodies: list[bytes]) -> bytes:
    """TAPPEVs to one key: see tappev_batch()."""
    ks, name, kept = ctx.ks, argv[1], positive(argv[3])
    ids = append_alike(ctx, argv, bodies, 4)
    stream = touched(ctx, name)
    if not ids or stream is None:
        return b""
    border = stream.ahead(stream.next_ord, kept)
    if ks.event_classes:
        notify_group(ks, name, stream, len(bodies), kept, border, b"tappend", b"tevict")
    if border > stream.first_ord:
        ks.evict_before(name, stream, border, False)
    return ids


@batch("TAPPEV")
def tappev_batch(ctx: Context, calls: list[list[bytes]], raw: bytes, borders: list[int]) -> list[bytes] | None:
    """A batch of TAPPEVs to one key: as of TAPPENDs, then one eviction for all of those that keep the same."""
    first = calls[0]
    if len(first) & 1 or len(first) == 4:
        return None
    by_count, kept = _kept(first[2], first[3], ctx.now)
    ks, name = ctx.ks, first[1]
    stream = ks.stream(name, ctx.now)
    same = like_first(calls, 2, 4)
    if not by_count:
        ms, seq = ks.next_id(stream, ctx.now)
        same = min(same, still_kept(ms << 64 | seq, kept))
    if same < 2:
        return None
    calls, borders = calls[:same], borders[: same + 1]
    ids = append_batch(ctx, calls, raw, borders, 4)
    stream = ks.stream(name, ctx.now)
    if ids is None or stream is None:
        return None
    border = stream.ahead(stream.next_ord, kept) if by_count else stream.ord_from(kept)
    if ks.event_classes:
        notify_group(ks, name, stream, len(calls), kept if by_count else -1, border, b"tappend", b"tevict")
    if border > stream.first_ord:
        ks.evict_before(name, stream, border, False)
    return ids


def like_first(calls: list[list[bytes]], start: int, stop: int) -> int:
    """How many calls, from the first one on, have the same words as the first one in [start, stop)."""
    first = calls[0]
    for at in range(1, len(calls)):
        argv = calls[at]
        for i in range(start, stop):
            if argv[i] != first[i]:
                return at
    return len(calls)


def still_kept(first_id: int, kept: int) -> int:
    """How many entries with IDs from ``first_id`` on can be added before those below ``kept`` are evicted: as if each
    eviction came at once, they all stay, or they all go. At least one."""
    return max(1, kept - first_id) if kept > first_id else NO_END


def notify_group(
    ks: Keyspace, name: bytes, stream: Stream, added: int, most: int, border: int, append: bytes, evict: bytes
) -> None:  # fmt: skip
    """Fire the events of a batch that has added so many entries and is about to evict those before ``border``, as if
    each call had evicted at once. ``most``: how many entries are kept; -1 if that depends on their IDs."""
    if most >= 0:
        before = max(0, most - (stream.length - added))  # calls that evict nothing, at the beginning
        evicting = range(before, added)
    elif border == stream.next_ord:
        evicting = range(added)
    else:
        evicting = range(int(border > stream.first_ord))
    for i in range(added):
        ks.notify(events.STREAM, append, name)
        if i in evicting:
            ks.notify(events.STREAM, evict, name)


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
    ks.notify(events.STREAM, b"tmappend", name)
    return b"*2\r\n" + id_bulk(*first) + b"\r\n" + id_bulk(*last) + b"\r\n"
