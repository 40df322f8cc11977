"""XTRIM and XSETID; what XADD trims, and the options that both have.

Trimming evicts the oldest entries; with ``~`` only whole macro nodes. What groups still need is a question of its own:

    KEEPREF    their pending lists keep the IDs of what is evicted
    DELREF     the IDs leave all pending lists, too
    ACKED      entries stay that some group has not read yet, or has pending; the others go, also in the middle
"""

from __future__ import annotations

from commands.context import Context, Reply
from commands.declare import arg, command, key, opt
from commands.parse import integer
from commands.redis_streams.ids import strict_id
from commands.redis_streams.options import MAXLEN, MAXLEN_OR_MINID, MINID, NO_LIMIT, REFERENCES, Options
from resp import errors
from resp import reply as encode
from resp.errors import CommandError
from storage import events
from storage.groups import effects
from storage.keyspace import Keyspace
from storage.stream import Stream


def trim(ks: Keyspace, name: bytes, stream: Stream, options: Options) -> int:
    """Evict what the options ask for; returns the number of entries."""
    if options.references == b"ACKED" and stream.groups:
        return _trim_acked(ks, name, stream, options)
    border = trim_border(stream, options)
    if border <= stream.first_ord:
        return 0
    pending = _pending(stream, border) if options.references == b"DELREF" else {}
    evicted = _evict(ks, name, stream, border)
    for group_name, ids in pending.items():
        effects.ack(ks, name, stream, stream.groups[group_name], [id.to_bytes(16, "big") for id in ids])  # noqa: A001
    return evicted


def trim_border(stream: Stream, options: Options) -> int:
    """The ordinal before which entries have to go."""
    if options.strategy == MAXLEN:
        border = stream.ahead(stream.next_ord, options.threshold)
    else:
        border = stream.ord_from(options.threshold)
    if options.limit < NO_LIMIT:
        border = min(border, stream.after(stream.first_ord, options.limit))
    return stream.node_border(border) if options.approximate else border


def _evict(ks: Keyspace, name: bytes, stream: Stream, border: int) -> int:
    """Evict everything before ``border``."""
    return ks.evict_before(name, stream, border)


def _pending(stream: Stream, border: int) -> dict[bytes, list[int]]:
    """The IDs of living entries before ``border`` that groups have pending, by the groups' names."""
    oldest, newest = stream.first_id(), stream.id_before(border)
    found: dict[bytes, list[int]] = {}
    for name, group in stream.groups.items():
        rows = group.pending.rows(oldest, newest, len(group.pending))
        ids = [row.id for row in rows if stream.ord_of(row.id) >= 0]
        if ids:
            found[name] = ids
    return found


# -- ACKED -------------------------------------------------------------------------------------------------------
def _trim_acked(ks: Keyspace, name: bytes, stream: Stream, options: Options) -> int:
    """trim() that leaves what groups still need."""
    offset = min([group.offset for group in stream.groups.values()])  # what comes after it some group has not read
    end = stream.ord_from(offset + 1)
    if end <= stream.first_ord:
        return 0
    runs = _unneeded(stream, end, options)
    total = sum([stream.count(lo, hi) for lo, hi in runs])
    if not total:
        return 0
    marked: list[int] = []
    for lo, hi in runs if runs[0][0] > stream.first_ord else runs[1:]:
        living = [(lo, hi)] if stream.marks is None else stream.marks.runs(lo, hi)
        for start, stop in living:
            marked.extend(range(start, stop))
    highest = stream.id_at(marked[-1]) if marked else 0
    lo, hi = runs[0]
    if lo == stream.first_ord and stream.count(lo, hi):
        _evict(ks, name, stream, hi)
    if marked:
        ks.delete_entries(name, stream, marked, highest)
    return total


def _unneeded(stream: Stream, end: int, options: Options) -> list[tuple[int, int]]:
    """Runs of ordinals before ``end`` whose entries must go, none of them needed. Ends with what the options ask for.

    Parts of the stream that are needed as a whole cost O(log N), and the next part is twice as long then.
    """
    runs: list[tuple[int, int]] = []
    total = step = 0  # entries in the runs; entries looked at at once
    at, low = stream.first_ord, stream.first_id()
    top = stream.ord_from(options.threshold) if options.strategy == MINID else stream.next_ord
    while at < end:
        left = options.limit - total
        if options.strategy == MAXLEN:
            left = min(left, stream.length - options.threshold - total)
        if left <= 0:
            break
        step = left if options.approximate else max(left, 2 * step)
        border = min(top, stream.after(at, step) if step < stream.length else stream.next_ord)
        if options.approximate:
            border = stream.node_border(border)
        if border <= at:
            break
        border = min(border, end)
        high = stream.id_before(border)
        for lo, hi in _without_needed(stream, at, border, low, high):
            count = stream.count(lo, hi)
            if count > left:
                hi, count = stream.after(lo, left), left
            if runs and runs[-1][1] == lo:
                runs[-1] = (runs[-1][0], hi)
            else:
                runs.append((lo, hi))
            total += count
            left -= count
            if not left:
                break
        at, low = border, max(low, high + 1)
    return runs


