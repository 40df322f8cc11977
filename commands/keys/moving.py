"""RENAME, RENAMENX, COPY."""

from __future__ import annotations

from typing import Final

from commands.context import Context, Reply
from commands.declare import arg, command, key, opt, token
from commands.keys.setting import store
from commands.parse import integer
from resp import errors, reply
from resp.errors import CommandError
from storage.stream import Stream

_SAME: Final = "ERR source and destination objects are the same"
# Its entries are stored under the stream's own number. A copy would have to read and write all of them again, also in
# replay, on every replica and after every start; and the log would need the whole of it as one step.
_NO_STREAMS: Final = (
    "ERR COPY copies strings, not streams: RENAME moves a stream, TRANGE and TMAPPEND copy its entries"
)


def _rename(ctx: Context, name: bytes, new: bytes, only_new: bool) -> bool:
    """False if there is a value at the new name, which must not be replaced. Raises CommandError without a value."""
    ks, now = ctx.ks, ctx.now
    value = ks.get(name, now)
    if value is None:
        raise CommandError(errors.NO_SUCH_KEY)
    if name == new:
        return not only_new
    if ks.get(new, now) is not None and only_new:
        return False
    if isinstance(value, Stream):
        for group in value.groups.values():
            if group.waiters:  # they are about to be told that it has gone: its time to live begins now
                group.touch(now)
    ks.rename(name, new)
    return True


@command(
    "RENAME", key("RW ACCESS DELETE"), key("OW UPDATE", "newkey"), flags="write", group="generic",
    complexity="O(1); for a stream O(N): N groups.",
)  # fmt: skip
def rename(ctx: Context, argv: list[bytes]) -> Reply:
    """Rename a key, with its expiry and groups; a key that has the new name is deleted."""
    _rename(ctx, argv[1], argv[2], only_new=False)
    return reply.OK


@command(
    "RENAMENX", key("RW ACCESS DELETE"), key("OW INSERT", "newkey"), flags="write fast", group="generic",
    complexity="O(1); for a stream O(N): N groups.",
)  # fmt: skip
def renamenx(ctx: Context, argv: list[bytes]) -> Reply:
    """Rename a key unless there is one that has the new name; return 1 if it was renamed, else 0."""
    return reply.integer(int(_rename(ctx, argv[1], argv[2], only_new=True)))


@command(
    "COPY", key("RO ACCESS", "source"), key("OW UPDATE", "destination"),
    opt(arg("destination-db", "integer", token="DB")), opt(token("REPLACE")),
    flags="write denyoom", group="generic", complexity="O(1)",
)  # fmt: skip
def copy(ctx: Context, argv: list[bytes]) -> Reply:
    """Copy a string, with its expiry, to another key; return 1 if it was copied, else 0. Streams can't be copied."""
    replace, at = False, 3
    while at < len(argv):
        word = argv[at].upper()
        if word == b"REPLACE":
            replace = True
        elif word == b"DB" and at + 1 < len(argv):
            at += 1
            if integer(argv[at]) != 0:
                raise CommandError(errors.NO_SUCH_DATABASE)
        else:
            raise errors.syntax()
        at += 1
    ks, now = ctx.ks, ctx.now
    name, new = argv[1], argv[2]
    if name == new:
        raise CommandError(_SAME)
    value = ks.read(name, now)
    if value is None or (ks.get(new, now) is not None and not replace):
        return reply.integer(0)
    if isinstance(value, Stream):
        raise CommandError(_NO_STREAMS)
    store(ctx, new, value.value, ks.expire_at(name))
    return reply.integer(1)
