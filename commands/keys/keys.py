"""Commands for keys of any type: DEL, EXISTS, TYPE, TOUCH, KEYS, SCAN, RANDOMKEY, OBJECT."""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from commands.context import Chunks, Context, Reply, Slices
from commands.declare import arg, command, key, opt, repeat
from commands.glob import compiled
from commands.keys.setoptions import delete
from commands.parse import each_option, integer, is_integer
from commands.slicing import AT_ONCE, by_name, long_array, matching_names
from resp import errors, reply
from resp.errors import CommandError
from storage.keyspace import manykeys
from storage.keyspace.values import String, Value
from storage.streams.stream import Stream

_LFU_ONLY = (
    "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching "
    "between policies at runtime LRU and LFU data will take some time to adjust."
)
_INVALID_CURSOR = "ERR invalid cursor"
_SCAN_COUNT = 10  # number of keys that SCAN visits without COUNT
_PICKS: Final = 100  # number of random keys that RANDOMKEY tries on a replica before it examines all in order
_EMBSTR_LIMIT: Final = 44  # bytes; the encoding of longer strings is "raw" in Redis

_CURSOR = re.compile(rb"[+-]?[0-9]+")


def type_name(value: Value) -> bytes:
    """Return the type of a value as in the reply of TYPE."""
    return b"stream" if isinstance(value, Stream) else b"string"


# -- named keys --------------------------------------------------------------------------------------------------
def _delete(ctx: Context, names: list[bytes]) -> int:
    if not ctx.ks.event_classes:
        return manykeys.delete_many(ctx.ks, names, ctx.now)
    return sum([delete(ctx, name) for name in names])


@command("DEL", repeat(key("RM DELETE")), flags="write", group="generic", complexity="O(N): N keys.")
def del_(ctx: Context, argv: list[bytes]) -> Reply:
    """Delete keys of any type, in one step; return how many existed."""
    return reply.integer(_delete(ctx, argv[1:]))


@command("UNLINK", repeat(key("RM DELETE")), flags="write fast", group="generic", complexity="O(N): N keys.")
def unlink(ctx: Context, argv: list[bytes]) -> Reply:
    """Delete keys of any type, in several steps if there are many; return how many existed."""
    return by_name(argv[1:], _delete, ctx)


@command("EXISTS", repeat(key("RO")), flags="readonly fast", group="generic", complexity="O(N): N keys.")
def exists(ctx: Context, argv: list[bytes]) -> Reply:
    """Return how many of the keys exist; a key that is named twice counts twice."""
    found = manykeys.peek_many(ctx.ks, argv[1:], ctx.now)
    return reply.integer(len(found) - found.count(None))


