"""The keys and their lookup by commands. An expired key is deleted when it is looked up (Rule 3 of ``keyspace``)."""

from __future__ import annotations

from collections.abc import Callable

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
        self.events: list[tuple[bytes, bytes]] = []  # event (or CHANGED, FLUSHED) and key: notifications for clients
        self.event_classes = 0  # classes of keyspace events that are published; set by the server
        self.follower = False  # on a replica: only the records of its leader may be logged
        self.frozen = False  # writes are paused: nothing may expire, since nothing may change
        # keys that SCAN, KEYS and RANDOMKEY don't show, because only another group may serve them; set by the server
        self.hidden: Callable[[bytes], bool] | None = None
        # keys to which only another group may append, or that are about to leave: no dead letters; set by the server
        self.foreign: Callable[[bytes], bool] | None = None
        self.no_touch = False  # the client has set CLIENT NO-TOUCH: its reads do not count as use
        # statistics since the start
        self.hits = 0
        self.misses = 0

    def live(self, key: bytes, now: int) -> Value | None:
        """Return the value at ``key``. An expired value is deleted and logged, or hidden (Rule 3)."""
        if self.expires:
            at = self.expires.get(key)
            if at is not None and at <= now:
                if self.follower or self.frozen or self.is_inert(key):
                    return None
                self.expire_key(key)
        return self.keys.get(key)

    def get(self, key: bytes, now: int) -> Value | None:
        """Look up a value for a command that changes it. Counts as use (OBJECT IDLETIME), not as a hit or miss."""
        value = self.live(key, now)
        if value is not None and not self.no_touch:
            value.used = now
        return value

    def peek(self, key: bytes, now: int, quiet: bool = False) -> Value | None:
        """Look up a value for a command that does not return it. Counts as a hit or miss, not as use.

        ``quiet``: a miss publishes no event.
        """
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
        """Look up a value for a command that returns it. Counts as a hit or miss, and as use."""
        value = self.live(key, now)
        if value is None:
            self.missed(key)
            return None
        self.hits += 1
        if not self.no_touch:
            value.used = now
        return value

    def missed(self, key: bytes) -> None:
        """Count a miss and publish its event."""
        self.misses += 1
        if self.event_classes:
            self.notify(events.MISS, b"keymiss", key)

    def stream(self, key: bytes, now: int) -> Stream | None:
        """Return get(). Raises CommandError (WRONGTYPE) if the value has another type."""
        value = self.get(key, now)
        if value is None or isinstance(value, Stream):
            return value
        raise errors.wrong_type()

    def read_stream(self, key: bytes, now: int) -> Stream | None:
        """Return read(). Raises CommandError (WRONGTYPE) if the value has another type."""
        value = self.read(key, now)
        if value is None or isinstance(value, Stream):
            return value
        raise errors.wrong_type()

    def string(self, key: bytes, now: int) -> bytes | None:
        """Return get(). Raises CommandError (WRONGTYPE) if the value has another type."""
        return _text(self.get(key, now))

    def read_string(self, key: bytes, now: int) -> bytes | None:
        """Return read(). Raises CommandError (WRONGTYPE) if the value has another type."""
        return _text(self.read(key, now))

    def expire_at(self, key: bytes) -> int:
        """Return the expiry (ms since epoch); NEVER if the key has no expiry or does not exist."""
        return self.expires.get(key, NEVER)

    def is_inert(self, key: bytes) -> bool:
        """Return whether only another group may change the key now."""
        raise NotImplementedError

    def expire_key(self, key: bytes) -> None:
        raise NotImplementedError

    def notify(self, kind: int, event: bytes, key: bytes) -> None:
        """Record a keyspace event (see ``events``). ``kind``: its class, such as events.STREAM."""
        if self.event_classes & kind:
            self.events.append((event, key))


def _text(value: Value | None) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, String):
        return value.value
    raise errors.wrong_type()
