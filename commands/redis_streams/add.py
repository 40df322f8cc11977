"""XADD, and XCFGSET, which sets how long IDs of producers are stored. ``streams.append`` lists XADD's forms."""

from __future__ import annotations

from hashlib import blake2b

from commands.context import Context, Reply
from commands.declare import alike, arg, batch, block, command, key, oneof, opt, repeat, token
from commands.parse import MOST_FIELDS, each_option, integer
from commands.redis_streams.ids import dashed_id, xid_bulk
from commands.redis_streams.options import (
    MAXLEN,
    MAXLEN_OR_MINID,
    MINID,
    NO_LIMIT,
    PRODUCER,
    REFERENCES,
    AddTrimOptions,
    most_at_once,
)  # fmt: skip
from commands.redis_streams.trim import trim
from commands.redis_streams.trimming import border_after, require_trimmed
from commands.streams.append import (
    LARGE,
    append_alike,
    append_large,
    append_one,
    evict_group,
    head_of,
    like_first,
    require_retained,
    still_retained,
    touched,
)
from resp import errors
from resp import reply as encode
from resp.errors import CommandError, DamagedNodeError
from storage.keyspace import events
from storage.model.entries import entry_wire, id_bulk
from storage.model.ids import MASK64
from storage.streams.producers import LONGEST_MS, MOST_IDS
from storage.streams.stream import Stream


@command(
    "XADD", key("RW UPDATE"), opt(token("NOMKSTREAM")), opt(REFERENCES), opt(PRODUCER), opt(MAXLEN_OR_MINID),
    oneof("id-selector", token("*", "auto-id"), arg("id")), repeat(block("data", arg("field"), arg("value"))),
    flags="write denyoom fast", complexity="O(1); with trimming O(log N + M): N macro nodes, M of them evicted.",
    most=20 + 2 * MOST_FIELDS,
)  # fmt: skip
def xadd(ctx: Context, argv: list[bytes]) -> Reply:
    """Append an entry to a stream and return its ID, then trim it if requested. Creates the key if it doesn't exist."""
    if argv[2] == b"*" and len(argv) & 1:
        bulk_id = append_one(ctx, argv, 3)
        if ctx.ks.event_classes:
            ctx.ks.notify(events.STREAM, b"xadd", argv[1])
        return dashed_id(bulk_id)
    if argv[2] == b"MAXLEN":
        reply = _bounded(ctx, argv)
        if reply:
            return reply
    return _add(ctx, argv)


def _bounded(ctx: Context, argv: list[bytes]) -> bytes:
    """Execute ``XADD key MAXLEN [= | ~] n * field value ...`` like _add(), but faster. Empty for other forms."""
    about = argv[3] == b"~"
    at = 5 if about or argv[3] == b"=" else 4
    if len(argv) < at + 3 or argv[at] != b"*" or not (len(argv) - at) & 1 or not argv[at - 1].isdigit():
        return b""
    ks, name, retained = ctx.ks, argv[1], integer(argv[at - 1])
    if ks.pool.tiered:
        require_retained(ks.stream(name, ctx.now), retained, 1)
    bulk_id = append_one(ctx, argv, at + 1)
    if ks.event_classes:
        ks.notify(events.STREAM, b"xadd", name)
    stream = touched(ctx, name)
    if stream is not None:
        border = stream.ahead(stream.next_ord, retained)
        if about and border > stream.first_ord:
            border = stream.node_border(min(border, stream.after(stream.first_ord, most_at_once(ks))))
        if border > stream.first_ord and ks.evict_added(name, stream, border):
            ks.notify(events.STREAM, b"xtrim", name)
    return dashed_id(bulk_id)