@command("TYPE", key("RO"), flags="readonly fast", group="generic")
def type_(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the type of a key: stream, string or none."""
    value = ctx.ks.peek(argv[1], ctx.now)
    return reply.simple(b"none" if value is None else type_name(value))


@command("TOUCH", repeat(key("RO")), flags="readonly fast", group="generic", complexity="O(N): N keys.")
def touch(ctx: Context, argv: list[bytes]) -> Reply:
    """Set the idle time of keys to zero (see OBJECT IDLETIME); return how many of them exist."""
    found = [value for value in manykeys.peek_many(ctx.ks, argv[1:], ctx.now) if value is not None]
    for value in found:
        value.used = ctx.now  # even with CLIENT NO-TOUCH
    return reply.integer(len(found))


# -- all keys ------------------------------------------------------------------------------------------------------
@command(
    "KEYS", arg("pattern", "pattern"), flags="readonly", group="generic", acl="dangerous", complexity="O(N): N keys.",
)  # fmt: skip
def keys(ctx: Context, argv: list[bytes]) -> Reply:
    """Return all keys that match a glob pattern."""
    return matching_names(list(ctx.ks.keys), partial(_matching, argv[1]), ctx)


def _matching(pattern: bytes, ctx: Context, names: list[bytes]) -> list[bytes]:
    """Return the names that match the pattern, except those of expired keys."""
    if pattern != b"*":
        names = list(filter(compiled(pattern).matches, names))
    if ctx.ks.hidden is not None:
        names = [name for name in names if not ctx.ks.hidden(name)]
    deadlines, now = ctx.ks.expires, ctx.now
    return [name for name in names if name not in deadlines or deadlines[name] > now] if deadlines else names


@command(
    "SCAN", arg("cursor", "integer"), opt(arg("pattern", "pattern", token="MATCH")),
    opt(arg("count", "integer", token="COUNT")), opt(arg("type", token="TYPE")), flags="readonly", group="generic",
    complexity="O(1) for a call, O(N) for all calls: N keys.",
)  # fmt: skip
def scan(ctx: Context, argv: list[bytes]) -> Reply:
    """Return some of the keys and the next cursor, 0 at the end; keys that exist throughout are never missed."""
    if not _CURSOR.fullmatch(argv[1]) or not -(1 << 63) <= int(argv[1]) < 1 << 64:
        raise CommandError(_INVALID_CURSOR)
    pattern, count, wanted = b"*", _SCAN_COUNT, b""
    for word, at in each_option(argv, 2, {b"MATCH": 1, b"COUNT": 1, b"TYPE": 1}):
        if word == b"MATCH":
            pattern = argv[at]
        elif word == b"TYPE":
            wanted = argv[at].lower()
        else:
            count = integer(argv[at])
            if count < 1:
                raise errors.syntax()
    cursor = int(argv[1]) % (1 << 64)
    if count <= AT_ONCE:
        cursor, found = _scanned(ctx, cursor, count, pattern, wanted)
        return reply.array([reply.bulk(b"%d" % cursor), reply.bulk_array(found)])
    left, all_found = count, list[bytes]()

    def step(ctx: Context) -> Chunks | bytes | None:
        nonlocal cursor, left
        cursor, found = _scanned(ctx, cursor, min(left, AT_ONCE), pattern, wanted)
        all_found.extend(found)
        left -= AT_ONCE
        if cursor and left > 0:
            return None
        return long_array(all_found, b"", reply.array_header(2) + reply.bulk(b"%d" % cursor))

    return Slices(step, False)  # a SCAN deletes only keys that have expired


def _scanned(ctx: Context, cursor: int, count: int, pattern: bytes, wanted: bytes) -> tuple[int, list[bytes]]:
    """Return the next cursor, and the matching ones of ``count`` keys. ``wanted``: the type; empty: any type."""
    cursor, names = ctx.ks.index.page(cursor, count)
    if pattern != b"*":
        names = list(filter(compiled(pattern).matches, names))
    if ctx.ks.hidden is not None:
        names = [name for name in names if not ctx.ks.hidden(name)]
    found = []
    for name in names:
        value = ctx.ks.live(name, ctx.now)  # deletes the key if it has expired
        if value is not None and (not wanted or wanted == type_name(value)):
            found.append(name)
    return cursor, found


@command("RANDOMKEY", flags="readonly", group="generic")
def randomkey(ctx: Context, argv: list[bytes]) -> Reply:
    """Return one of the keys, or null if there are none."""
    ks = ctx.ks
    picks = 0
    while len(ks.index):
        name = ks.index.pick(ctx.server.random())
        if name is None:
            continue
        hidden = ks.hidden
        if (hidden is None or not hidden(name)) and ks.live(name, ctx.now) is not None:
            return reply.bulk(name)  # an expired key is deleted, so the loop ends
        picks += 1
        # expired keys are not deleted, and nearly all keys may have expired, or be hidden
        if (ks.follower or ks.frozen or hidden is not None) and picks == _PICKS:
            seen = (name for name in ks.keys if hidden is None or not hidden(name))
            live = next((name for name in seen if ks.live(name, ctx.now) is not None), None)
            return reply.null(ctx.session.proto) if live is None else reply.bulk(live)
    return reply.null(ctx.session.proto)


# -- OBJECT --------------------------------------------------------------------------------------------------------
@command("OBJECT|ENCODING", key("RO"), flags="readonly", group="generic")
def objectencoding(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the encoding of a value: stream, int, embstr or raw."""
    value = ctx.ks.peek(argv[2], ctx.now, quiet=True)
    if value is None:
        return reply.null(ctx.session.proto)
    return reply.bulk(encoding(value))


def encoding(value: Value) -> bytes:
    """Return the encoding of a value as in the reply of OBJECT ENCODING."""
    if not isinstance(value, String):
        return b"stream"
    if is_integer(value.value):
        return b"int"
    return b"embstr" if len(value.value) <= _EMBSTR_LIMIT else b"raw"


@command("OBJECT|IDLETIME", key("RO"), flags="readonly", group="generic")
def object_idletime(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the seconds since a key was last used, at most since the server started."""
    value = ctx.ks.peek(argv[2], ctx.now, quiet=True)
    if value is None:
        return reply.null(ctx.session.proto)
    return reply.integer(idle_seconds(value, ctx.now))


def idle_seconds(value: Value, now: int) -> int:
    """Return the seconds since a value was last used. ``now``: ms since epoch."""
    used = value.used
    if isinstance(value, Stream) and used < value.last_ms <= now:  # on a replica, or appended before the start
        used = value.last_ms
    return max(0, now - (used or now)) // 1000


@command("OBJECT|REFCOUNT", key("RO"), flags="readonly", group="generic")
def object_refcount(ctx: Context, argv: list[bytes]) -> Reply:
    """Return 1: values are never shared."""
    value = ctx.ks.peek(argv[2], ctx.now, quiet=True)
    return reply.null(ctx.session.proto) if value is None else reply.integer(1)


@command("OBJECT|FREQ", key("RO"), flags="readonly", group="generic")
def object_freq(ctx: Context, argv: list[bytes]) -> Reply:
    """Return an error, as Redis does without an LFU policy: accesses are not counted."""
    if ctx.ks.peek(argv[2], ctx.now, quiet=True) is None:
        return reply.null(ctx.session.proto)
    raise CommandError(_LFU_ONLY)
