"""The keyspace: all keys, and the only way to change them.

Rule 1: only the mutators here, in ``streamkeys``, ``manykeys``, ``groupmutators``, ``delaymutators``, and
``stagemutators`` change a keyspace's content. Each applies one effect and logs its record. ``replay`` calls the same
mutators with the contents of the records, so that a log replays to the state of the server that wrote it.
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
"""

from __future__ import annotations

from collections.abc import Callable

from resp.errors import CorruptError
from storage.groups.group import Group
from storage.keyspace import events
from storage.keyspace.digest import SteppedDigest, digest
from storage.keyspace.streamkeys import StreamKeys
from storage.keyspace.values import String, Value
from storage.model import records, timers
from storage.model.timers import GROUP_EXPIRY, NEVER, STAGE_EXPIRY
from storage.streams.capture import Capture
from storage.streams.delayed import DelayedEntries
from storage.streams.stream import Stream


class Keyspace(StreamKeys):
    """All keys of the server (there is one database)."""

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
