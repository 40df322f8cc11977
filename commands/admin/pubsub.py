"""SUBSCRIBE, PSUBSCRIBE, SSUBSCRIBE, UNSUBSCRIBE, PUNSUBSCRIBE, SUNSUBSCRIBE, PUBLISH, SPUBLISH, PUBSUB.

As in Redis, the reply of the first six is a confirmation for each channel. In RESP3 confirmations are pushes. CLIENT
REPLY does not leave them out, in RESP2 neither: they tell which messages will follow.
"""

from __future__ import annotations

from functools import partial

from commands.context import Context, Reply
from commands.declare import arg, command, key, opt
from commands.help import help_reply
from commands.keys.glob import check_length
from commands.session import Session
from resp import errors, reply
from resp.errors import CommandError

_subscribe = partial(
    command, flags="pubsub noscript loading stale", traits="subscribed", group="pubsub", since="0.1.0"
)
_ask = partial(command, flags="pubsub loading stale", group="pubsub", since="0.1.0")


def _confirm(session: Session, kind: bytes, channel: bytes | None) -> bytes:
    """A confirmation. ``channel`` None: there was no subscription to end."""
    name = reply.null(session.proto) if channel is None else reply.bulk(channel)
    shard = kind in (b"ssubscribe", b"sunsubscribe")
    count = len(session.shards) if shard else len(session.channels) + len(session.patterns)
    return reply.push(session.proto, [reply.bulk(kind), name, reply.integer(count)])


def _join(ctx: Context, names: list[bytes], kind: bytes, pattern: bool) -> bytes:
    session = ctx.session
    parts = []
    for name in names:
        ctx.server.pubsub.subscribe(session, name, pattern)
        parts.append(_confirm(session, kind, name))
    session.refresh()
    return _confirmed(session, b"".join(parts))


def _confirmed(session: Session, confirmations: bytes) -> bytes:
    """The reply; where CLIENT REPLY would leave it out, the confirmations are sent apart from it."""
    if session.reply_mode and session.transport is not None:
        session.transport.push(confirmations)
        return b""
    return confirmations


def _leave(ctx: Context, names: list[bytes], kind: bytes, pattern: bool) -> bytes:
    session = ctx.session
    parts = []
    for name in names or sorted(session.patterns if pattern else session.channels):
        ctx.server.pubsub.unsubscribe(session, name, pattern)
        parts.append(_confirm(session, kind, name))
    session.refresh()
    return _confirmed(session, b"".join(parts) if parts else _confirm(session, kind, None))


@_subscribe(
    "SUBSCRIBE", arg("channel", multiple=True), complexity="O(N): N channels to subscribe to.", channels="all",
)
def subscribe(ctx: Context, argv: list[bytes]) -> Reply:
    """Receive the messages that are published to the channels from now on."""
    return _join(ctx, argv[1:], b"subscribe", pattern=False)


@_subscribe(
    "PSUBSCRIBE", arg("pattern", "pattern", multiple=True), complexity="O(N): N patterns to subscribe to.",
    channels="patterns",
)
def psubscribe(ctx: Context, argv: list[bytes]) -> Reply:
    """Receive the messages of all channels whose names match one of the patterns."""
    for pattern in argv[1:]:
        check_length(pattern)  # before the first is subscribed
    return _join(ctx, argv[1:], b"psubscribe", pattern=True)


@_subscribe(
    "UNSUBSCRIBE", opt(arg("channel", multiple=True)), complexity="O(N): N channels to unsubscribe from."
)
def unsubscribe(ctx: Context, argv: list[bytes]) -> Reply:
    """End the subscriptions to the named channels, or to all."""
    return _leave(ctx, argv[1:], b"unsubscribe", pattern=False)


@_subscribe(
    "PUNSUBSCRIBE", opt(arg("pattern", "pattern", multiple=True)),
    complexity="O(N): N patterns to unsubscribe from."
)
def punsubscribe(ctx: Context, argv: list[bytes]) -> Reply:
    """End the subscriptions to the named patterns, or to all."""
    return _leave(ctx, argv[1:], b"punsubscribe", pattern=True)


