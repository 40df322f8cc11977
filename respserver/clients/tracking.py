"""CLIENT TRACKING: which client may have cached which keys, and the invalidation messages.

A client that has enabled it gets one message when a key that it has read changes. The key is then forgotten until the
client reads it again. With BCAST, no reads are recorded: the client gets a message for every changed key with one of
its prefixes, once per tick.

Rule 1: messages are queued like replies. A client gets them before any reply that could show a later state of the key,
and after those that may show an earlier state.
Rule 2: the records of disconnected clients remain until the key changes.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Final

from commands.declare import Command
from commands.session import SUBSCRIPTION_BYTES, Session, TrackingOptions
from resp import reply
from respserver.clients.clients import Clients
from respserver.observe.stats import TrackingStats
from respserver.runtime.parts import RuntimeParts, ServerPart

CHANNEL: Final = b"__redis__:invalidate"
KEY_BYTES: Final = 200  # memory of a remembered key with one client, without its name
READER_BYTES: Final = 80  # memory of each further client
PREFIX_BYTES: Final = 1000
EVICTED_AT_ONCE: Final = 100  # if there are too many keys, one in this many is forgotten
FORGOTTEN_AT_ONCE: Final = 5000  # keys, which take some milliseconds


class Prefix:
    """The clients that are notified of keys with a prefix."""

    __slots__ = ("changed", "clients")

    def __init__(self) -> None:
        self.clients: dict[Session, None] = {}
        # keys changed in this tick -> the last client that changed it; None: not a client
        self.changed: dict[bytes, Session | None] = {}


class Tracking(ServerPart):
    """Implements ``TrackingPart``."""

    def __init__(self, parts: RuntimeParts, clients: Clients) -> None:
        super().__init__(parts)
        self._clients = clients
        self._readers: dict[bytes, int | set[int]] = {}  # key -> ID, or IDs, of the clients that may have cached it
        self._prefixes: dict[bytes, Prefix] = {}
        self._lengths: Counter[int] = Counter()  # length -> number of prefixes
        self._changed: set[bytes] = set()  # prefixes of keys that changed in this tick
        self.pending = False  # broadcast() has changes to send
        self.count = 0  # number of clients that have enabled it
        self.items = 0  # number of pairs of a key and a client
        self.bytes = 0  # memory

    def stats(self) -> TrackingStats:
        return TrackingStats(self.count, len(self._readers), self.items, len(self._prefixes), self.bytes)

    # -- clients ---------------------------------------------------------------------------------------------
    def enable(self, session: Session, caching: TrackingOptions) -> None:
        old = session.caching
        if caching.bcast:
            new = caching.prefixes or {b""}
            for prefix in new:
                if prefix not in self._prefixes:
                    self._prefixes[prefix] = Prefix()
                    self._lengths[len(prefix)] += 1
                    self.bytes += PREFIX_BYTES + len(prefix)
                if session not in self._prefixes[prefix].clients:
                    self._prefixes[prefix].clients[session] = None
                    session.retained_bytes += SUBSCRIPTION_BYTES + len(prefix)
            caching.prefixes = new if old is None else new | old.prefixes
        if old is None:
            self.count += 1
        elif old.called:
            caching.called = True
        session.caching = caching
        session.refresh()
        self.update_keyspace()

    def disable(self, session: Session) -> None:
        caching = session.caching
        if caching is None:
            return
        for prefix in caching.prefixes:
            held = self._prefixes[prefix]
            held.clients.pop(session, None)
            session.retained_bytes -= SUBSCRIPTION_BYTES + len(prefix)
            if not held.clients:
                del self._prefixes[prefix]
                self._lengths[len(prefix)] -= 1
                if not self._lengths[len(prefix)]:
                    del self._lengths[len(prefix)]
                self.bytes -= PREFIX_BYTES + len(prefix)
        session.caching = None
        session.refresh()
        if session.transport is not None:
            session.transport.release_pushes()
        self.count -= 1
        if not self.count:
            self._forget_all()
        self.update_keyspace()

    def update_keyspace(self) -> None:
        """Make the keyspace report changes if any client tracks them."""
        self._data.ks.tracked = self.count > 0

    def remembered(self) -> list[bytes]:
        """Return the keys that clients may have cached."""
        return list(self._readers)

    # -- reads -----------------------------------------------------------------------------------------------
    def ran(self, session: Session, command: Command, argv: list[bytes], parked: bool) -> None:
        caching = session.caching
        if caching is None:
            return
        if not caching.bcast and _reads(command, argv):
            self._read(session, caching, command, argv)
            if parked:
                caching.parked = argv
        if caching.called and not session.multi and not command.name.startswith("client|"):
            caching.called = False

    def _read(self, session: Session, caching: TrackingOptions, command: Command, argv: list[bytes]) -> None:
        if (caching.optin and not caching.called) or (caching.optout and caching.called):
            return
        self.remember(session, [argv[at] for at, _ in command.keys(argv)])

    def remember(self, session: Session, keys: list[bytes]) -> None:
        number, readers = session.id, self._readers
        for key in keys:
            held = readers.get(key)
            if held is None:
                readers[key] = number
                self.items += 1
                self.bytes += KEY_BYTES + len(key)
            elif isinstance(held, set):
                if number not in held:
                    held.add(number)
                    self.items += 1
                    self.bytes += READER_BYTES
            elif held != number:
                readers[key] = {held, number}
                self.items += 1
                self.bytes += READER_BYTES
        most = self._config.tracking_table_max_keys
        if most and len(readers) > most:
            self._forget_oldest(max(len(readers) - most, most // EVICTED_AT_ONCE))

    def forget_excess(self) -> bool:
        """Forget the oldest keys beyond ``tracking-table-max-keys``, and notify their readers. Returns whether there
        are more.

        After the limit is lowered, there can be a million of them, so each call is limited to some milliseconds.
        """
        most = self._config.tracking_table_max_keys
        excess = len(self._readers) - most if most else 0
        if excess > 0:
            self._forget_oldest(excess)
        return excess > FORGOTTEN_AT_ONCE

    def _forget_oldest(self, count: int) -> None:
        for key in list(islice(self._readers, min(count, FORGOTTEN_AT_ONCE))):
            self._invalidate(key, None)

    # -- changes ---------------------------------------------------------------------------------------------
    def changed(self, key: bytes, session: Session | None) -> None:
        """Record a changed key. ``session``: the client that changed it."""
        for length in self._lengths:
            prefix = key[:length]
            held = self._prefixes.get(prefix)
            if held is not None:
                held.changed[key] = session
                self._changed.add(prefix)
                if not self.pending:
                    self.pending = True
                    self._ticks.queue()
        if key in self._readers:
            self._invalidate(key, session)

    def _invalidate(self, key: bytes, session: Session | None) -> None:
        """Forget and notify the readers of the key, except the client that changed it if it has set NOLOOP."""
        held = self._readers.pop(key)
        numbers = sorted(held) if isinstance(held, set) else [held]
        self.items -= len(numbers)
        self.bytes -= KEY_BYTES + len(key) + READER_BYTES * (len(numbers) - 1)
        body = reply.bulk_array([key])
        for number in numbers:
            reader = self._clients.get(number)
            if reader is None or reader.caching is None or reader.caching.bcast:
                continue
            if not (reader.caching.noloop and reader is session):
                self._send(reader, reader.caching, body)

    def flushed(self) -> None:
        """Record that all keys have changed: FLUSHALL, or the data was replaced."""
        self._forget_all()
        if self.count:
            for session in self._clients.all():
                if session.caching is not None:
                    self._send(session, session.caching, None)

    def _forget_all(self) -> None:
        self._readers.clear()
        self.items = 0
        self.bytes = sum([PREFIX_BYTES + len(prefix) for prefix in self._prefixes])

    def broadcast(self) -> None:
        """Notify clients with BCAST of the keys that changed in this tick. Called at its end."""
        self.pending = False
        prefixes, self._changed = sorted(self._changed), set()
        for prefix in prefixes:
            held = self._prefixes.get(prefix)  # a message may close a client that is too slow
            if held is None or not held.changed:
                continue
            changed, held.changed = held.changed, {}
            names = sorted(changed)
            whole = reply.bulk_array(names)
            for session in list(held.clients):
                caching = session.caching
                if caching is None:
                    continue
                if not caching.noloop:
                    self._send(session, caching, whole)
                    continue
                others = [name for name in names if changed[name] is not session]
                if others:
                    self._send(session, caching, reply.bulk_array(others))

    # -- messages --------------------------------------------------------------------------------------------
    def _send(self, session: Session, caching: TrackingOptions, body: bytes | None) -> None:
        """Notify a client, or the target of its REDIRECT. ``body``: the keys as an encoded array; None: all keys."""
        receiver = session
        if caching.redirect:
            found = self._clients.get(caching.redirect)
            if found is None:
                caching.broken = True
                if session.proto == 3 and session.transport is not None:
                    parts = [reply.bulk(b"tracking-redir-broken"), reply.integer(caching.redirect)]
                    session.transport.push(reply.push(3, parts))
                return
            receiver = found
        if receiver.transport is None:
            return
        proto = receiver.proto
        what = reply.null(proto) if body is None else body
        if proto == 3:
            receiver.transport.push(reply.push(3, [reply.bulk(b"invalidate"), what]))
        elif caching.redirect and receiver.subscribed:
            receiver.transport.push(reply.push(2, [reply.bulk(b"message"), reply.bulk(CHANNEL), what]))


def _reads(command: Command, argv: list[bytes]) -> bool:
    """Return whether the call only reads the values of its keys."""
    if command.write:
        return not command.changes(argv)
    return "readonly" in command.flags and "pubsub" not in command.flags
