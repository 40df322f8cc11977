"""Commands for keys of any type: DEL, EXISTS, TYPE, TOUCH, KEYS, SCAN, RANDOMKEY, OBJECT."""

from __future__ import annotations

import re
from typing import Final

from commands.context import Context, Reply
from commands.declare import arg, command, key, opt, repeat
from commands.help import help_reply
from commands.keys.glob import compiled
from commands.parse import integer, is_integer
from resp import errors, reply
from resp.errors import CommandError
from storage.stream import Stream
from storage.values import String, Value

_LFU_ONLY = (
    "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching "
    "between policies at runtime LRU and LFU data will take some time to adjust."
)
_INVALID_CURSOR = "ERR invalid cursor"
_SCAN_COUNT = 10  # keys that SCAN visits without COUNT
_PICKS: Final = 100  # random keys that RANDOMKEY tries on a replica before it examines all in order
_EMBSTR_LIMIT: Final = 44  # bytes; the encoding of longer strings is "raw" in Redis

_CURSOR = re.compile(rb"[+-]?[0-9]+")


def type_name(value: Value) -> bytes:
    """The type of a value as TYPE returns it."""
    return b"stream" if isinstance(value, Stream) else b"string"


# -- named keys --------------------------------------------------------------------------------------------------
def _delete(ctx: Context, argv: list[bytes]) -> bytes:
    return reply.integer(sum([ctx.ks.delete(name, ctx.now) for name in argv[1:]]))


@command("DEL", repeat(key("RM DELETE")), flags="write", group="generic", complexity="O(N): N keys.")
def del_(ctx: Context, argv: list[bytes]) -> Reply:
    """Delete keys of any type; return how many there were."""
    return _delete(ctx, argv)


@command("UNLINK", repeat(key("RM DELETE")), flags="write fast", group="generic", complexity="O(N): N keys.")
def unlink(ctx: Context, argv: list[bytes]) -> Reply:
    """Delete keys of any type, like DEL; return how many there were."""
    return _delete(ctx, argv)


@command("EXISTS", repeat(key("RO")), flags="readonly fast", group="generic", complexity="O(N): N keys.")
def exists(ctx: Context, argv: list[bytes]) -> Reply:
    """Return how many of the keys exist; a key that is given twice counts twice."""
    return reply.integer(sum([ctx.ks.peek(name, ctx.now) is not None for name in argv[1:]]))


