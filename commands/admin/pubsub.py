"""SUBSCRIBE, PSUBSCRIBE, SSUBSCRIBE, UNSUBSCRIBE, PUNSUBSCRIBE, SUNSUBSCRIBE, PUBLISH, SPUBLISH, PUBSUB.

As in Redis, the reply of the first six is a confirmation for each channel. In RESP3, confirmations are pushes. CLIENT
REPLY does not suppress them, not even in RESP2, because they announce which messages will follow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from commands.context import Context, Reply, Slices
from commands.declare import arg, command, key, opt
from commands.glob import MAX_TOGETHER, check_length, compiled
from commands.session import CHANNELS, PATTERNS, SHARDS, Session
from commands.slicing import AT_ONCE, SLICE_BYTES, Encode, in_turn, matching_names, slice_end
from resp import errors, reply
from resp.errors import CommandError

_subscribe = partial(command, flags="pubsub noscript loading stale", traits="subscribed", group="pubsub")
_ask = partial(command, flags="pubsub loading stale", group="pubsub")


def _confirm(session: Session, word: bytes, kind: int, channel: bytes | None) -> bytes:
    """Encode a confirmation. ``channel`` is None if there was no subscription to end."""
    name = reply.null(session.proto) if channel is None else reply.bulk(channel)
    count = len(session.shards) if kind == SHARDS else len(session.channels) + len(session.patterns)
    return reply.push(session.proto, [reply.bulk(word), name, reply.integer(count)])


def _join(ctx: Context, names: list[bytes], word: bytes, kind: int) -> Reply:
    """Subscribe and confirm it."""
    change = partial(_change_some, ctx.server.pubsub.subscribe, word, kind)
    return _in_turn(ctx, names, change, MAX_TOGETHER if kind == PATTERNS else SLICE_BYTES)


def _change_some(
    change: Callable[[Session, int, bytes], None], word: bytes, kind: int, ctx: Context, names: list[bytes]
) -> bytes:
    parts = []
    for name in names:
        change(ctx.session, kind, name)
        parts.append(_confirm(ctx.session, word, kind, name))
    ctx.session.refresh()
    return b"".join(parts)


def _in_turn(ctx: Context, names: list[bytes], some: Encode, most_bytes: int = SLICE_BYTES) -> Reply:
    """Process each name and confirm it. If there are many names, or long ones, the confirmations of each slice are sent
    immediately, because they must precede the messages that follow them."""
    if ctx.in_exec or slice_end(names, 0, most_bytes) == len(names):
        return _confirmed(ctx.session, some(ctx, names))
    at = 0

    def step(ctx: Context) -> bytes | None:
        nonlocal at
        transport = ctx.session.transport
        if transport is None:  # the client has disconnected and no longer has subscriptions
            return reply.OK
        start, at = at, slice_end(names, at, most_bytes)
        transport.push(some(ctx, names[start:at]))
        return None if at < len(names) else b""

    return Slices(step, False)


def _confirmed(session: Session, confirmations: bytes) -> bytes:
    """Return the confirmations as the reply. If CLIENT REPLY would suppress it, send them separately."""
    if session.reply_mode and session.transport is not None:
        session.transport.push(confirmations)
        return b""
    return confirmations


def _leave(ctx: Context, names: list[bytes], word: bytes, kind: int) -> Reply:
    """Unsubscribe and confirm it. If no name is given, all subscriptions of this kind end."""
    mine = ctx.session.subscriptions(kind)
    names = names or (sorted(mine) if len(mine) <= AT_ONCE else list(mine))
    if not names:
        return _confirmed(ctx.session, _confirm(ctx.session, word, kind, None))
    return _in_turn(ctx, names, partial(_change_some, ctx.server.pubsub.unsubscribe, word, kind))


@_subscribe("SUBSCRIBE", arg("channel", multiple=True), complexity="O(N): N channels to subscribe to.", channels="all")
def subscribe(ctx: Context, argv: list[bytes]) -> Reply:
    """Receive the messages that are published to the channels from now on."""
    return _join(ctx, argv[1:], b"subscribe", CHANNELS)


@_subscribe(
    "PSUBSCRIBE", arg("pattern", "pattern", multiple=True), complexity="O(N): N patterns to subscribe to.",
    channels="patterns",
)  # fmt: skip
def psubscribe(ctx: Context, argv: list[bytes]) -> Reply:
    """Receive the messages of all channels whose names match one of the patterns."""
    for pattern in argv[1:]:
        check_length(pattern)  # before the first subscription
    return _join(ctx, argv[1:], b"psubscribe", PATTERNS)


@_subscribe("UNSUBSCRIBE", opt(arg("channel", multiple=True)), complexity="O(N): N channels to unsubscribe from.")
def unsubscribe(ctx: Context, argv: list[bytes]) -> Reply:
    """End the subscriptions to the named channels, or to all."""
    return _leave(ctx, argv[1:], b"unsubscribe", CHANNELS)


@_subscribe(
    "PUNSUBSCRIBE", opt(arg("pattern", "pattern", multiple=True)), complexity="O(N): N patterns to unsubscribe from.",
)  # fmt: skip
def punsubscribe(ctx: Context, argv: list[bytes]) -> Reply:
    """End the subscriptions to the named patterns, or to all."""
    return _leave(ctx, argv[1:], b"punsubscribe", PATTERNS)


# As in Redis, shard channels are declared as keys with the flag not_key: there they belong to the slot of their name.
@_subscribe(
    "SSUBSCRIBE", key("not_key", "shardchannel", multiple=True), complexity="O(N): N shard channels to subscribe to.",
    channels="all",
)  # fmt: skip
def ssubscribe(ctx: Context, argv: list[bytes]) -> Reply:
    """Receive the messages that are published to the shard channels from now on."""
    if ctx.in_exec:
        raise CommandError(errors.NO_SSUBSCRIBE_IN_EXEC)
    return _join(ctx, argv[1:], b"ssubscribe", SHARDS)


@_subscribe(
    "SUNSUBSCRIBE", opt(key("not_key", "shardchannel", multiple=True)),
    complexity="O(N): N shard channels to unsubscribe from.",
)  # fmt: skip
def sunsubscribe(ctx: Context, argv: list[bytes]) -> Reply:
    """End the subscriptions to the named shard channels, or to all."""
    return _leave(ctx, argv[1:], b"sunsubscribe", SHARDS)


def _reply_first(session: Session) -> None:
    """Queue messages that a client sends to itself after its reply, as in Redis since 7.2, or after that of EXEC."""
    if session.transport is not None and session.subscribed:
        session.transport.hold_pushes()


@command(
    "PUBLISH", arg("channel"), arg("message"), flags="pubsub loading stale fast", traits="reaches_replicas",
    group="pubsub", complexity="O(N + M): N subscribers of the channel, M subscribed patterns.", channels="first",
)  # fmt: skip
def publish(ctx: Context, argv: list[bytes]) -> Reply:
    """Send a message to the current subscribers of a channel; return their number."""
    _reply_first(ctx.session)
    if ctx.ks.events:  # events of earlier commands of the transaction
        ctx.server.notifications.send(ctx.session)
    return reply.integer(ctx.server.pubsub.publish(argv[1], argv[2]))


@command(
    "SPUBLISH", key("not_key", "shardchannel"), arg("message"), flags="pubsub loading stale fast",
    traits="reaches_replicas", group="pubsub", complexity="O(N): N subscribers of the shard channel.", channels="first",
)  # fmt: skip
def spublish(ctx: Context, argv: list[bytes]) -> Reply:
    """Send a message to the current subscribers of a shard channel; return their number."""
    _reply_first(ctx.session)
    return reply.integer(ctx.server.pubsub.publish(argv[1], argv[2], shard=True))


def _matching(ctx: Context, argv: list[bytes], kind: int) -> Reply:
    """Return the names that have subscribers and match the pattern argv[2], if there is one. Raises CommandError."""
    if len(argv) > 3:
        raise errors.bad_subcommand(argv)
    fits = compiled(argv[2]).matches if len(argv) == 3 else None
    names = ctx.server.pubsub.names(kind)
    return matching_names(names, lambda _, some: list(filter(fits, some)) if fits is not None else some, ctx)


@_ask("PUBSUB|CHANNELS", opt(arg("pattern", "pattern")), complexity="O(N): N active channels.")
def pubsub_channels(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the channels that have subscribers."""
    return _matching(ctx, argv, CHANNELS)


