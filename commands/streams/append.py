"""TAPPEND, TAPPEV, TMAPPEND. Semantics [3] to [7] and [31].

Decision: calls that arrive together are executed together if that is not visible. TAPPEND, TAPPEV and XADD, with and
without trimming, have these forms:

    form   calls                                                   engine         gain at a pipeline of 16, of 64
    one    a call alone, and every call whose key has readers [18] append         -
    alike  consecutive calls that share all words before the first append_packed  0.1 KB: 2 to 25 %, 59 to 102 %
           field, have as many fields, and values below 4 KB                      1 KB: -7 to 6 %, -8 to 37 %
    large  consecutive calls with the same key, as many words, and append_parts   10 KB: 4 to 11 %, 13 to 24 %
           values of 4 KB or more, which are not joined

The gain is the CPU time of the server's thread per call without the form, relative to that with it (range over the
commands; compiled, minimum of 12 interleaved runs on a busy machine, 2026-11). Forms that gained less than 5 %, or
whose calls now have a better form, were removed:

    a pipeline group of decoded calls, encoded one by one and joined   -18 to 2 %, -19 to 34 %
    such a group sliced out of the received bytes, for users with      7 to 18 %; ``alike``, which these users
    restricted rights                                                  now use, takes 15 to 37 % less
    packed appends with sizes as a list, and their record              -1 to 4 %

``large`` joins nothing: joining the entries took 2 to 35 % more. XADD with MAXLEN alone (``_bounded``) gains 2 to 6 %,
and 7 to 13 % interpreted.
"""

from __future__ import annotations

from array import array
from typing import Final

from commands.context import Context, Reply
from commands.declare import alike, arg, batch, block, command, key, oneof, opt, repeat
from commands.parse import MOST_FIELDS, positive
from commands.streams.rows import parsed_rows
from resp import errors
from resp import reply as encode
from resp.errors import AbsentNodeError, CommandError, DamagedNodeError
from storage.keyspace import events
from storage.keyspace.keyspace import Keyspace
from storage.model.entries import COUNTS, bulk_ranges, entry_of, id_bulk
from storage.model.ids import MASK64, parse_id
from storage.streams.stream import Stream

LARGE: Final = 4096  # bytes of a value; copying a larger one once more takes longer than encoding its length
COUNTED: Final = 0  # how TAPPEV limits what it retains: the number of entries, their size, or the lowest ID
SIZED: Final = 1
BY_ID: Final = 2
NO_END: Final = 1 << 62  # more calls than a group can have