@command("TYPE", key("RO"), flags="readonly fast", group="generic", complexity="O(1)")
def type_(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the type of a key: stream, string or none."""
    value = ctx.ks.peek(argv[1], ctx.now)
    return reply.simple(b"none" if value is None else type_name(value))


@command("TOUCH", repeat(key("RO")), flags="readonly fast", group="generic", complexity="O(N): N keys.")
def touch(ctx: Context, argv: list[bytes]) -> Reply:
    """Set the idle time of keys to zero (see OBJECT IDLETIME); return how many of them exist."""
    found = [value for value in [ctx.ks.peek(name, ctx.now) for name in argv[1:]] if value is not None]
    for value in found:
        value.used = ctx.now  # also with CLIENT NO-TOUCH
    return reply.integer(len(found))


# -- all keys ------------------------------------------------------------------------------------------------------
@command(
    "KEYS", arg("pattern", "pattern"), flags="readonly", group="generic", acl="dangerous", complexity="O(N): N keys."
)
def keys(ctx: Context, argv: list[bytes]) -> Reply:
    """Return all keys that match a glob pattern."""
    names = list(ctx.ks.keys)
    if argv[1] != b"*":
        names = list(filter(compiled(argv[1]).matches, names))
    deadlines, now = ctx.ks.expires, ctx.now
    return reply.bulk_array([name for name in names if name not in deadlines or deadlines[name] > now])


@command(
    "SCAN", arg("cursor", "integer"), opt(arg("pattern", "pattern", token="MATCH")),
    opt(arg("count", "integer", token="COUNT")), opt(arg("type", token="TYPE")),
    flags="readonly", group="generic", complexity="O(1) for a call, O(N) for all calls: N keys.",
)  # fmt: skip
def scan(ctx: Context, argv: list[bytes]) -> Reply:
    """Return some of the keys and the next cursor, 0 at the end; keys that exist all the time are never missed."""
    if not _CURSOR.fullmatch(argv[1]) or not -(1 << 63) <= int(argv[1]) < 1 << 64:
        raise CommandError(_INVALID_CURSOR)
    pattern, count, wanted = b"*", _SCAN_COUNT, b""
    for at in range(2, len(argv), 2):
        word = argv[at].upper()
        if at + 1 == len(argv) or word not in (b"MATCH", b"COUNT", b"TYPE"):
            raise errors.syntax()
        if word == b"MATCH":
            pattern = argv[at + 1]
        elif word == b"TYPE":
            wanted = argv[at + 1].lower()
        else:
            count = integer(argv[at + 1])
            if count < 1:
                raise errors.syntax()
    cursor, names = ctx.ks.index.page(int(argv[1]) % (1 << 64), count)
    if pattern != b"*":
        names = list(filter(compiled(pattern).matches, names))
    found = []
    for name in names:
        value = ctx.ks.peek(name, ctx.now)  # deletes it if it has expired
        if value is not None and (not wanted or wanted == type_name(value)):
            found.append(name)
    return reply.array([reply.bulk(b"%d" % cursor), reply.bulk_array(found)])


@command("RANDOMKEY", flags="readonly", group="generic", complexity="O(1)")
def randomkey(ctx: Context, argv: list[bytes]) -> Reply:
    """Return one of the keys, or null if there are none."""
    ks = ctx.ks
    picks = 0
    while len(ks.index):
        name = ks.index.pick(ctx.server.random())
        if ks.peek(name, ctx.now) is not None:  # an expired key is deleted, so this ends
            return reply.bulk(name)
        picks += 1
        if ks.follower and picks == _PICKS:  # there it stays, and nearly all keys may have expired
            live = next((name for name in ks.keys if ks.peek(name, ctx.now) is not None), None)
            return reply.null(ctx.session.proto) if live is None else reply.bulk(live)
    return reply.null(ctx.session.proto)


# -- OBJECT --------------------------------------------------------------------------------------------------------
@command("OBJECT|ENCODING", key("RO"), flags="readonly", group="generic", complexity="O(1)")
def object_encoding(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the encoding of a value: stream, int, embstr or raw."""
    value = ctx.ks.peek(argv[2], ctx.now)
    if value is None:
        return reply.null(ctx.session.proto)
    return reply.bulk(_encoding(value))


def _encoding(value: Value) -> bytes:
    if not isinstance(value, String):
        return b"stream"
    if is_integer(value.value):
        return b"int"
    return b"embstr" if len(value.value) <= _EMBSTR_LIMIT else b"raw"


@command("OBJECT|IDLETIME", key("RO"), flags="readonly", group="generic", complexity="O(1)")
def object_idletime(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the seconds since a key was last used, at most since the start of the server."""
    value = ctx.ks.peek(argv[2], ctx.now)
    if value is None:
        return reply.null(ctx.session.proto)
    used = max(value.used, value.last_ms) if isinstance(value, Stream) else value.used
    return reply.integer(max(0, ctx.now - (used or ctx.now)) // 1000)


@command("OBJECT|REFCOUNT", key("RO"), flags="readonly", group="generic", complexity="O(1)")
def object_refcount(ctx: Context, argv: list[bytes]) -> Reply:
    """Return 1: values are never shared."""
    value = ctx.ks.peek(argv[2], ctx.now)
    return reply.null(ctx.session.proto) if value is None else reply.integer(1)


@command("OBJECT|FREQ", key("RO"), flags="readonly", group="generic", complexity="O(1)")
def object_freq(ctx: Context, argv: list[bytes]) -> Reply:
    """Return an error, as Redis does without an LFU policy: the use of keys is not counted."""
    if ctx.ks.peek(argv[2], ctx.now) is None:
        return reply.null(ctx.session.proto)
    raise CommandError(_LFU_ONLY)


@command("OBJECT|HELP", flags="loading stale", group="generic", complexity="O(1)")
def object_help(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the subcommands with their summaries."""
    return help_reply("OBJECT")
