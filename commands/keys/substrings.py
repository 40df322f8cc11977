"""Parts of strings: APPEND, GETRANGE, SUBSTR, SETRANGE.

A change of a part is logged as that part, regardless of the length of the string.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from commands.context import Context, Reply
from commands.declare import arg, command, key
from commands.keys.setoptions import check_length, store
from commands.parse import integer
from commands.slicing import long_bulk
from resp import errors, reply
from resp.errors import CommandError
from storage.keyspace import events
from storage.keyspace.values import String

MOST_ZEROS: Final = 8 << 20  # maximum that one call adds, since a small request must not delay all other clients
_BAD_OFFSET: Final = "ERR offset is out of range"


def _string(ctx: Context, name: bytes) -> String | None:
    """Return the string of a key, or None. Raises CommandError (WRONGTYPE)."""
    value = ctx.ks.get(name, ctx.now)
    if value is None or isinstance(value, String):
        return value
    raise errors.wrong_type()


@command(
    "APPEND", key("RW INSERT"), arg("value"), flags="write denyoom fast", group="string",
    complexity="O(N): N bytes of the string after it.",
)  # fmt: skip
def append(ctx: Context, argv: list[bytes]) -> Reply:
    """Append bytes to the string of a key (empty if the key does not exist); return its length."""
    name, more = argv[1], argv[2]
    string = _string(ctx, name)
    if string is None:
        store(ctx, name, more, event=b"append")
        return reply.integer(len(more))
    size = len(string.value) + len(more)
    check_length(ctx, size)
    if more:
        ctx.ks.patch_string(name, string, len(string.value), more)
    ctx.ks.notify(events.STRING, b"append", name)
    return reply.integer(size)


@command(
    "SETRANGE", key("RW UPDATE"), arg("offset", "integer"), arg("value"), flags="write denyoom", group="string",
    complexity="O(N): N bytes of the string after it.",
)  # fmt: skip
def setrange(ctx: Context, argv: list[bytes]) -> Reply:
    """Overwrite a part of the string of a key, padded with zero bytes if it is too short; return its length."""
    name, offset, part = argv[1], integer(argv[2]), argv[3]
    if offset < 0:
        raise CommandError(_BAD_OFFSET)
    string = _string(ctx, name)
    size = 0 if string is None else len(string.value)
    if not part:
        return reply.integer(size)
    check_length(ctx, offset + len(part))
    if offset - size > MOST_ZEROS:
        raise CommandError(
            f"ERR SETRANGE would add {offset - size} zero bytes to the string; at most {MOST_ZEROS} are allowed in one"
            " call"
        )
    if string is None:
        store(ctx, name, bytes(offset) + part, event=b"setrange")
    else:
        gap = bytes(max(0, offset - size))
        ctx.ks.patch_string(name, string, offset - len(gap), gap + part)
        ctx.ks.notify(events.STRING, b"setrange", name)
    return reply.integer(max(size, offset + len(part)))


_part = partial(command, flags="readonly", group="string", complexity="O(N): N bytes of the reply.")


@_part("GETRANGE", key("RO ACCESS"), arg("start", "integer"), arg("end", "integer"))
def getrange(ctx: Context, argv: list[bytes]) -> Reply:
    """Return a part of the string of a key, from start to end, both included; negative offsets count from the end."""
    start, end = integer(argv[2]), integer(argv[3])
    value = ctx.ks.read_string(argv[1], ctx.now) or b""
    size = len(value)
    if start < 0 and end < 0 and start > end:
        return reply.bulk(b"")
    if start < 0:
        start = max(0, start + size)
    if end < 0:
        end = max(0, end + size)
    return long_bulk(value, start, min(end + 1, size)) if start <= end and start < size else reply.bulk(b"")


@_part("SUBSTR", key("RO ACCESS"), arg("start", "integer"), arg("end", "integer"))
def substr(ctx: Context, argv: list[bytes]) -> Reply:
    """Return a part of the string of a key: the old name of GETRANGE."""
    return getrange(ctx, argv)