@command(
    "TAPPEND", key("RW INSERT"), repeat(block("data", arg("field"), arg("value"))), flags="write denyoom fast",
    most=1 + 2 * MOST_FIELDS,
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
    """Append an entry with the arguments from ``at`` on. Returns its id_bulk()."""
    ks = ctx.ks
    now = ctx.now
    name = argv[1]
    # the usual cases of Keyspace.stream() and next_id(), inlined: saves 5 % of the instructions, 8 % of the time
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
    """Return the number of words that similar TAPPENDs share: command and key."""
    return 0 if len(argv) & 1 else head_of(argv, 2)


def head_of(argv: list[bytes], words: int) -> int:
    """Return ``words`` if at least a field and its value follow and the last value is not large, otherwise 0."""
    return words if words + 2 <= len(argv) < len(COUNTS) and len(argv[-1]) < LARGE else 0


@alike("TAPPEND", tappend_head)
def tappend_alike(ctx: Context, argv: list[bytes], bodies: list[bytes]) -> bytes:
    """Execute TAPPENDs to one key: see append_alike()."""
    return append_alike(ctx, argv, bodies, 2, b"tappend")


def append_alike(ctx: Context, argv: list[bytes], bodies: list[bytes], values_at: int, event: bytes) -> bytes:
    """Append the entries of similar calls with one record: a body already has the form of an entry.

        *6 $7 TAPPEND $1 k $6 sensor $2 01 ...      a call as received
        *5 $15 1486475519747.0 $6 sensor $2 01 ...  its entry

    ``event``: published for each call; empty: the caller does. Returns the IDs as bulk strings, joined; nothing if the
    sequence numbers are too high for this form.
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
        if body is some[-1]:  # all bodies are equal
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
    _notify_each(ks, name, event, len(bodies))
    return ids


def _notify_each(ks: Keyspace, name: bytes, event: bytes, count: int) -> None:
    if event and ks.event_classes:
        for _ in range(count):
            ks.notify(events.STREAM, event, name)


@batch("TAPPEND")
def tappend_large(ctx: Context, calls: list[list[bytes]]) -> list[bytes] | None:
    """Execute TAPPENDs of large entries to one key: see append_large()."""
    return append_large(ctx, calls, 2, b"tappend") if not len(calls[0]) & 1 else None


def append_large(ctx: Context, calls: list[list[bytes]], values_at: int, event: bytes) -> list[bytes] | None:
    """Append the large entries of a pipeline group with one record. ``values_at``: index of the first field. ``event``:
    published for each call; empty: the caller does.

    Returns the IDs as bulk strings, one for each call. None if the entries are not large, a reader waits for the key,
    or the sequence numbers are about to overflow.
    """
    ks, now = ctx.ks, ctx.now
    name = calls[0][1]
    if len(calls[0][-1]) < LARGE or name in ks.waiting:
        return None
    stream = ks.stream(name, now)
    ms, seq = ks.next_id(stream, now)
    if MASK64 - seq < len(calls):
        return None
    if stream is None:
        stream = ks.create_stream(name)
    ids = [id_bulk(ms, at) + b"\r\n" for at in range(seq, seq + len(calls))]
    sizes, parts, counts = _in_parts(calls, ids, values_at)
    ks.append_parts(name, stream, ms, seq, sizes, parts, counts)
    _notify_each(ks, name, event, len(calls))
    return ids


def _in_parts(
    calls: list[list[bytes]], ids: list[bytes], values_at: int
) -> tuple[array[int], list[bytes], list[int]]:  # fmt: skip
    """Return the entries of calls with large values, which are not copied: sizes, all parts, and the parts of each."""
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


@command(
    "TAPPEV", key("RW INSERT DELETE"),
    oneof(
        "strategy", arg("count", "integer", token="COUNT"), arg("ms", "integer", token="TIME"),
        arg("id", token="MINID"), arg("bytes", "integer", token="BYTES"),
    ),
    opt(repeat(block("data", arg("field"), arg("value")))), flags="write denyoom",
    complexity="O(log N + M): N macro nodes, M of them evicted.", adds=lambda argv: len(argv) > 4,
    most=3 + 2 * MOST_FIELDS,
)  # fmt: skip
def tappev(ctx: Context, argv: list[bytes]) -> Reply:
    """Append an entry if one is given, then evict all but the newest entries, by number, age, ID or size."""
    if len(argv) & 1:
        raise errors.arity("tappev")
    ks, name = ctx.ks, argv[1]
    if argv[2] == b"COUNT":
        how, retained = COUNTED, positive(argv[3])
    else:
        how, retained = _retention(argv[2], argv[3], ctx.now)
    result = b""
    if ks.pool.tiered:
        _require(ks.stream(name, ctx.now), how, retained, 1)
    if len(argv) > 4:
        result = append_one(ctx, argv, 4)
        if ks.event_classes:
            ks.notify(events.STREAM, b"tappend", name)
        result += b"\r\n"
    stream = touched(ctx, name) if result else ks.stream(name, ctx.now)
    evicted = 0
    if stream is not None:
        border = _border_after(ks, stream, how, retained) if result else _border(stream, how, retained)
        if border > stream.first_ord:
            evicted = ks.evict_added(name, stream, border) if result else ks.evict_before(name, stream, border)
            if evicted and ks.event_classes:
                ks.notify(events.STREAM, b"tevict", name)
    return result or encode.integer(evicted)


def touched(ctx: Context, name: bytes) -> Stream | None:
    """Return the stream to which append_one() has just appended."""
    stream = ctx.ks.keys.get(name)
    if not isinstance(stream, Stream):
        return None
    if not ctx.ks.no_touch:
        stream.used = ctx.now
    return stream


def _retention(strategy: bytes, text: bytes, now: int) -> tuple[int, int]:
    """Return how TAPPEV limits what it retains, and the limit: COUNTED, SIZED, or BY_ID and the lowest ID.

    Raises CommandError.
    """
    how = strategy.upper()
    if how == b"COUNT":
        return COUNTED, positive(text)
    if how == b"TIME":
        return BY_ID, max(0, now - positive(text) + 1) << 64
    if how == b"MINID":
        return BY_ID, parse_id(text)
    if how == b"BYTES":
        return SIZED, positive(text)
    raise errors.syntax()


def _border(stream: Stream, how: int, retained: int) -> int:
    """Return the ordinal of the first entry that TAPPEV retains."""
    if how == COUNTED:
        return stream.ahead(stream.next_ord, retained)
    return stream.ord_from(retained) if how == BY_ID else stream.bytes_border(retained)


def require_retained(stream: Stream | None, retained: int, added: int, approximate: bool = False) -> None:
    """Raise AbsentNodeError if an eviction of all but ``retained`` entries after ``added`` appends needs entries that
    are only in the object store. The appends can then wait. Afterwards, they could not be undone."""
    if stream is not None:
        border = stream.ahead(stream.next_ord, max(0, retained - added))
        stream.require_border(stream.node_border(border) if approximate else border)


def _require(stream: Stream | None, how: int, retained: int, added: int) -> None:
    """Do the same for TAPPEV."""
    if stream is None:
        return
    if how == COUNTED:
        require_retained(stream, retained, added)
        return
    try:
        stream.require_border(_border(stream, how, retained))
    except AbsentNodeError:
        raise
    except DamagedNodeError:
        pass  # _border_after() reports it


def _border_after(ks: Keyspace, stream: Stream, how: int, retained: int) -> int:
    """Return _border() after an append: if a damaged node prevents more, the ordinal of its first entry."""
    try:
        return _border(stream, how, retained)
    except DamagedNodeError as error:
        return ks.border_before(stream, error)


def tappev_head(argv: list[bytes]) -> int:
    """Return the number of words that similar TAPPEVs share: command, key, strategy and threshold."""
    return 0 if len(argv) & 1 or len(argv) < 6 else head_of(argv, 4)


@alike("TAPPEV", tappev_head)
def tappev_alike(ctx: Context, argv: list[bytes], bodies: list[bytes]) -> bytes:
    """Execute TAPPEVs to one key: see append_alike(); then evict once."""
    ks, name = ctx.ks, argv[1]
    how, retained = _retention(argv[2], argv[3], ctx.now)
    if how == SIZED:
        return b""
    if ks.pool.tiered:
        _require(ks.stream(name, ctx.now), how, retained, len(bodies))
    if how == BY_ID:
        ms, seq = ks.next_id(ks.stream(name, ctx.now), ctx.now)
        if still_retained(ms << 64 | seq, retained) < len(bodies):
            return b""
    ids = append_alike(ctx, argv, bodies, 4, b"")
    if ids:
        _evict_group(ctx, name, len(bodies), how, retained)
    return ids


@batch("TAPPEV")
def tappev_large(ctx: Context, calls: list[list[bytes]]) -> list[bytes] | None:
    """Execute TAPPEVs of large entries to one key: see append_large(); then evict once, if all retain the same."""
    first = calls[0]
    if len(first) & 1 or len(first) == 4 or len(first[-1]) < LARGE:
        return None
    how, retained = _retention(first[2], first[3], ctx.now)
    if how == SIZED:
        return None
    ks, name = ctx.ks, first[1]
    stream = ks.stream(name, ctx.now)
    if ks.pool.tiered:
        _require(stream, how, retained, len(calls))
    same = like_first(calls, 2, 4)
    if how == BY_ID:
        ms, seq = ks.next_id(stream, ctx.now)
        same = min(same, still_retained(ms << 64 | seq, retained))
    if same < 2:
        return None
    calls = calls[:same]
    ids = append_large(ctx, calls, 4, b"")
    if ids is not None:
        _evict_group(ctx, name, len(calls), how, retained)
    return ids


def _evict_group(ctx: Context, name: bytes, added: int, how: int, retained: int) -> None:
    """Evict as required by ``added`` TAPPEVs that were just executed."""
    stream = touched(ctx, name)
    if stream is not None:
        border = _border_after(ctx.ks, stream, how, retained)
        evict_group(ctx.ks, name, stream, added, retained if how == COUNTED else -1, border, b"tappend", b"tevict")


def like_first(calls: list[list[bytes]], start: int, stop: int) -> int:
    """Return how many calls, from the first one on, have the same words as the first one in [start, stop)."""
    first = calls[0]
    for at in range(1, len(calls)):
        argv = calls[at]
        for i in range(start, stop):
            if argv[i] != first[i]:
                return at
    return len(calls)


def still_retained(first_id: int, retained: int) -> int:
    """Return how many entries with IDs from ``first_id`` on can be appended before one eviction of all entries below
    ``retained`` has the same result as an eviction after each: all stay, or all are evicted. At least one."""
    return max(1, retained - first_id) if retained > first_id else NO_END


def evict_group(
    ks: Keyspace, name: bytes, stream: Stream, added: int, most: int, border: int, append: bytes, evict: bytes
) -> None:  # fmt: skip
    """Evict the entries before ``border`` for ``added`` calls that were just executed, and publish their events, as if
    each call had evicted immediately. ``most``: how many entries are retained; -1 if that depends on their IDs."""
    if ks.event_classes:
        _notify_group(ks, name, stream, added, most, border, append, evict)
    if border > stream.first_ord:
        ks.evict_added(name, stream, border)


def _notify_group(
    ks: Keyspace, name: bytes, stream: Stream, added: int, most: int, border: int, append: bytes, evict: bytes
) -> None:  # fmt: skip
    if most >= 0:
        before = max(0, most - (stream.length - added))  # number of first calls, which evict nothing
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
    arg("value", token="VALUES"), opt(repeat(arg("more-values"))), flags="write denyoom", complexity="O(N): N values.",
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
        part = min(total - done, MASK64 - seq + 1)  # the rest gets the next millisecond
        ks.append_packed(name, stream, ms, seq, *rows.written(ms, seq, done, done + part))
        done += part
        last = (ms, seq + part - 1)
        ms, seq = ms + 1, 0
    ks.notify(events.STREAM, b"tmappend", name)
    return b"*2\r\n" + id_bulk(*first) + b"\r\n" + id_bulk(*last) + b"\r\n"
