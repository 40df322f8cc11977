"""XTRIM and XSETID, and trimming by XADD with the same options.

Trimming evicts the oldest entries; with ``~`` only whole macro nodes. An option defines what happens to references:

    KEEPREF    pending lists retain the IDs of evicted entries
    DELREF     the IDs are removed from all pending lists
    ACKED      entries that some group has not read yet, or has pending, are retained; others are evicted or deleted
"""

from __future__ import annotations

from commands.context import Context, Reply, Slices
from commands.declare import arg, command, key, opt
from commands.parse import each_option, integer
from commands.redis_streams.ids import strict_id
from commands.redis_streams.options import MAXLEN_OR_MINID, REFERENCES, AddTrimOptions
from commands.redis_streams.trimming import border_after, trim_border, trimming_of
from resp import errors
from resp import reply as encode
from resp.errors import CommandError, DamagedNodeError
from storage.keyspace import events
from storage.keyspace.keyspace import Keyspace
from storage.streams.stream import Stream


def trim(ctx: Context, name: bytes, stream: Stream, options: AddTrimOptions, reply: bytes | None = None) -> Reply:
    """Evict as the options require. ``reply``: None for the number of evicted entries."""
    ks, added = ctx.ks, reply is not None
    if not stream.groups or options.references not in (b"ACKED", b"DELREF"):
        border = border_after(ks, stream, options) if added else trim_border(stream, options)
        evicted = 0
        if border > stream.first_ord:
            evicted = ks.evict_added(name, stream, border) if added else ks.evict_before(name, stream, border)
        return _trimmed(ks, name, evicted, reply)
    try:
        trimming = trimming_of(stream, options)
    except DamagedNodeError as error:
        if reply is None:
            raise
        ks.note_damage(error)
        return reply
    trimming.added = added
    if not trimming.at_once(ks, name, stream):
        return _trimmed(ks, name, trimming.evicted, reply)

    def step(ctx: Context) -> bytes | None:
        if ctx.ks.stream(name, ctx.now) is stream and trimming.proceed(ctx.ks, name, stream):
            return None
        return _trimmed(ctx.ks, name, trimming.evicted, reply)

    return Slices(step, True)


def _trimmed(ks: Keyspace, name: bytes, evicted: int, reply: bytes | None) -> bytes:
    """Publish the event and return the reply."""
    if evicted:
        ks.notify(events.STREAM, b"xtrim", name)
    return encode.integer(evicted) if reply is None else reply


@command(
    "XTRIM", key("RW DELETE"), opt(REFERENCES), MAXLEN_OR_MINID, flags="write",
    complexity="O(log N + M): N macro nodes, M of them evicted. With ACKED O(M): M entries examined.",
)  # fmt: skip
def xtrim(ctx: Context, argv: list[bytes]) -> Reply:
    """Evict the oldest entries of a stream, by number or by ID, and return how many."""
    options = AddTrimOptions(ctx, argv, False)
    stream = ctx.ks.stream(argv[1], ctx.now)
    if stream is None:
        return encode.integer(0)
    return trim(ctx, argv[1], stream, options)


@command(
    "XSETID", key("RW UPDATE"), arg("last-id"), opt(arg("entries-added", "integer", token="ENTRIESADDED")),
    opt(arg("max-deleted-id", token="MAXDELETEDID")), flags="write denyoom fast",
)  # fmt: skip
def xsetid(ctx: Context, argv: list[bytes]) -> Reply:
    """Set a stream's last ID, and the entries added and deleted that XINFO returns."""
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
    if stream.tombstones is not None and last_id < stream.top_id():  # IDs must ascend from node to node
        raise CommandError(errors.SETID_BELOW_DELETED)
    added = added if added >= 0 else stream.entries_added
    ctx.ks.set_last_id(argv[1], stream, last_id, added, deleted or stream.max_deleted)
    ctx.ks.notify(events.STREAM, b"xsetid", argv[1])
    return encode.OK


def _new_id(argv: list[bytes]) -> tuple[int, int, int]:
    """Parse XSETID's last ID, entries added (-1: none), highest deleted ID (0: none). Raises CommandError."""
    last_id, added, deleted = strict_id(argv[2]), -1, 0
    for word, at in each_option(argv, 3, {b"ENTRIESADDED": 1, b"MAXDELETEDID": 1}):
        if word == b"ENTRIESADDED":
            added = integer(argv[at])
            if added < 0:
                raise CommandError(errors.NEGATIVE_ADDED)
        else:
            deleted = strict_id(argv[at])
            if last_id < deleted:
                raise CommandError(errors.SETID_BELOW_GIVEN)
    return last_id, added, deleted