def _without_needed(stream: Stream, at: int, stop: int, low: int, high: int) -> list[tuple[int, int]]:
    """The runs in [at, stop), whose entries have the IDs from ``low`` to ``high``, that no group has pending."""
    needed: set[int] = set()
    for group in stream.groups.values():
        count = group.pending.between(low, high) if low <= high else 0
        if count and count == stop - at and stream.marks is None:
            return []
        if count:
            needed.update(stream.ords_of([row.id for row in group.pending.rows(low, high, count)]))
    runs: list[tuple[int, int]] = []
    for ordinal in [*sorted(needed), stop]:
        if at < ordinal:
            runs.append((at, ordinal))
        at = ordinal + 1
    return runs


@command(
    "XTRIM", key("RW DELETE"), opt(REFERENCES), MAXLEN_OR_MINID,
    flags="write", group="stream", since="0.1.0",
    complexity="O(log N + M): N macro nodes, M of them evicted. With ACKED O(M): M entries looked at.",
)  # fmt: skip
def xtrim(ctx: Context, argv: list[bytes]) -> Reply:
    """Evict the oldest entries of a stream, by number or by ID, and return how many."""
    options = Options(ctx, argv, False)
    stream = ctx.ks.stream(argv[1], ctx.now)
    if stream is None:
        return encode.integer(0)
    trimmed = trim(ctx.ks, argv[1], stream, options)
    if trimmed:
        ctx.ks.notify(events.STREAM, b"xtrim", argv[1])
    return encode.integer(trimmed)


@command(
    "XSETID", key("RW UPDATE"), arg("last-id"), opt(arg("entries-added", "integer", token="ENTRIESADDED")),
    opt(arg("max-deleted-id", token="MAXDELETEDID")),
    flags="write denyoom fast", group="stream", since="0.1.0", complexity="O(1)",
)  # fmt: skip
def xsetid(ctx: Context, argv: list[bytes]) -> Reply:
    """Set a stream's last ID, and what XINFO tells of entries added and deleted."""
    last_id, added, deleted = _new_id(argv)
    stream = ctx.ks.stream(argv[1], ctx.now)
    if stream is None:
        raise CommandError(errors.NO_SUCH_KEY)
    if last_id < stream.max_deleted:
        raise CommandError(errors.SETID_BELOW_DELETED)
    if stream.length:
        if last_id < stream.newest_id():
            raise CommandError(errors.SETID_BELOW_TOP)
        if 0 <= added < stream.length:
            raise CommandError(errors.ADDED_BELOW_LENGTH)
    if not deleted or stream.marks is not None:  # the last ID must never be below that of an entry that is only marked
        deleted = max(deleted, stream.max_deleted)
    ctx.ks.set_last_id(argv[1], stream, last_id, added if added >= 0 else stream.entries_added, deleted)
    ctx.ks.notify(events.STREAM, b"xsetid", argv[1])
    return encode.OK


def _new_id(argv: list[bytes]) -> tuple[int, int, int]:
    """XSETID's arguments: the last ID, the entries added (-1: not given), the highest ID deleted (0: not given).

    Raises CommandError.
    """
    last_id, added, deleted = strict_id(argv[2]), -1, 0
    at, end = 3, len(argv)
    while at < end:
        word = argv[at].upper()
        if at + 1 == end:
            raise errors.syntax()
        if word == b"ENTRIESADDED":
            added = integer(argv[at + 1])
            if added < 0:
                raise CommandError(errors.NEGATIVE_ADDED)
        elif word == b"MAXDELETEDID":
            deleted = strict_id(argv[at + 1])
            if last_id < deleted:
                raise CommandError(errors.SETID_BELOW_GIVEN)
        else:
            raise errors.syntax()
        at += 2
    return last_id, added, deleted
