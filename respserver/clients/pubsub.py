"""Subscriptions, and the delivery of messages to subscribers of this server and of its replicas.

Shard channels are a separate set of names, without patterns. There is no cluster, so this server serves all of them.

Rule 1: ``session.channels``, ``session.patterns`` and ``session.shards`` change only here, together with the registry.
Rule 2: a message is encoded once for each protocol version.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from commands.glob import Glob
from commands.session import SUBSCRIPTION_BYTES, Session
from resp import reply

DROPPED_AT_ONCE: Final = 1000  # subscriptions, which take about a millisecond


class PubSub:
    """The registry of subscriptions. Implements ``PubSubPart``. ``relay(channel, message, shard)`` sends to replicas.
    ``later`` schedules a function for a later turn of the event loop.

    Subscribers get messages in the order in which they subscribed: the dicts are ordered sets.
    """

    __slots__ = ("_channels", "_globs", "_later", "_patterns", "_relay", "_shards", "bytes")

    def __init__(
        self, relay: Callable[[bytes, bytes, bool], None], later: Callable[[Callable[[], None]], object]
    ) -> None:  # fmt: skip
        self._channels: dict[bytes, dict[Session, None]] = {}
        self._patterns: dict[bytes, dict[Session, None]] = {}
        self._shards: dict[bytes, dict[Session, None]] = {}
        self._globs: dict[bytes, Glob] = {}  # each pattern in use -> compiled
        self._relay = relay
        self._later = later
        self.bytes = 0  # memory of the compiled patterns; the rest is counted by sessions

    def subscribe(self, session: Session, channel: bytes, pattern: bool) -> None:
        """Add a subscription. Idempotent. Raises CommandError for a pattern that is too long."""
        mine = session.patterns if pattern else session.channels
        if channel in mine:
            return
        if pattern and channel not in self._globs:
            glob = self._globs[channel] = Glob(channel)
            self.bytes += glob.memory_bytes()
        _join(self._patterns if pattern else self._channels, session, mine, channel)

    def unsubscribe(self, session: Session, channel: bytes, pattern: bool) -> None:
        """Remove a subscription. Idempotent."""
        registry = self._patterns if pattern else self._channels
        _leave(registry, session, session.patterns if pattern else session.channels, channel)
        if pattern and channel not in registry and channel in self._globs:
            self.bytes -= self._globs.pop(channel).memory_bytes()

    def subscribe_shard(self, session: Session, channel: bytes) -> None:
        """Add a subscription to a shard channel. Idempotent."""
        if channel not in session.shards:
            _join(self._shards, session, session.shards, channel)

    def unsubscribe_shard(self, session: Session, channel: bytes) -> None:
        """Remove a subscription to a shard channel. Idempotent."""
        _leave(self._shards, session, session.shards, channel)

    def drop(self, session: Session) -> None:
        """Remove all subscriptions of a disconnected client; if there are many, some of them later."""
        if self.unsubscribe_some(session, DROPPED_AT_ONCE):
            self._later(lambda: self.drop(session))

    def unsubscribe_some(self, session: Session, count: int) -> bool:
        """Remove up to ``count`` subscriptions of any kind; returns whether there are more."""
        for channel in list(islice(session.channels, count)):
            self.unsubscribe(session, channel, pattern=False)
            count -= 1
        for pattern in list(islice(session.patterns, count)):
            self.unsubscribe(session, pattern, pattern=True)
            count -= 1
        for channel in list(islice(session.shards, count)):
            self.unsubscribe_shard(session, channel)
        return session.subscribed

    def publish(self, channel: bytes, message: bytes) -> int:
        """Deliver to subscribers of this server and its replicas; return the number of deliveries on this server."""
        self._relay(channel, message, False)
        return self.deliver(channel, message)

    def publish_shard(self, channel: bytes, message: bytes) -> int:
        """Do the same as publish(), for the subscribers of a shard channel."""
        self._relay(channel, message, True)
        return self.deliver_shard(channel, message)

    def deliver_shard(self, channel: bytes, message: bytes) -> int:
        """Do the same as deliver(), for the subscribers of a shard channel."""
        subscribers = self._shards.get(channel)
        return self._deliver(subscribers, [b"smessage", channel, message]) if subscribers else 0

    def deliver(self, channel: bytes, message: bytes) -> int:
        """Deliver to the channel's subscribers on this server, then to those of matching patterns. Return the number of
        deliveries."""
        delivered = 0
        subscribers = self._channels.get(channel)
        if subscribers:
            delivered += self._deliver(subscribers, [b"message", channel, message])
        for glob in list(self._globs.values()):
            listeners = self._patterns.get(glob.pattern)  # a push may have removed the last of them
            if listeners and glob.matches(channel):
                delivered += self._deliver(listeners, [b"pmessage", glob.pattern, channel, message])
        return delivered

    def _deliver(self, subscribers: dict[Session, None], words: list[bytes]) -> int:
        encoded: dict[int, bytes] = {}
        receivers = list(subscribers)  # a push may close a client that is too slow
        for session in receivers:
            data = encoded.get(session.proto)
            if data is None:
                data = encoded[session.proto] = reply.push(session.proto, [reply.bulk(word) for word in words])
            if session.transport is not None:
                session.transport.push(data)
        return len(receivers)

    def channels(self) -> list[bytes]:
        """Return a copy of the list of channels that have subscribers."""
        return list(self._channels)

    def channel_subscribers(self, channel: bytes) -> int:
        return len(self._channels.get(channel, ()))

    def shard_channels(self) -> list[bytes]:
        """Return a copy of the list of shard channels that have subscribers."""
        return list(self._shards)

    def shard_subscribers(self, channel: bytes) -> int:
        return len(self._shards.get(channel, ()))

    def shard_count(self) -> int:
        return len(self._shards)

    def channel_count(self) -> int:
        return len(self._channels)

    def pattern_count(self) -> int:
        """Return the number of different patterns with subscribers."""
        return len(self._patterns)


def _join(registry: dict[bytes, dict[Session, None]], session: Session, mine: set[bytes], channel: bytes) -> None:
    """Add a subscription. ``mine``: the client's other subscriptions of the same kind."""
    mine.add(channel)
    registry.setdefault(channel, {})[session] = None
    session.retained_bytes += SUBSCRIPTION_BYTES + len(channel)


def _leave(registry: dict[bytes, dict[Session, None]], session: Session, mine: set[bytes], channel: bytes) -> None:
    """Remove a subscription, if the client has it."""
    if channel not in mine:
        return
    mine.remove(channel)
    session.retained_bytes -= SUBSCRIPTION_BYTES + len(channel)
    subscribers = registry[channel]
    del subscribers[session]
    if not subscribers:
        del registry[channel]
