"""The keys, and how commands look one up: one whose time is over expires then (Rule 3 of ``keyspace``)."""

from __future__ import annotations

from resp import errors
from storage.keyspace import events
from storage.keyspace.keyindex import KeyIndex
from storage.keyspace.values import String, Value
from storage.model.timers import NEVER
from storage.streams.stream import Stream


class KeyTable:
    """The part of a keyspace that reads."""

    def __init__(self) -> None:
        self.keys: dict[bytes, Value] = {}
        self.index = KeyIndex()  # the same keys, for SCAN and RANDOMKEY
        self.expires: dict[bytes, int] = {}  # ms since epoch
        self.events: list[tuple[bytes, bytes]] = []  # event (or CHANGED, FLUSHED) and key: what clients are to be told
        self.event_classes = 0  # of keyspace events that fire; kept by the server
        self.follower = False  # of a replica: nothing may be logged but what its leader logged
        self.frozen = False  # writes are held back: nothing may end by time, as nothing else may change
        self.no_touch = False  # the client asked by CLIENT NO-TOUCH that its reads don't count as use
        # stats since start
        self.hits = 0
        self.misses = 0

    def live(self, key: bytes, now: int) -> Value | None:
        """The value at ``key``; an expired one is deleted (and that logged) here, or hidden (Rule 3)."""
        if self.expires:
            at = self.expires.get(key)
            if at is not None and at <= now:
                if self.follower or self.frozen:
                    return None
                self.expire_key(key)
        return self.keys.get(key)

    def get(self, key: bytes, now: int) -> Value | None:
        """live() for commands that change the value: that is use (OBJECT IDLETIME), but neither a hit nor a miss."""
        value = self.live(key, now)
        if value is not None and not self.no_touch:
            value.used = now
        return value

    def peek(self, key: bytes, now: int, quiet: bool = False) -> Value | None:
        """live() for commands that ask about a key, not for its value: a hit or a miss, but no use. ``quiet``: a miss
        fires no event."""
        value = self.live(key, now)
        if value is None:
            if quiet:
                self.misses += 1
            else:
                self.missed(key)
        else:
            self.hits += 1
        return value

    def read(self, key: bytes, now: int) -> Value | None:
        """live() for commands that return the value: a hit or a miss, and use."""
        value = self.live(key, now)
        if value is None:
            self.missed(key)
            return None
        self.hits += 1
        if not self.no_touch:
            value.used = now
        return value

    def missed(self, key: bytes) -> None:
        """A read has found no such key."""
        self.misses += 1
        if self.event_classes:
            self.notify(events.MISS, b"keymiss", key)

    def stream(self, key: bytes, now: int) -> Stream | None:
        """get(); raises WRONGTYPE if the key holds something else."""
        value = self.get(key, now)
        if value is None or isinstance(value, Stream):
            return value
        raise errors.wrong_type()

    def read_stream(self, key: bytes, now: int) -> Stream | None:
        """read(); raises WRONGTYPE if the key holds something else."""
        value = self.read(key, now)
        if value is None or isinstance(value, Stream):
            return value
        raise errors.wrong_type()

    def string(self, key: bytes, now: int) -> bytes | None:
        """get(); raises WRONGTYPE if the key holds something else."""
        return _text(self.get(key, now))

    def read_string(self, key: bytes, now: int) -> bytes | None:
        """read(); raises WRONGTYPE if the key holds something else."""
        return _text(self.read(key, now))

    def expire_at(self, key: bytes) -> int:
        """ms since epoch; NEVER if the key has no expiry or doesn't exist."""
        return self.expires.get(key, NEVER)

    def expire_key(self, key: bytes) -> None:
        """Delete the key, whose time is over."""
        raise NotImplementedError

    def notify(self, kind: int, event: bytes, key: bytes) -> None:
        """Fire a keyspace event: see ``events``. ``kind``: its class, such as events.STREAM."""
        if self.event_classes & kind:
            self.events.append((event, key))


def _text(value: Value | None) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, String):
        return value.value
    raise errors.wrong_type()
