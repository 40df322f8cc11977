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
from commands.session import CHANNELS, KINDS, PATTERNS, SHARDS, SUBSCRIPTION_BYTES, Session
from resp import reply

DROPPED_AT_ONCE: Final = 1000  # subscriptions, which take about a millisecond


class PubSub:
    """The registry of subscriptions. Implements ``PubSubPart``. ``relay(channel, message, shard)`` sends to replicas.
    ``later`` schedules a function for a later turn of the event loop.

    Subscribers get messages in the order in which they subscribed: the dicts are ordered sets.
    """

    __slots__ = ("_globs", "_later", "_registries", "_relay", "bytes")

    def __init__(
        self, relay: Callable[[bytes, bytes, bool], None], later: Callable[[Callable[[], None]], object]
    ) -> None:  # fmt: skip
        # by kind: each name with subscribers -> these
        self._registries: list[dict[bytes, dict[Session, None]]] = [{} for _ in KINDS]
        self._globs: dict[bytes, Glob] = {}  # each pattern in use -> compiled
        self._relay = relay
        self._later = later
        self.bytes = 0  # memory of the compiled patterns; the rest is counted by sessions

    def subscribe(self, session: Session, kind: int, name: bytes) -> None:
        """Add a subscription. Idempotent. Raises CommandError for a pattern that is too long."""
        mine = session.subscriptions(kind)
        if name in mine:
            return
        if kind == PATTERNS and name not in self._globs:
            glob = self._globs[name] = Glob(name)
            self.bytes += glob.memory_bytes()
        mine.add(name)
        self._registries[kind].setdefault(name, {})[session] = None
        session.retained_bytes += SUBSCRIPTION_BYTES + len(name)

    def unsubscribe(self, session: Session, kind: int, name: bytes) -> None:
        mine, registry = session.subscriptions(kind), self._registries[kind]
        if name not in mine:
            return
        mine.remove(name)
        session.retained_bytes -= SUBSCRIPTION_BYTES + len(name)
        subscribers = registry[name]
        del subscribers[session]
        if not subscribers:
            del registry[name]
            if kind == PATTERNS:
                self.bytes -= self._globs.pop(name).memory_bytes()

    def drop(self, session: Session) -> None:
        """Remove all subscriptions of a disconnected client; if there are many, some of them later."""
        if self.unsubscribe_some(session, DROPPED_AT_ONCE):
            self._later(lambda: self.drop(session))

    def unsubscribe_some(self, session: Session, count: int) -> bool:
        for kind in KINDS:
            for name in list(islice(session.subscriptions(kind), count)):
                self.unsubscribe(session, kind, name)
                count -= 1
        return session.subscribed

    def end_shard(self, channel: bytes) -> None:
        """End all subscriptions of a shard channel, whose slot belongs to another group now, and notify the clients."""
        for session in list(self._registries[SHARDS].get(channel, ())):
            self.unsubscribe(session, SHARDS, channel)
            session.refresh()
            words = [reply.bulk(b"sunsubscribe"), reply.bulk(channel), reply.integer(len(session.shards))]
            if session.transport is not None:
                session.transport.push(reply.push(session.proto, words))

    def publish(self, channel: bytes, message: bytes, shard: bool = False) -> int:
        self._relay(channel, message, shard)
        return self.deliver(channel, message, shard)

    def deliver(self, channel: bytes, message: bytes, shard: bool = False) -> int:
        """Deliver to the channel's subscribers on this server, then to those of matching patterns. Return the number of
        deliveries."""
        delivered = 0
        subscribers = self._registries[SHARDS if shard else CHANNELS].get(channel)
        if subscribers:
            delivered = self._deliver(subscribers, [b"smessage" if shard else b"message", channel, message])
        if shard:
            return delivered
        patterns = self._registries[PATTERNS]
        for glob in list(self._globs.values()):
            listeners = patterns.get(glob.pattern)  # a push may have removed the last of them
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

    def names(self, kind: int) -> list[bytes]:
        return list(self._registries[kind])

    def count(self, kind: int) -> int:
        return len(self._registries[kind])

    def subscribers(self, kind: int, name: bytes) -> int:
        return len(self._registries[kind].get(name, ()))
