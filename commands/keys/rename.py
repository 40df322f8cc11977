"""RENAME, RENAMENX, COPY; and commands that can only return an error or null here: MOVE, DUMP, RESTORE."""

from __future__ import annotations

from typing import Final

from commands.context import Context, Reply
from commands.declare import arg, command, key, opt, repeat, token
from commands.keys.setoptions import notify_overwritten
from commands.parse import check_database, each_option
from resp import errors, reply
from resp.errors import CommandError
from storage.keyspace import events
from storage.keyspace.values import String
from storage.streams.stream import Stream

# Entries are stored under the stream's own number. A copy would have to read and write all of them again, also during a
# replay, on every replica and after every start; and the log would contain the whole copy as one record.
_NO_STREAMS: Final = "ERR COPY copies strings, not streams: RENAME moves a stream, TRANGE and TMAPPEND copy its entries"


def _rename(ctx: Context, name: bytes, new: bytes, only_new: bool) -> bool:
    """Rename a key. Returns False if the new name exists but must not be replaced. Raises CommandError if no value."""
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
            if group.waiters:  # they will be notified that it was deleted, so its time to live begins now
                ctx.touch(group)
    if ks.event_classes:
        notify_overwritten(ctx, new, type(value))
    ks.rename(name, new)
    ks.notify(events.GENERIC, b"rename_from", name)
    ks.notify(events.GENERIC, b"rename_to", new)
    return True


@command(
    "RENAME", key("RW ACCESS DELETE"), key("OW UPDATE", "newkey"), flags="write", group="generic",
    complexity="O(1); for a stream O(N): N groups.",
)  # fmt: skip
def rename(ctx: Context, argv: list[bytes]) -> Reply:
    """Rename a key, with its expiry and groups; an existing key with the new name is deleted."""
    _rename(ctx, argv[1], argv[2], only_new=False)
    return reply.OK


@command(
    "RENAMENX", key("RW ACCESS DELETE"), key("OW INSERT", "newkey"), flags="write fast", group="generic",
    complexity="O(1); for a stream O(N): N groups.",
)  # fmt: skip
def renamenx(ctx: Context, argv: list[bytes]) -> Reply:
    """Rename a key unless a key with the new name exists; return 1 if it was renamed, otherwise 0."""
    return reply.integer(int(_rename(ctx, argv[1], argv[2], only_new=True)))


@command(
    "COPY", key("RO ACCESS", "source"), key("OW UPDATE", "destination"),
    opt(arg("destination-db", "integer", token="DB")), opt(token("REPLACE")), flags="write denyoom", group="generic",
)  # fmt: skip
def copy(ctx: Context, argv: list[bytes]) -> Reply:
    """Copy a string and its expiry to another key; return 1 if it was copied, otherwise 0. Streams can't be copied."""
    replace = False
    for word, at in each_option(argv, 3, {b"REPLACE": 0, b"DB": 1}):
        if word == b"REPLACE":
            replace = True
        else:
            check_database(argv[at])
    ks, now = ctx.ks, ctx.now
    name, new = argv[1], argv[2]
    if name == new:
        raise CommandError(errors.SAME_OBJECT)
    value = ks.read(name, now)
    there = value is not None and ks.get(new, now) is not None
    if value is None or (there and not replace):
        return reply.integer(0)
    if isinstance(value, Stream):
        raise CommandError(_NO_STREAMS)
    if ks.event_classes:
        notify_overwritten(ctx, new, String)
        if there:  # Redis deletes it before it creates the copy
            ks.notify(events.NEW, b"new", new)
    ks.set_string(new, value.value, ks.expire_at(name))
    ks.keys[new].used = now
    ks.notify(events.GENERIC, b"copy_to", new)
    return reply.integer(1)


# -- not possible here -------------------------------------------------------------------------------------------
@command("MOVE", key("RW ACCESS DELETE"), arg("db", "integer"), flags="write fast", group="generic")
def move(ctx: Context, argv: list[bytes]) -> Reply:
    """Return an error: there is no other database to which a key could be moved."""
    if ctx.server.cluster.enabled:
        raise CommandError(errors.NOT_IN_CLUSTER.format("MOVE"))
    check_database(argv[2])
    raise CommandError(errors.SAME_OBJECT)


@command("DUMP", key("RO ACCESS"), flags="readonly", group="generic")
def dump(ctx: Context, argv: list[bytes]) -> Reply:
    """Return null if there is no such key, otherwise an error: there is no serialized form."""
    if ctx.ks.peek(argv[1], ctx.now) is None:
        return reply.null(ctx.session.proto)
    raise CommandError(errors.DUMP_UNSUPPORTED)


@command(
    "RESTORE", key("OW UPDATE"), arg("ttl", "integer"), arg("serialized-value"), opt(repeat(arg("option"))),
    flags="write denyoom", group="generic", acl="dangerous",
)  # fmt: skip
def restore(ctx: Context, argv: list[bytes]) -> Reply:
    """Return an error: there is no serialized form."""
    raise CommandError(errors.DUMP_UNSUPPORTED)