@_ask("PUBSUB|NUMSUB", opt(arg("channel", multiple=True)), complexity="O(N): N channels named.")
def pubsub_numsub(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of subscribers of each channel."""
    return _counted(ctx, argv[2:], CHANNELS)


@_ask("PUBSUB|SHARDCHANNELS", opt(arg("pattern", "pattern")), complexity="O(N): N active shard channels.")
def pubsub_shardchannels(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the shard channels that have subscribers."""
    return _matching(ctx, argv, SHARDS)


@_ask("PUBSUB|SHARDNUMSUB", opt(arg("shardchannel", multiple=True)), complexity="O(N): N shard channels named.")
def pubsub_shardnumsub(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of subscribers of each shard channel."""
    return _counted(ctx, argv[2:], SHARDS)


def _counted(ctx: Context, channels: list[bytes], kind: int) -> Reply:
    """Return each channel with the number of its subscribers."""
    count = partial(ctx.server.pubsub.subscribers, kind)

    def encode(_: Context, some: list[bytes]) -> bytes:
        return b"".join([reply.bulk(channel) + reply.integer(count(channel)) for channel in some])

    return in_turn(channels, encode, ctx, reply.array_header(2 * len(channels)))


@_ask("PUBSUB|NUMPAT")
def pubsub_numpat(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of patterns that have subscribers."""
    return reply.integer(ctx.server.pubsub.count(PATTERNS))
