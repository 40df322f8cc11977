"""The state of a keyspace, the log of its changes, and its timers: what all mutators share (see ``keyspace``).

Decision: the evictions of a stream in one tick are one record, after the entries that were appended in the tick and
before any other record of the stream. The result is the same. The ID of the newest evicted entry, which the record
needs, is then read once and not by each TAPPEV.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from resp.errors import DamagedNodeError
from storage.groups.group import Group
from storage.keyspace import events
from storage.keyspace.changes import Changes
from storage.keyspace.keytable import KeyTable
from storage.keyspace.recordheads import RecordHeads
from storage.model import records, timers
from storage.model.timers import DUE_SERVED, DUE_WALL, Item, TwoClocks
from storage.nodes.pool import NodePool
from storage.streams.delayed import WALL, DelayedEntries
from storage.streams.retention import RetentionPolicy
from storage.streams.stages import Stage, Stages
from storage.streams.stream import Stream


class Watcher(Protocol):
    """A client that WATCHes keys. The flag is set when one of them changes."""

    dirty_cas: bool


UNBOUNDED: Final = 1 << 60  # ms
DefaultPolicy = Callable[[bytes], RetentionPolicy | None]  # the policy of a new stream, by its key


class LoggedKeys(KeyTable):
    """The keys with everything that belongs to them. Records are logged here, and timers are armed."""

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

    # -- the log ----------------------------------------------------------------------------------------------------
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

    def _log_evictions(self, key: bytes) -> None:
        """Log the evictions of evict_before() from the stream at ``key``, if there were any."""
        stream = self._evicted.pop(key, None)
        if stream is not None:
            self.log.append(records.evict(key, stream.first_ord, stream.evicted_to))

    def _log_all_evictions(self) -> None:
        if self._evicted:
            for key in list(self._evicted):
                self._log_evictions(key)

    def staging_logged(self, record: Iterable[bytes], changes: int) -> None:
        """Log the parts of a record of stages, which changed only keys for which appended() was called."""
        self.log += record
        self.changes.count += changes

    # -- served time ------------------------------------------------------------------------------------------------
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

    # -- timers -----------------------------------------------------------------------------------------------------
    def _set_deadline(self, key: bytes, at_ms: int) -> None:
        if at_ms:
            if key not in self.expires:
                self.expiring_names += len(key)
            self.expires[key] = at_ms
            self.timers.arm(timers.KEY_EXPIRY, key, b"", at_ms)
        elif self.expires.pop(key, None) is not None:
            self.expiring_names -= len(key)
            self.timers.cancel(timers.KEY_EXPIRY, key)

    def arm_group(self, key: bytes, group: Group) -> None:
        if group.deadline:
            self.timers.arm(timers.GROUP_EXPIRY, key, group.name, group.deadline)
        leaves = group.pending.next_drop()
        if leaves is not None:
            self.timers.arm(timers.PENDING_DROP, key, group.name, leaves)

    def _disarm_group(self, key: bytes, group: Group) -> None:
        self.timers.cancel(timers.GROUP_EXPIRY, key, group.name)
        self.timers.cancel(timers.PENDING_DROP, key, group.name)

    def arm_produced(self, key: bytes, stream: Stream) -> None:
        """Arm the timer for the IDs of the stream's producers."""
        producers = stream.producers
        if producers is not None and producers.by_name:
            self.timers.arm(timers.PRODUCED, key, b"", producers.oldest_end())

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

    # -- inert keys -------------------------------------------------------------------------------------------------
    def is_inert(self, key: bytes) -> bool:
        return self.inert is not None and self.inert(key)

    def park(self, item: Item) -> bool:
        """Return whether the subject of a timer is inert. Its timer is then armed again by unpark()."""
        if self.inert is None or not self.inert(item[1]):
            return False
        self._parked[item] = None
        return True

    def unpark(self) -> None:
        """Inspect the subjects of the parked timers, as far as they are not inert any more."""
        parked, self._parked = self._parked, {}
        for item in parked:
            if not self.park(item):
                kind, key, name = item
                (self.due if kind in (DUE_SERVED, DUE_WALL) else self.timers).arm(kind, key, name, 0)

    # -- groups and delayed entries (see ``groupmutators`` and ``delaymutators``) -----------------------------------
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

    def delayed_logged(self, key: bytes, delayed: DelayedEntries, record: bytes) -> None:
        """Log a record that changed the delayed entries of a key."""
        self.changes.delayed_entries(key, delayed)
        self._logged(key, record)