def _add(ctx: Context, argv: list[bytes]) -> Reply:
    """Execute XADD in any form."""
    options = AddTrimOptions(ctx, argv, True)
    at = options.id_at
    if len(argv) - at < 3 or not (len(argv) - at) & 1:
        raise errors.arity("xadd")
    ms, seq = options.ms, options.seq
    if not options.auto and not ms and not seq:
        raise CommandError(errors.ID_ZERO)
    ks, name = ctx.ks, argv[1]
    stream = ks.stream(name, ctx.now)
    if stream is None and not options.make:
        return encode.null(ctx.session.proto)
    iid = options.iid
    if options.producer:
        iid = iid or _digest(argv[at + 1 :])
        known = _known(stream, options.producer, iid, ctx.now)
        if known:
            ctx.server.writes.repeated(ctx.session)
            return xid_bulk(known)
    if ks.pool.tiered and options.strategy:
        require_trimmed(stream, options, 1)
    if options.auto:
        ms, seq = ks.next_id(stream, ctx.now)
    else:
        seq = _checked(stream, ms, seq)
    if stream is None:
        stream = ks.create_stream(name)
        stream.used = ctx.now  # the entry's ID does not show when the stream was used
    bulk_id = id_bulk(ms, seq)
    ks.append(name, stream, ms, seq, entry_wire(bulk_id, argv[at + 1 :]))
    if options.producer:
        ks.add_produced(name, stream, options.producer, iid, ms << 64 | seq, ctx.now, *stream.idmp())
    ks.notify(events.STREAM, b"xadd", name)
    reply = dashed_id(bulk_id)
    return trim(ctx, name, stream, options, reply) if options.strategy else reply


def _known(stream: Stream | None, producer: bytes, iid: bytes, now: int) -> int:
    """Return the ID of the entry that the producer has already added; 0 if there is none, or its ID has expired."""
    if stream is None or stream.producers is None:
        return 0
    known = stream.producers.find(producer, iid, now)
    if known:
        stream.producers.duplicates += 1
    return known


def _digest(data: list[bytes]) -> bytes:
    """Return a digest of an entry's content, regardless of the order of its pairs (IDMPAUTO)."""
    total = blake2b(digest_size=16)
    for pair in sorted(zip(data[::2], data[1::2], strict=True)):
        for text in pair:
            total.update(b"%d:" % len(text))
            total.update(text)
    return total.digest()


def _checked(stream: Stream | None, ms: int, seq: int) -> int:
    """Return the sequence number of an explicit ID (``seq`` -1: the next one). CommandError: the ID is too low."""
    last_ms, last_seq = (stream.last_ms, stream.last_seq) if stream is not None else (0, 0)
    if last_ms == MASK64 and last_seq == MASK64:
        raise CommandError(errors.ID_EXHAUSTED)
    if seq < 0:
        seq = last_seq + 1 if ms == last_ms else 0
    if ms < last_ms or (ms == last_ms and seq <= last_seq) or seq > MASK64:
        raise CommandError(errors.ID_NOT_ABOVE)
    return seq


def xadd_head(argv: list[bytes]) -> int:
    """Return the number of words that similar XADDs share: all up to the ``*``; 0 with options unknown to _id_at()."""
    if len(argv) < 5:
        return 0
    if argv[2] == b"*":
        return head_of(argv, 3) if len(argv) & 1 else 0
    at = _id_at(argv)
    return head_of(argv, at + 1) if at else 0


@alike("XADD", xadd_head)
def xadd_alike(ctx: Context, argv: list[bytes], bodies: list[bytes]) -> bytes:
    """Execute XADDs to one key: see append_alike()."""
    if argv[2] != b"*":
        return _trimming_alike(ctx, argv, bodies)
    return append_alike(ctx, argv, bodies, 3, b"xadd").replace(b".", b"-")


@batch("XADD")
def xadd_large(ctx: Context, calls: list[list[bytes]]) -> list[bytes] | None:
    """Execute XADDs of large entries to one key: see append_large(). All have automatic IDs, and no options or the same
    MAXLEN or MINID without LIMIT."""
    if len(calls[0][-1]) < LARGE:
        return None
    if calls[0][2] != b"*":
        return _trimming_large(ctx, calls)
    if not len(calls[0]) & 1:
        return None
    plain = 0
    while plain < len(calls) and calls[plain][2] == b"*":
        plain += 1
    return _dashed(append_large(ctx, calls[:plain], 3, b"xadd"))


def _dashed(replies: list[bytes] | None) -> list[bytes] | None:
    """Return the replies of a pipeline group in the X form, all of them in the first item; None: no replies."""
    if replies is None:
        return None
    return [b"".join(replies).replace(b".", b"-"), *[b""] * (len(replies) - 1)]


def _trimming_large(ctx: Context, calls: list[list[bytes]]) -> list[bytes] | None:
    """Execute ``XADD key MAXLEN | MINID [= | ~] threshold * ...`` with large entries, then evict once for all calls."""
    first = calls[0]
    at = _id_at(first)
    if not at:
        return None
    options = AddTrimOptions(ctx, first, True)
    same = _trimmable(ctx, first[1], options, like_first(calls, 2, at + 1))
    if same < 2:
        return None
    replies = append_large(ctx, calls[:same], at + 1, b"")
    if replies is not None:
        _trim_group(ctx, first[1], options, same)
    return _dashed(replies)