# Shard channels are declared as keys that are none, as in Redis, where they belong to the slot of their name.
@_subscribe(
    "SSUBSCRIBE", key("not_key", "shardchannel", multiple=True),
    complexity="O(N): N shard channels to subscribe to.", channels="all",
)  # fmt: skip
def ssubscribe(ctx: Context, argv: list[bytes]) -> Reply:
    """Receive the messages that are published to the shard channels from now on."""
    if ctx.in_exec:
        raise CommandError(errors.NO_SSUBSCRIBE_IN_EXEC)
    session = ctx.session
    parts = []
    for name in argv[1:]:
        ctx.server.pubsub.subscribe_shard(session, name)
        parts.append(_confirm(session, b"ssubscribe", name))
    session.refresh()
    return _confirmed(session, b"".join(parts))


@_subscribe(
    "SUNSUBSCRIBE", opt(key("not_key", "shardchannel", multiple=True)),
    complexity="O(N): N shard channels to unsubscribe from.",
)  # fmt: skip
def sunsubscribe(ctx: Context, argv: list[bytes]) -> Reply:
    """End the subscriptions to the named shard channels, or to all."""
    session = ctx.session
    parts = []
    for name in argv[1:] or sorted(session.shards):
        ctx.server.pubsub.unsubscribe_shard(session, name)
        parts.append(_confirm(session, b"sunsubscribe", name))
    session.refresh()
    return _confirmed(session, b"".join(parts) if parts else _confirm(session, b"sunsubscribe", None))


def _reply_first(session: Session) -> None:
    """What a client sends to itself comes after its reply, as in Redis since 7.2: never within that of EXEC."""
    if session.transport is not None and session.subscribed:
        session.transport.hold_pushes()


@command(
    "PUBLISH", arg("channel"), arg("message"), flags="pubsub loading stale fast", traits="reaches_replicas",
    group="pubsub", since="0.1.0", complexity="O(N + M): N subscribers of the channel, M subscribed patterns.",
    channels="first",
)
def publish(ctx: Context, argv: list[bytes]) -> Reply:
    """Send a message to the present subscribers of a channel; return their number."""
    _reply_first(ctx.session)
    if ctx.ks.events:  # of the commands before it in a transaction
        ctx.server.notices.tell(ctx.session)
    return reply.integer(ctx.server.pubsub.publish(argv[1], argv[2]))


@command(
    "SPUBLISH", key("not_key", "shardchannel"), arg("message"), flags="pubsub loading stale fast",
    traits="reaches_replicas", group="pubsub", since="0.1.0", complexity="O(N): N subscribers of the shard channel.",
    channels="first",
)  # fmt: skip
def spublish(ctx: Context, argv: list[bytes]) -> Reply:
    """Send a message to the present subscribers of a shard channel; return their number."""
    _reply_first(ctx.session)
    return reply.integer(ctx.server.pubsub.publish_shard(argv[1], argv[2]))


@_ask("PUBSUB|CHANNELS", opt(arg("pattern", "pattern")), complexity="O(N): N active channels.")
def pubsub_channels(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the channels that have subscribers."""
    if len(argv) > 3:
        raise errors.bad_subcommand(argv)
    return reply.bulk_array(ctx.server.pubsub.channels(argv[2] if len(argv) == 3 else None))


@_ask("PUBSUB|NUMSUB", opt(arg("channel", multiple=True)), complexity="O(N): N channels asked for.")
def pubsub_numsub(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of subscribers of each channel."""
    items = []
    for channel in argv[2:]:
        items += [reply.bulk(channel), reply.integer(ctx.server.pubsub.channel_subscribers(channel))]
    return reply.array(items)


@_ask("PUBSUB|SHARDCHANNELS", opt(arg("pattern", "pattern")), complexity="O(N): N active shard channels.")
def pubsub_shardchannels(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the shard channels that have subscribers."""
    if len(argv) > 3:
        raise errors.bad_subcommand(argv)
    return reply.bulk_array(ctx.server.pubsub.shard_channels(argv[2] if len(argv) == 3 else None))


@_ask("PUBSUB|SHARDNUMSUB", opt(arg("shardchannel", multiple=True)), complexity="O(N): N shard channels asked for.")
def pubsub_shardnumsub(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of subscribers of each shard channel."""
    items = []
    for channel in argv[2:]:
        items += [reply.bulk(channel), reply.integer(ctx.server.pubsub.shard_subscribers(channel))]
    return reply.array(items)


@_ask("PUBSUB|NUMPAT", complexity="O(1)")
def pubsub_numpat(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of patterns that have subscribers."""
    return reply.integer(ctx.server.pubsub.pattern_count())


@command("PUBSUB|HELP", flags="loading stale", group="pubsub", since="0.1.0", complexity="O(1)")
def pubsub_help(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the subcommands with their summaries."""
    return help_reply("PUBSUB")
