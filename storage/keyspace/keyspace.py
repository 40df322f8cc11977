"""The keyspace: all keys, and the only way to change them.

Rule 1: only the mutators here, in ``manykeys``, ``groupmutators``, ``delaymutators``, and ``stagemutators`` change a
keyspace's content. Each applies one effect and logs its record. ``replay`` calls the same mutators with the contents of
the records, so that a log replays to the state of the server that wrote it.
Rule 2: no clock is read. ``now`` is an argument, and records contain only explicit times.
Rule 3: a key expires when it is looked up (``keytable``) or by its timer (``expiry``), and an explicit DELETE is
logged. Neither replay nor a ``follower`` expires keys. A follower hides an expired key until the DELETE of its leader
arrives. While ``frozen``, a leader does the same.
Rule 4: a mutator cannot fail half-way. The caller checks everything that can be refused.
Rule 5: a mutator first calls before(key), since a checkpoint may have to capture the current value.
Rule 6: keys expire in wall-clock time, as in Redis. Groups, stages, and pending messages expire and fall due in *served
time*: the wall clock minus ``away``, the sum of the time for which the server could not be reached and of the changes
of the wall clock. One number thus shifts the deadlines of millions of messages. The server sets it
(``respserver.runtime.servedtime``). It is logged, and stored with each checkpoint.

Decision: the evictions of a stream in one tick are one record, after the entries that were appended in the tick and
before any other record of the stream. The result is the same. The ID of the newest evicted entry, which the record
needs, is then read once and not by each TAPPEV.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from resp import errors
from resp.errors import CommandError, CorruptError, DamagedNodeError
from storage.groups.group import Group
from storage.keyspace import events
from storage.keyspace.changes import Changes
from storage.keyspace.digest import SteppedDigest, digest
from storage.keyspace.keytable import KeyTable
from storage.keyspace.recordheads import RecordHeads
from storage.keyspace.values import String, Value
from storage.model import records, timers
from storage.model.ids import MASK64
from storage.model.timers import DUE_SERVED, DUE_WALL, GROUP_EXPIRY, NEVER, STAGE_EXPIRY, Item, TwoClocks
from storage.nodes.pool import NodePool
from storage.streams.capture import Capture
from storage.streams.delayed import WALL, DelayedEntries
from storage.streams.retention import NO_CHECK, RetentionPolicy
from storage.streams.stages import Stage, Stages
from storage.streams.stream import Stream
from storage.streams.tierafter import TierAfter


class Watcher(Protocol):
    """A client that WATCHes keys. The flag is set when one of them changes."""

    dirty_cas: bool


UNBOUNDED: Final = 1 << 60  # ms
DefaultPolicy = Callable[[bytes], RetentionPolicy | None]  # the policy of a new stream, by its key


class Keyspace(KeyTable):
    """All keys of the server (there is one database)."""

    def __init__(self, pool: NodePool) -> None:
        super().__init__()
        self.pool = pool
        self.stages = Stages()
        self.delayed: dict[bytes, DelayedEntries] = {}  # of the streams that have, or had, delayed entries
        self.delayed_count = 0  # number of all delayed entries
        self.due = TwoClocks()  # the earliest due times of delayed entries; the server delivers them
        # Slots that are being copied to this group, and keys of which the server must not let anything expire, be
        # evicted, or delivered: their slots are being copied, or have left. See ``copymutators`` and ``park``.
        self.imports = b""
        self.on_imports: Callable[[], object] | None = None  # set by the server
        self.inert: Callable[[bytes], bool] | None = None  # set by the server
        self._parked: dict[Item, None] = {}
        self.flush_refused = ""  # why FLUSHALL is refused; set by the server
        self.timers = TwoClocks()  # timers of keys, groups, stages, and pending messages that must leave
        self.away = 0  # ms: wall-clock time minus served time
        # Bounds of the current served time. Set by the server; unbounded on a replica.
        self.served_from, self.served_to = -UNBOUNDED, UNBOUNDED
        self.served_seen = -UNBOUNDED  # latest served time of a delayed entry's call since the last update
        self.log: list[bytes] = []  # parts of the records of the current tick; not empty if anything was logged
        self.repeatable = 0  # part of ``log`` and of ``changes.count``: changes that a repeated command does not repeat
        self._heads = RecordHeads()
        self._evicted: dict[bytes, Stream] = {}  # streams with evictions that are not logged yet, see evict_before()
        self.default_policy: DefaultPolicy | None = None  # set by the server
        self.on_damage: Callable[[DamagedNodeError], object] | None = None  # set by the server
        self._created: list[bytes] = []  # keys of streams that may get a default policy at the end of the tick
        self.unchecked: dict[bytes, None] = {}  # keys of streams whose retention policy must be checked
        self.check_later: dict[bytes, None] = {}  # and of those that are checked together (``retaining``)
        self.checked_later = 0  # ms since epoch: when these were last checked
        self.ready: list[bytes] = []  # keys whose blocked readers must be served
        self.waiting: dict[bytes, int] = {}  # key -> number of blocked readers; set by the server
        self.watchers: dict[bytes, set[Watcher]] = {}  # key -> its watchers; set by the server
        self.tracked = False  # a client caches what it reads (CLIENT TRACKING); set by the server
        self.next_sid = 1
        self.string_bytes = 0  # size of the keys and values of strings
        self.stream_keys = 0  # size of the keys of streams
        self.expiring_names = 0  # size of the keys that expire, for the copies in ``expires`` and the timer
        self.group_bytes = 0  # memory of groups, without changes of the groups in ``uncounted``
        self.uncounted: dict[Group, None] = {}
        # statistics since the start
        self.expired_keys = 0
        self.expired_groups = 0
        self.delivered_entries = 0  # delayed entries that have joined their streams
        self.changes = Changes(self.keys, self.expires, self.stages, self.delayed)  # for the next checkpoint

    # -- the log ---------------------------------------------------------------------------------------------
    def take_batch(self) -> bytes:
        """Return the records that were logged since the last call, as one batch."""
        if self._created:
            self._set_default_policies()
        self._log_all_evictions()
        batch = b"".join(self.log)
        self.log.clear()
        return batch

    def _logged(self, key: bytes, record: bytes) -> None:
        self.log.append(record)
        self.changes.count += 1
        if self.watchers or self.tracked:
            self.touch_watchers(key)

    def stream_logged(self, key: bytes, stream: Stream, record: bytes) -> None:
        self.changes.stream(key, stream)
        self._logged(key, record)

    def touch_watchers(self, key: bytes) -> None:
        """Notify the watchers of a key that it has changed."""
        if self.tracked:
            self.events.append((events.CHANGED, key))
        for watcher in self.watchers.get(key, ()):
            watcher.dirty_cas = True

    def signal(self, key: bytes) -> None:
        """Record that readers blocked on ``key`` must be served."""
        if self.waiting and key in self.waiting:
            self.ready.append(key)

    def before(self, key: bytes) -> None:
        """Prepare a change of the value at ``key`` (Rule 5, see ``changes``)."""
        if self._evicted:
            self._log_evictions(key)
        if self.changes.held:
            self.changes.before(key)

    # -- served time -------------------------------------------------------------------------------------------
    def served(self, now: int) -> int:
        """Return the served time at ``now`` (Rule 6)."""
        at = now - self.away
        if at > self.served_to:
            return self.served_to
        return max(at, self.served_from)

    def keep_in_step(self, now: int) -> None:
        """Log the shift of served time up to ``now``, as for deadlines that replicas compute from ``now``.

        Served time does not advance on the leader of a server group without a valid lease, which executes commands.
        Without this, a message that it delivers would fall due later by the duration of this state.
        """
        apart = now - self.away - self.served(now)
        if apart:
            self.set_away(self.away + apart)

    def set_away(self, away: int) -> None:
        """Shift served time, and thereby the deadlines of all groups, stages, and pending messages."""
        self.away = away
        self.log.append(records.away(away))

    # -- streams ---------------------------------------------------------------------------------------------
    def next_id(self, stream: Stream | None, now: int) -> tuple[int, int]:
        """Return (ms, seq) of the next entry [3]. Raises CommandError if the last possible ID is in use."""
        if stream is None or now > stream.last_ms:
            return now, 0
        ms, seq = stream.last_ms, stream.last_seq
        if seq < MASK64:
            return ms, seq + 1
        if ms == MASK64:
            raise CommandError(errors.ID_EXHAUSTED)
        return ms + 1, 0

    def create_stream(self, key: bytes) -> Stream:
        """Create an empty stream. Logs nothing, since the next record (APPEND, GROUP ...) implies it."""
        stream = Stream(self.next_sid, self.pool)
        self._add_stream(key, stream)
        if self.default_policy is not None and not self.follower:
            self._created.append(key)
        self.notify(events.NEW, b"new", key)
        return stream

    def _add_stream(self, key: bytes, stream: Stream) -> None:
        self.keys[key] = stream
        self.index.add(key)
        self.stream_keys += len(key)
        self.next_sid = max(self.next_sid, stream.sid + 1)

    def append(self, key: bytes, stream: Stream, ms: int, seq: int, wire: bytes) -> None:
        """Add an entry with this ID, which must be above the stream's last ID."""
        if self.changes.held:
            self.changes.before(key)
        stream.append(ms, seq, wire)
        self._heads.log_append(self.log, key, ms, seq, wire)
        self.changes.count += 1
        self.appended(key, stream)

    def append_parts(
        self, key: bytes, stream: Stream, ms: int, seq: int, sizes: array[int], parts: list[bytes], counts: list[int]
    ) -> None:
        """Add large entries in parts, like append_packed(). ``counts``: the number of parts of each entry."""
        if self.changes.held:
            self.changes.before(key)
        stream.append_parts(ms, seq, sizes, parts, counts)
        self.log += records.run_head(key, ms, seq, sizes, sum(sizes))
        self.log += parts
        self.changes.count += len(sizes)
        self.appended(key, stream)

    def append_packed(self, key: bytes, stream: Stream, ms: int, seq: int, sizes: array[int], wire: bytes) -> None:
        """Add joined entries with the IDs ms.seq, ms.seq + 1 ...; ``sizes``: the size of each.

        The last sequence number must be below 2**64.
        """
        if self.changes.held:
            self.changes.before(key)
        stream.append_packed(ms, seq, sizes, wire)
        self.log += records.run(key, ms, seq, sizes, wire)
        self.changes.count += len(sizes)
        self.appended(key, stream)

    def append_unlogged(self, key: bytes, stream: Stream, ms: int, seq: int, wire: bytes) -> None:
        """Add an entry that is part of another record (a dead letter)."""
        self.before(key)
        stream.append(ms, seq, wire)
        self.appended(key, stream)

    def appended(self, key: bytes, stream: Stream) -> None:
        """Record that entries were added, after before(). The caller logs the record."""
        self.changes.stream(key, stream)
        if stream.next_ord >= stream.check_from:
            self._limit_exceeded(key, stream)
        self.signal(key)
        if self.watchers or self.tracked:
            self.touch_watchers(key)

    def evict_before(self, key: bytes, stream: Stream, ordinal: int, counts: bool = True) -> int:
        """Evict the entries before ``ordinal``, which is above first_ord. Return their number.

        ``counts``: each eviction counts as a change. Otherwise, only the appends that caused them count, as in Redis.
        """
        changes = self.changes
        if changes.held:
            changes.before(key)
        gone = stream.evict_before(ordinal)
        if not stream.dirty:
            changes.stream(key, stream)
        if counts:
            changes.count += gone
        self._evicted[key] = stream
        if not self.log:
            self.log.append(b"")
        if self.watchers or self.tracked:
            self.touch_watchers(key)
        return gone

    def evict_added(self, key: bytes, stream: Stream, ordinal: int) -> int:
        """Evict like evict_before() after an append, which must succeed: up to a node whose damage prevents more."""
        try:
            return self.evict_before(key, stream, ordinal, False)
        except DamagedNodeError as error:
            ordinal = self.border_before(stream, error)
            return self.evict_before(key, stream, ordinal, False) if ordinal > stream.first_ord else 0

    def border_before(self, stream: Stream, error: DamagedNodeError) -> int:
        """Record damage that was met in search of the first entry to retain. Return the ordinal before which the
        entries can be evicted nevertheless."""
        self.note_damage(error)
        return max(error.first_ord, stream.first_ord)

    def note_damage(self, error: DamagedNodeError) -> None:
        """Record a damaged node that does not make a command fail."""
        if self.on_damage is not None:
            self.on_damage(error)

    def _log_evictions(self, key: bytes) -> None:
        """Log the evictions of evict_before() from the stream at ``key``, if there were any."""
        stream = self._evicted.pop(key, None)
        if stream is not None:
            self.log.append(records.evict(key, stream.first_ord, stream.evicted_to))

    def _log_all_evictions(self) -> None:
        if self._evicted:
            for key in list(self._evicted):
                self._log_evictions(key)

    def evict(self, key: bytes, stream: Stream, ordinal: int, evicted_to: int) -> int:
        """Evict the entries before ``ordinal``, the newest of which has the ID ``evicted_to``. Return their number.

        For replay: each call logs a record.
        """
        self.before(key)
        gone = stream.evict_before(ordinal, evicted_to)
        if gone:
            changes = self.changes
            if not stream.dirty:
                changes.stream(key, stream)
            changes.count += 1
            self.log.append(records.evict(key, ordinal, evicted_to))
            self.touch_watchers(key)
        return gone

    def delete_entries(self, key: bytes, stream: Stream, ordinals: list[int], highest: int) -> None:
        """Delete living entries (at least one, ordinals ascending). ``highest``: see Stream.delete()."""
        self.before(key)
        stream.delete(ordinals, highest)
        self.changes.count += len(ordinals) - 1
        self.stream_logged(key, stream, records.deleted(key, highest, ordinals))

    def set_last_id(self, key: bytes, stream: Stream, last_id: int, entries_added: int, max_deleted: int) -> None:
        """Set the last ID (XSETID), which must not be below Stream.top_id() and ``max_deleted``.

        Limits the entries read of groups to ``entries_added``.
        """
        self.before(key)
        lower = last_id < stream.last_id
        stream.set_last_id(last_id, entries_added, max_deleted)
        for group in stream.groups.values():
            if lower:  # IDs of deleted entries can be assigned again
                group.pending.pass_none()
            if group.entries_read > entries_added:
                group.entries_read = entries_added
                group.dirty = True
        self.stream_logged(key, stream, records.set_last_id(key, last_id, entries_added, max_deleted))

    # -- producers (see ``producers``) ----------------------------------------------------------------------------
    def add_produced(
        self, key: bytes, stream: Stream, producer: bytes, name: bytes, entry_id: int, now: int, keep_ms: int, most: int
    ) -> None:
        """Remember the producer's own ID ``name`` of the entry that was just appended."""
        self.before(key)
        stream.own_producers().add(producer, name, entry_id, now, keep_ms, most)
        self.stream_logged(key, stream, records.idempotent(key, producer, name, entry_id, now, keep_ms, most))
        self.timers.arm(timers.PRODUCED, key, b"", now + keep_ms)

    def set_idmp(self, key: bytes, stream: Stream, keep_ms: int, most: int) -> None:
        """Set how long and how many IDs of producers are remembered, and forget all current ones."""
        self.before(key)
        stream.own_producers().configure(keep_ms, most)
        self.stream_logged(key, stream, records.idmp(key, keep_ms, most))

    def forget_produced(self, key: bytes, stream: Stream, now: int) -> None:
        """Forget the IDs of producers that have expired at ``now``."""
        self.before(key)
        if stream.producers is not None:
            stream.producers.forget(now)
        self.stream_logged(key, stream, records.produced(key, now))

    # -- retention (see ``retaining``) -----------------------------------------------------------------------------
    def set_retention(self, key: bytes, stream: Stream, policy: RetentionPolicy | None) -> None:
        """Set or remove the retention policy of a stream. An empty stream that has one remains."""
        self.before(key)
        stream.retention = policy
        if policy is None:
            self._unretain(key, stream)
        else:
            if not (stream.next_ord or stream.groups):
                stream.lone = True
            self._uncheck(key, stream)
        self.stream_logged(key, stream, records.retain(key, b"" if policy is None else policy.pack()))

    def _set_default_policies(self) -> None:
        """Set the default policies of new streams. Their records are in the batch that creates the streams."""
        created, self._created = self._created, []
        for key in created:
            stream = self.keys.get(key)
            if self.default_policy is not None and isinstance(stream, Stream) and stream.retention is None:
                policy = self.default_policy(key)
                if policy is not None:
                    self.set_retention(key, stream, policy)

    def _uncheck(self, key: bytes, stream: Stream) -> None:
        """Record that the policy of a stream must be checked."""
        stream.check_from = NO_CHECK
        self.unchecked[key] = None

    def _limit_exceeded(self, key: bytes, stream: Stream) -> None:
        """Record that a stream may exceed a limit of its policy: it must be checked, now or later."""
        policy = stream.retention
        if policy is None or not policy.exact or policy.size or key in self.check_later:
            self._uncheck(key, stream)
        else:
            self.check_later[key] = None
            stream.check_from = stream.next_ord + stream.entries_of_node()

    def _unretain(self, key: bytes, stream: Stream) -> None:
        stream.check_from = NO_CHECK
        self.unchecked.pop(key, None)
        self.check_later.pop(key, None)
        self.timers.cancel(timers.RETENTION, key)

    def set_tier_after(self, key: bytes, stream: Stream, after: TierAfter | None) -> None:
        """Set how much of a stream stays local, or remove it. An empty stream that has it remains."""
        self.before(key)
        stream.tier_after = after
        if after is not None and not (stream.next_ord or stream.groups):
            stream.lone = True
        self.stream_logged(key, stream, records.tier(key, b"" if after is None else after.pack()))

    # -- keys that are copied from another group (see ``copymutators``) --------------------------------------------
    def set_imports(self, value: bytes) -> None:
        self.imports = value
        self.changes.imports = True
        if self.on_imports is not None:
            self.on_imports()

    def add_copied(self, key: bytes, meta: bytes) -> Stream:
        """Add a stream whose nodes follow. Raises CorruptError if the metadata is damaged."""
        stream = Stream.begin_copy(self.next_sid, meta, self.pool)
        self._add_stream(key, stream)
        return stream

    def copied_retention(self, key: bytes, stream: Stream) -> None:
        """Let the policy of a copied stream be checked."""
        if stream.retention is not None:
            self._uncheck(key, stream)

    def is_inert(self, key: bytes) -> bool:
        return self.inert is not None and self.inert(key)

    def park(self, item: Item) -> bool:
        """Return whether the subject of a timer is inert. Its timer is then armed again by unpark()."""
        if self.inert is None or not self.inert(item[1]):
            return False
        self._parked[item] = None
        return True

    def resume_copied(self, copied: Callable[[bytes], bool], now: int) -> None:
        """Extend the deadlines of groups and stages whose copy is complete: activity that extended them was not logged
        [15]. O(timers)."""
        served = self.served(now)
        for kind, key, name in [*self.timers.in_served_time(), *self._parked]:
            if kind == GROUP_EXPIRY and copied(key):
                stream = self.keys.get(key)
                group = stream.groups.get(name) if isinstance(stream, Stream) else None
                if group is not None:
                    group.resume(served)
            elif kind == STAGE_EXPIRY and copied(key) and key in self.stages.by_name:
                self.stages.by_name[key].resume(served)

    def unpark(self) -> None:
        """Inspect the subjects of the parked timers, as far as they are not inert any more."""
        parked, self._parked = self._parked, {}
        for item in parked:
            if not self.park(item):
                kind, key, name = item
                (self.due if kind in (DUE_SERVED, DUE_WALL) else self.timers).arm(kind, key, name, 0)

    # -- strings ---------------------------------------------------------------------------------------------
    def set_string(self, key: bytes, value: bytes, expire_at: int = NEVER, keep_ttl: bool = False) -> String:
        """Replace any value at ``key``. ``expire_at``: ms since epoch, or NEVER. Returns the new value."""
        self.before(key)
        if keep_ttl:
            expire_at = self.expires.get(key, NEVER)
        string = self.keys.get(key)
        if isinstance(string, String):
            self.string_bytes += len(value) - len(string.value)
            string.value = value
        else:
            string = self._new_string(key, value, string is None)
        if expire_at or self.expires:
            self._set_deadline(key, expire_at)
        self._string_logged(key, string, value, expire_at)
        return string

    def _new_string(self, key: bytes, value: bytes, new: bool) -> String:
        """Create a string at a key that has no value. ``new``: whether the key is new."""
        if new:
            self.index.add(key)
            self.notify(events.NEW, b"new", key)
        else:
            self._forget_value(key)
        self.string_bytes += len(key) + len(value)
        string = String(value)
        self.keys[key] = string
        return string

    def replace_string(self, key: bytes, string: String, value: bytes) -> None:
        """Replace the string at ``key``, which the caller has looked up. Its expiry is unchanged."""
        self.before(key)
        self.string_bytes += len(value) - len(string.value)
        string.value = value
        self._string_logged(key, string, value, self.expires.get(key, NEVER) if self.expires else NEVER)

    def strings_replaced(self, records_: bytes, count: int, grown: int) -> None:
        """Log ``count`` joined records of strings that were replaced (``stringgroups``). ``grown``: in bytes."""
        self.log.append(records_)
        self.changes.count += count
        self.string_bytes += grown

    def passed_over(self, count: int) -> None:
        """Count changes that were skipped, since later ones replaced them before any client could see them."""
        self.changes.count += count

    def _string_logged(self, key: bytes, string: String, value: bytes, expire_at: int) -> None:
        changes = self.changes
        if not string.dirty:
            string.dirty = True
            changes.strings.add(key)
        changes.count += 1
        log = self.log
        log.append(self._heads.set(key, len(value), expire_at))
        log.append(key)
        log.append(value)
        if self.watchers or self.tracked:
            self.touch_watchers(key)
        if self.waiting:
            self.signal(key)

    def patch_string(self, key: bytes, string: String, offset: int, part: bytes) -> None:
        """Replace the bytes of the string at ``key`` from ``offset`` (at most its length) on. The string may grow.

        Its expiry is unchanged.
        """
        self.before(key)
        old = string.value
        held = memoryview(old)
        string.value = b"".join((held[:offset], part, held[offset + len(part) :]))
        self.string_bytes += len(string.value) - len(old)
        self.changes.strings.add(key)
        self._logged(key, records.patch(key, offset, part))

    # -- any key ---------------------------------------------------------------------------------------------
    def delete(self, key: bytes, now: int) -> bool:
        """Delete the value at ``key``. Return False if there is none. A value expired at ``now`` counts as none."""
        at = self.expires.get(key)
        if at is not None and at <= now:
            if not (self.follower or self.frozen):
                self.expire_key(key)
            return False
        return self.remove(key)

    def remove(self, key: bytes) -> bool:
        """Delete the value at ``key``, expired or not (for replay and expiry). Return False if there is none."""
        if key not in self.keys:
            return False
        self.before(key)
        self._forget(key)
        self._logged(key, records.delete(key))
        self.signal(key)
        return True

    def expire_key(self, key: bytes) -> None:
        self.expired_keys += 1
        self.remove(key)
        self.notify(events.EXPIRED, b"expired", key)

    def rename(self, key: bytes, new: bytes) -> None:
        """Move the value at ``key``, which must exist, to the different key ``new``, with its expiry and groups.

        Replaces a value at ``new``. O(groups).
        """
        self.before(key)
        self.before(new)
        value, expire_at = self.keys[key], self.expires.get(key, NEVER)
        if new in self.keys:
            self._forget_value(new)
        else:
            self.index.add(new)
        self._set_deadline(key, 0)
        del self.keys[key]
        self.index.remove(key)
        self.keys[new] = value
        self._set_deadline(new, expire_at)
        if isinstance(value, Stream):
            self.stream_keys += len(new) - len(key)
            self.changes.stream_moved(key, new, value)
            for group in value.groups.values():
                self._disarm_group(key, group)
                self.arm_group(new, group)
            self.timers.cancel(timers.PRODUCED, key)
            self.arm_produced(new, value)
            if value.retention is not None:
                self._unretain(key, value)
                self._uncheck(new, value)
            delayed = self.delayed.pop(key, None)
            if delayed is not None:
                self.delayed[new] = delayed
                self.changes.delayed_moved(key, new, delayed)
                self._not_due(key)
                self.arm_delayed(new, delayed)
                if delayed.passed:
                    self.due.arm(timers.DUE_WALL, new, b"", 0)
        else:
            self.string_bytes += len(new) - len(key)
            self.changes.strings.update((key, new))
        self._logged(key, records.rename(key, new))
        self.touch_watchers(new)
        self.notify(events.NEW, b"new", new)
        self.signal(key)
        self.signal(new)

    def set_expire(self, key: bytes, at_ms: int) -> None:
        """Set the expiry (> 0) of a key, which must exist."""
        self.before(key)
        self._set_deadline(key, at_ms)
        self._expiry_changed(key, at_ms)

    def persist(self, key: bytes) -> bool:
        if key not in self.expires:
            return False
        self.before(key)
        self._set_deadline(key, 0)
        self._expiry_changed(key, 0)
        return True

    def _expiry_changed(self, key: bytes, at_ms: int) -> None:
        value = self.keys[key]
        if isinstance(value, Stream):
            self.changes.stream(key, value)
        else:
            self.changes.strings.add(key)
        self._logged(key, records.expire(key, at_ms))

    def _set_deadline(self, key: bytes, at_ms: int) -> None:
        if at_ms:
            if key not in self.expires:
                self.expiring_names += len(key)
            self.expires[key] = at_ms
            self.timers.arm(timers.KEY_EXPIRY, key, b"", at_ms)
        elif self.expires.pop(key, None) is not None:
            self.expiring_names -= len(key)
            self.timers.cancel(timers.KEY_EXPIRY, key)

    def _forget(self, key: bytes) -> None:
        self._forget_value(key)
        self.index.remove(key)

    def _forget_value(self, key: bytes) -> None:
        """Forget a value but keep the key in the index: a scan must not miss a key that only changes its type."""
        value = self.keys.pop(key)
        self._set_deadline(key, 0)
        if isinstance(value, Stream):
            for group in value.groups.values():
                self._forget_group(key, group)
            self.timers.cancel(timers.PRODUCED, key)
            if value.retention is not None:
                self._unretain(key, value)
            value.gone()
            self.stream_keys -= len(key)
            self.changes.stream_gone(key, value.sid)
            self.pool.cache.drop_stream(value.sid)
            delayed = self.delayed.pop(key, None)
            if delayed is not None:
                self._forget_delayed(key, delayed)
        else:
            self.string_bytes -= len(key) + len(value.value)
            self.changes.strings.add(key)

    def _forget_delayed(self, key: bytes, delayed: DelayedEntries) -> None:
        delayed.gone()
        self.delayed_count -= len(delayed)
        self._not_due(key)
        self.changes.delayed_gone(key, delayed.entries.sid)
        self.pool.cache.drop_stream(delayed.entries.sid)

    def flush(self) -> list[dict[bytes, Value] | dict[bytes, int] | dict[bytes, DelayedEntries]]:
        """Remove everything (FLUSHALL). Return the containers of the content.

        Since freeing millions of objects takes time, the caller may do it step by step.
        """
        self._log_all_evictions()
        self.changes.all_gone()
        gone = self.keys.copy()
        for key in self.watchers:
            if key in gone:
                self.touch_watchers(key)
        self.pool.cache.clear()
        old: list[dict[bytes, Value] | dict[bytes, int] | dict[bytes, DelayedEntries]] = [
            gone, self.index.clear(), self.expires.copy(), self.delayed.copy(),
        ]  # fmt: skip
        self.keys.clear()
        self.expires.clear()
        self.stages.clear()
        self.delayed.clear()
        self._parked.clear()
        self.delayed_count = 0
        self.due.clear()
        self.timers.clear()
        self.unchecked.clear()
        self.check_later.clear()
        self.string_bytes = self.stream_keys = self.group_bytes = self.expiring_names = 0
        self.pool.dropped += self.pool.unstored
        self.pool.bytes = self.pool.unstored = self.pool.ahead = 0
        self.pool.drop_drafts()
        self.uncounted.clear()
        if self.tracked:
            self.events.append((events.FLUSHED, b""))
        self.log.append(records.flush())
        self.changes.count += max(1, len(gone))
        for key in list(self.waiting):
            self.ready.append(key)
        return old

    # -- bookkeeping for groups and stages (see ``groupmutators`` and ``stagemutators``) ---------------------
    def group_changed(self, key: bytes, stream: Stream, group: Group, record: bytes) -> None:
        group.dirty = True
        if not group.recount:
            group.recount = True
            self.uncounted[group] = None
        self.stream_logged(key, stream, record)

    def group_gone(self, key: bytes, stream: Stream, group: Group, record: bytes) -> None:
        """Record that the group was removed from the stream."""
        self._forget_group(key, group)
        self.changes.dead_groups.append((stream.sid, group.name))
        self.stream_logged(key, stream, record)

    def _forget_group(self, key: bytes, group: Group) -> None:
        self._disarm_group(key, group)
        self.group_bytes -= group.counted
        group.counted = 0
        if group.recount:
            del self.uncounted[group]

    def _disarm_group(self, key: bytes, group: Group) -> None:
        self.timers.cancel(timers.GROUP_EXPIRY, key, group.name)
        self.timers.cancel(timers.PENDING_DROP, key, group.name)

    def arm_group(self, key: bytes, group: Group) -> None:
        if group.deadline:
            self.timers.arm(timers.GROUP_EXPIRY, key, group.name, group.deadline)
        leaves = group.pending.next_drop()
        if leaves is not None:
            self.timers.arm(timers.PENDING_DROP, key, group.name, leaves)

    def arm_produced(self, key: bytes, stream: Stream) -> None:
        """Arm the timer for the IDs of the stream's producers."""
        producers = stream.producers
        if producers is not None and producers.by_name:
            self.timers.arm(timers.PRODUCED, key, b"", producers.oldest_end())

    def delayed_logged(self, key: bytes, delayed: DelayedEntries, record: bytes) -> None:
        """Log a record that changed the delayed entries of a key."""
        self.changes.delayed_entries(key, delayed)
        self._logged(key, record)

    def arm_delayed(self, key: bytes, delayed: DelayedEntries) -> None:
        """Arm the timers for the earliest due times of a key."""
        for kind, wall in ((timers.DUE_SERVED, 0), (timers.DUE_WALL, WALL)):
            first = delayed.first_due(wall)
            if first is not None:
                self.due.arm(kind, key, b"", first)

    def _not_due(self, key: bytes) -> None:
        self.due.cancel(timers.DUE_SERVED, key)
        self.due.cancel(timers.DUE_WALL, key)

    def arm_stage(self, name: bytes, stage: Stage) -> None:
        if stage.deadline:
            self.timers.arm(timers.STAGE_EXPIRY, name, b"", stage.deadline)

    def staging_logged(self, record: Iterable[bytes], changes: int) -> None:
        """Log the parts of a record of stages, which changed only keys for which appended() was called."""
        self.log += record
        self.changes.count += changes

    # -- checkpoints -----------------------------------------------------------------------------------------
    def begin_capture(self) -> Capture:
        """Begin a capture of all changes since the last one; ``changes.more()`` completes it."""
        return self.changes.begin(self.next_sid, self.away, self.imports)

    # -- start-up --------------------------------------------------------------------------------------------
    def restore_stream(self, key: bytes, sid: int, meta: bytes, expire_at: int = NEVER) -> Stream:
        """Add a stream from a checkpoint.

        The caller then adds nodes and groups. Raises CorruptError if the stream is damaged.
        """
        stream = Stream.restore(sid, meta, self.pool)
        self._add_stream(key, stream)
        self._set_deadline(key, expire_at)
        return stream

    def restore_delayed(self, key: bytes, sid: int, meta: bytes) -> Stream:
        """Add the companion of a key from a checkpoint. The caller adds nodes, then restores the index.

        Raises CorruptError if it is damaged, or if there are two.
        """
        if key in self.delayed:
            raise CorruptError(f"stream {sid} has the delayed entries of a key that has others")
        entries = Stream.restore(sid, meta, self.pool)
        self.delayed[key] = DelayedEntries(entries)
        self.next_sid = max(self.next_sid, sid + 1)
        return entries

    def restored_delayed(self) -> None:
        """Check and count the delayed entries of a checkpoint. Raises CorruptError if they do not fit their streams."""
        for key, delayed in self.delayed.items():
            if not isinstance(self.keys.get(key), Stream):
                raise CorruptError(f"delayed entries of the unknown stream {key!r}")
            delayed.restored()
            self.delayed_count += len(delayed)

    def restore_group(self, stream: Stream, name: bytes, meta: bytes, pending: bytes) -> None:
        group = stream.groups[name] = Group.restore(name, meta, pending)
        group.recount = True
        self.uncounted[group] = None

    def restore_string(self, key: bytes, value: bytes, expire_at: int) -> None:
        self.keys[key] = String(value)
        self.index.add(key)
        self.string_bytes += len(key) + len(value)
        self._set_deadline(key, expire_at)

    def resume(self, now: int) -> None:
        """Arm the timers of groups and stages after recovery or promotion.

        Downtime does not count as inactivity [15].
        """
        served = self.served(now)
        for key, value in self.keys.items():
            value.used = now
            if isinstance(value, Stream):
                for group in value.groups.values():
                    group.resume(served)
                    self.arm_group(key, group)
                self.arm_produced(key, value)
                if value.retention is not None:
                    self._uncheck(key, value)
        for key, delayed in self.delayed.items():
            self.arm_delayed(key, delayed)
        for name, stage in self.stages.by_name.items():
            stage.resume(served)
            self.arm_stage(name, stage)

    def digest(self) -> str:
        """Return a SHA-256 of the whole content, equal for equal states."""
        return digest(self.keys, self.expires, self.stages, self.delayed)

    def stepped_digest(self) -> SteppedDigest:
        """Return an object that computes digest() of the present content, and can wait. The caller closes it."""
        return SteppedDigest(self.keys, self.expires, self.stages, self.delayed)
