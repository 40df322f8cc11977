"""Keys of any type: deleting, asking, walking over them, and OBJECT."""

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
_SCAN_COUNT = 10  # keys a SCAN call visits if COUNT doesn't say
_PICKS: Final = 100  # keys that RANDOMKEY tries on a replica before it looks at each in turn
_EMBSTR_LIMIT: Final = 44  # bytes; longer strings are "raw" in Redis's words

_CURSOR = re.compile(rb"[+-]?[0-9]+")


def type_name(value: Value) -> bytes:
    """What TYPE answers."""
    return b"stream" if isinstance(value, Stream) else b"string"


# -- whether they are there, and for how long no more ------------------------------------------------------------
def _delete(ctx: Context, argv: list[bytes]) -> bytes:
    return reply.integer(sum([ctx.ks.delete(name, ctx.now) for name in argv[1:]]))


@command("DEL", repeat(key("RM DELETE")), flags="write", group="generic", complexity="O(N): N keys.")
def del_(ctx: Context, argv: list[bytes]) -> Reply:
    """Delete keys of any type, with all that belongs to them; returns how many there were."""
    return _delete(ctx, argv)


@command("UNLINK", repeat(key("RM DELETE")), flags="write fast", group="generic", complexity="O(N): N keys.")
def unlink(ctx: Context, argv: list[bytes]) -> Reply:
    """Delete keys of any type, as DEL does; returns how many there were."""
    return _delete(ctx, argv)


@command("EXISTS", repeat(key("RO")), flags="readonly fast", group="generic", complexity="O(N): N keys.")
def exists(ctx: Context, argv: list[bytes]) -> Reply:
    """Return how many of the keys exist; one that is named twice counts twice."""
    return reply.integer(sum([ctx.ks.peek(name, ctx.now) is not None for name in argv[1:]]))


@command("TYPE", key("RO"), flags="readonly fast", group="generic", complexity="O(1)")
def type_(ctx: Context, argv: list[bytes]) -> Reply:
    """Return what a key holds: stream, string or none."""
    value = ctx.ks.peek(argv[1], ctx.now)
    return reply.simple(b"none" if value is None else type_name(value))


@command("TOUCH", repeat(key("RO")), flags="readonly fast", group="generic", complexity="O(N): N keys.")
def touch(ctx: Context, argv: list[bytes]) -> Reply:
    """Count as use of the keys (see OBJECT IDLETIME); returns how many of them exist."""
    found = [value for value in [ctx.ks.peek(name, ctx.now) for name in argv[1:]] if value is not None]
    for value in found:
        value.used = ctx.now  # CLIENT NO-TOUCH doesn't hold here
    return reply.integer(len(found))


# -- walking over them ---------------------------------------------------------------------------------------------
@command(
    "KEYS", arg("pattern", "pattern"), flags="readonly", group="generic", acl="dangerous", complexity="O(N): N keys."
)
def keys(ctx: Context, argv: list[bytes]) -> Reply:
    """Return every key that fits a glob pattern."""
    names = list(ctx.ks.keys)
    if argv[1] != b"*":
        names = list(filter(compiled(argv[1]).matches, names))
    deadlines, now = ctx.ks.expires, ctx.now
    return reply.bulk_array([name for name in names if name not in deadlines or deadlines[name] > now])


@command(
    "SCAN", arg("cursor", "integer"), opt(arg("pattern", "pattern", token="MATCH")),
    opt(arg("count", "integer", token="COUNT")), opt(arg("type", token="TYPE")),
    flags="readonly", group="generic", complexity="O(1) a call, O(N) for a whole walk: N keys.",
)  # fmt: skip
def scan(ctx: Context, argv: list[bytes]) -> Reply:
    """Return some of the keys and the cursor to go on from, 0 at the end; keys there all along are never missed."""
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
        value = ctx.ks.peek(name, ctx.now)  # an expired key goes here
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
        if ks.peek(name, ctx.now) is not None:  # an expired key goes, so this ends
            return reply.bulk(name)
        picks += 1
        if ks.follower and picks == _PICKS:  # or it stays, and nearly all may be such
            live = next((name for name in ks.keys if ks.peek(name, ctx.now) is not None), None)
            return reply.null(ctx.session.proto) if live is None else reply.bulk(live)
    return reply.null(ctx.session.proto)


# -- OBJECT --------------------------------------------------------------------------------------------------------
@command("OBJECT|ENCODING", key("RO"), flags="readonly", group="generic", complexity="O(1)")
def object_encoding(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the name of how a value is kept: stream, int, embstr or raw."""
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
    """Return the seconds since a key was last used; time before the server's start doesn't count."""
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
    """Return an error: how often a key is used is not counted, as under any of Redis's policies that isn't LFU."""
    if ctx.ks.peek(argv[2], ctx.now) is None:
        return reply.null(ctx.session.proto)
    raise CommandError(_LFU_ONLY)


@command("OBJECT|HELP", flags="loading stale", group="generic", complexity="O(1)")
def object_help(ctx: Context, argv: list[bytes]) -> Reply:
    """Print the subcommands and what they are for."""
    return help_reply("OBJECT")
