"""The mutators of streams: append, evict, delete, producers, retention (see ``keyspace`` for the rules)."""

from __future__ import annotations

from array import array

from resp import errors
from resp.errors import CommandError, DamagedNodeError
from storage.keyspace import events
from storage.keyspace.keylog import LoggedKeys
from storage.model import records, timers
from storage.model.ids import MASK64
from storage.streams.retention import NO_CHECK, RetentionPolicy
from storage.streams.stream import Stream
from storage.streams.tierafter import TierAfter


class StreamKeys(LoggedKeys):
    """The keys with the mutators of streams."""

    def take_batch(self) -> bytes:
        """Return the records that were logged since the last call, as one batch."""
        if self._created:
            self._set_default_policies()
        self._log_all_evictions()
        batch = b"".join(self.log)
        self.log.clear()
        return batch

    # -- streams ----------------------------------------------------------------------------------------------------
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

    # -- eviction ---------------------------------------------------------------------------------------------------
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

    # -- producers (see ``producers``) ------------------------------------------------------------------------------
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

    # -- retention (see ``retaining``) ------------------------------------------------------------------------------
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