def _trimming_alike(ctx: Context, argv: list[bytes], bodies: list[bytes]) -> bytes:
    """Execute similar calls of the form ``XADD key MAXLEN | MINID [= | ~] threshold * ...``."""
    at = _id_at(argv)
    options = AddTrimOptions(ctx, argv, True)
    if _trimmable(ctx, argv[1], options, len(bodies)) < len(bodies):
        return b""
    ids = append_alike(ctx, argv, bodies, at + 1, b"")
    if ids:
        _trim_group(ctx, argv[1], options, len(bodies))
    return ids.replace(b".", b"-")


def _id_at(argv: list[bytes]) -> int:
    """Return the index of ``*`` in ``XADD key MAXLEN | MINID [= | ~] threshold * ...``; 0 for any other form."""
    how = argv[2].upper()
    if how != b"MAXLEN" and how != b"MINID":
        return 0
    at = 5 if argv[3] == b"~" or argv[3] == b"=" else 4
    return at if len(argv) >= at + 3 and argv[at] == b"*" and (len(argv) - at) & 1 else 0


def _trimmable(ctx: Context, name: bytes, options: AddTrimOptions, count: int) -> int:
    """Return how many of ``count`` calls with the same trimming, from the first one on, can be executed as one."""
    ks = ctx.ks
    if options.approximate and ks.event_classes:
        return 0  # it is unknown which of these calls evict a node
    stream = ks.stream(name, ctx.now)
    ms, seq = ks.next_id(stream, ctx.now)
    first_id = ms << 64 | seq
    if options.strategy == MINID:
        count = min(count, still_retained(first_id, options.threshold))
    try:
        if ks.pool.tiered:
            require_trimmed(stream, options, count)
        return count if _within_limit(stream, options, count, first_id) else 0
    except DamagedNodeError:  # the calls find this, too, but their appends must not fail
        return 0


def _trim_group(ctx: Context, name: bytes, options: AddTrimOptions, added: int) -> None:
    """Evict as required by ``added`` calls that were just executed."""
    stream = touched(ctx, name)
    if stream is not None:
        most = options.threshold if options.strategy == MAXLEN else -1
        border = border_after(ctx.ks, stream, options)
        evict_group(ctx.ks, name, stream, added, most, border, b"xadd", b"xtrim")


def _within_limit(stream: Stream | None, options: AddTrimOptions, added: int, first_id: int) -> bool:
    """Return whether calls that add ``added`` entries, from ``first_id`` on, evict no more than one call may evict."""
    if options.limit == NO_LIMIT or stream is None:
        return added <= options.limit
    if options.strategy == MAXLEN:
        return stream.length + added - options.threshold <= options.limit
    if options.threshold > first_id:
        return stream.length + added <= options.limit
    return stream.count(stream.first_ord, stream.ord_from(options.threshold)) <= options.limit


@command(
    "XCFGSET", key("RW UPDATE"), opt(arg("seconds", "integer", token="IDMP-DURATION")),
    opt(arg("count", "integer", token="IDMP-MAXSIZE")), arity=-2, flags="write denyoom fast",
)  # fmt: skip
def xcfgset(ctx: Context, argv: list[bytes]) -> Reply:
    """Set how long, and how many, IDs of producers a stream stores; a change of these values deletes all IDs."""
    if len(argv) == 2:
        raise CommandError(errors.NO_PARAMETER)
    seconds = most = 0
    for word, at in each_option(argv, 2, {b"IDMP-DURATION": 1, b"IDMP-MAXSIZE": 1}):
        if word == b"IDMP-DURATION":
            seconds = _within(word, argv[at], LONGEST_MS // 1000)
        else:
            most = _within(word, argv[at], MOST_IDS)
    stream = ctx.ks.stream(argv[1], ctx.now)
    if stream is None:
        raise CommandError(errors.NO_SUCH_KEY)
    old_ms, old_most = stream.idmp()
    keep_ms, most = seconds * 1000 or old_ms, most or old_most
    if (keep_ms, most) != (old_ms, old_most):
        ctx.ks.set_idmp(argv[1], stream, keep_ms, most)
    return encode.OK


def _within(word: bytes, value: bytes, most: int) -> int:
    number = integer(value)
    if not 0 < number <= most:
        raise errors.not_within(word, most)
    return number
