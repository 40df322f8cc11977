"""XGROUP: creates, moves and removes groups and their consumers.

A group that is created here has no time to live. Otherwise it is the same as one that TREAD creates.
"""

from __future__ import annotations

from commands.context import Context, Reply, Slices
from commands.declare import arg, command, key, oneof, opt, token
from commands.parse import check_group_name, each_option, integer
from commands.redis_streams.consumers import consumer_of
from commands.redis_streams.ids import strict_id
from commands.slicing import AT_ONCE
from resp import errors
from resp import reply as encode
from resp.errors import CommandError
from storage.groups.group import Consumer, Group
from storage.keyspace import events, groupmutators
from storage.model.ids import MAX_ID
from storage.streams.stream import Stream

_NEW_ID = oneof("id-selector", arg("id"), token("$", "new-id"))
_ENTRIES_READ = opt(arg("entries-read", "integer", token="ENTRIESREAD"))


def _options(argv: list[bytes], mkstream: bool) -> tuple[bool, int]:
    """Return whether MKSTREAM is set, and ENTRIESREAD or -1. Raises CommandError."""
    make, entries_read = False, -1
    sizes = {b"ENTRIESREAD": 1, b"MKSTREAM": 0} if mkstream else {b"ENTRIESREAD": 1}
    for word, at in each_option(argv, 5, sizes, lambda _: errors.bad_subcommand(argv)):
        if word == b"MKSTREAM":
            make = True
            continue
        entries_read = integer(argv[at])
        if entries_read < -1:
            raise CommandError(errors.BAD_ENTRIES_READ)
    return make, entries_read


def _stream(ctx: Context, name: bytes) -> Stream:
    stream = ctx.ks.stream(name, ctx.now)
    if stream is None:
        raise CommandError(errors.XGROUP_NEEDS_KEY)
    return stream


def _group(stream: Stream, argv: list[bytes]) -> Group:
    group = stream.groups.get(argv[3])
    if group is None:
        raise errors.quoting(errors.NO_GROUP_OF_KEY, argv[3], argv[2])
    return group


def _any_id(text: bytes) -> int:
    """Parse an ID; all forms are allowed. Raises CommandError."""
    if text == b"-":
        return 0
    return MAX_ID if text == b"+" else strict_id(text)


@command(
    "XGROUP|CREATE", key("RW INSERT"), arg("group"), _NEW_ID, opt(token("MKSTREAM")), _ENTRIES_READ,
    flags="write denyoom",
)  # fmt: skip
def xgroup_create(ctx: Context, argv: list[bytes]) -> Reply:
    """Create a group that starts after an ID, or with later entries only; with MKSTREAM, also create the stream."""
    name, group = argv[2], argv[3]
    make, entries_read = _options(argv, True)
    check_group_name(group)
    stream = ctx.ks.stream(name, ctx.now) if make else _stream(ctx, name)
    if len(argv) > 8:
        raise errors.bad_subcommand(argv)
    if argv[4] == b"$":
        offset = stream.last_id if stream is not None else 0
    else:
        offset = strict_id(argv[4])
    if stream is None:
        stream, lone = ctx.ks.create_stream(name), True
    elif group in stream.groups:
        raise CommandError(errors.BUSY_GROUP)
    else:
        lone = False
    groupmutators.create_group(ctx.ks, name, stream, group, offset, min(entries_read, stream.entries_added), lone)
    ctx.ks.notify(events.STREAM, b"xgroup-create", name)
    return encode.OK


@command("XGROUP|SETID", key("RW UPDATE"), arg("group"), _NEW_ID, _ENTRIES_READ, flags="write", traits="sign_of_life")
def xgroup_setid(ctx: Context, argv: list[bytes]) -> Reply:
    """Move a group's last delivered ID; its pending messages stay."""
    _, entries_read = _options(argv, False)
    stream = _stream(ctx, argv[2])
    group = _group(stream, argv)
    if len(argv) > 7:
        raise errors.bad_subcommand(argv)
    offset = stream.last_id if argv[4] == b"$" else _any_id(argv[4])
    ctx.touch(group)
    groupmutators.move_group(ctx.ks, argv[2], stream, group, offset, min(entries_read, stream.entries_added))
    ctx.ks.notify(events.STREAM, b"xgroup-setid", argv[2])
    return encode.OK


@command("XGROUP|DESTROY", key("RW DELETE"), arg("group"), flags="write", complexity="O(P): P pending messages.")
def xgroup_destroy(ctx: Context, argv: list[bytes]) -> Reply:
    """Delete a group with its consumers and pending messages; return 1, or 0 if there was none."""
    stream = _stream(ctx, argv[2])
    if argv[3] not in stream.groups:
        return encode.integer(0)
    groupmutators.end_group(ctx.ks, argv[2], stream, argv[3], b"xgroup-destroy")
    return encode.integer(1)


@command(
    "XGROUP|CREATECONSUMER", key("RW INSERT"), arg("group"), arg("consumer"), flags="write denyoom",
    traits="sign_of_life",
)  # fmt: skip
def xgroup_createconsumer(ctx: Context, argv: list[bytes]) -> Reply:
    """Create a consumer; return 1, or 0 if there is one of that name."""
    stream = _stream(ctx, argv[2])
    group = _group(stream, argv)
    if argv[4] in group.consumers:
        return encode.integer(0)
    consumer_of(ctx, argv[2], stream, group, argv[4])
    return encode.integer(1)


@command(
    "XGROUP|DELCONSUMER", key("RW DELETE"), arg("group"), arg("consumer"), flags="write", traits="sign_of_life",
    complexity="O(P): P pending messages of the consumer.",
)  # fmt: skip
def xgroup_delconsumer(ctx: Context, argv: list[bytes]) -> Reply:
    """Remove a consumer; return how many messages it had pending, which are no longer pending."""
    stream = _stream(ctx, argv[2])
    group = _group(stream, argv)
    consumer = group.consumers.get(argv[4])
    if consumer is None:
        return encode.integer(0)
    return _removed(ctx, argv[2], group, consumer)


def _removed(ctx: Context, name: bytes, group: Group, consumer: Consumer) -> Reply:
    """Remove a consumer. If it has many messages, these are removed in slices before it."""
    dropped = 0

    def step(ctx: Context) -> bytes | None:
        nonlocal dropped
        ks, stream = ctx.ks, ctx.ks.stream(name, ctx.now)
        if (
            stream is None
            or stream.groups.get(group.name) is not group
            or group.owners.get(consumer.number) is not consumer
        ):
            return encode.integer(dropped)  # another command has removed it, or its group or stream
        if group.pending.owned(consumer.number) > AT_ONCE:
            raws = group.pending.raws_of(consumer.number, AT_ONCE)
            dropped += groupmutators.ack(ks, name, stream, group, raws)
            return None
        dropped += groupmutators.forget_consumer(ks, name, stream, group, consumer)
        ks.notify(events.STREAM, b"xgroup-delconsumer", name)
        return encode.integer(dropped)

    few = group.pending.owned(consumer.number) <= AT_ONCE
    return (step(ctx) if few else None) or Slices(step, True)
