"""The changes since the last checkpoint, and their capture while commands continue.

A capture belongs to one log offset. Copying the state of 100,000 changed streams takes more than a second, and no
client may wait that long. begin() therefore only records which keys belong to the capture: from then on they are
*held*. more() captures them in parts. A mutator that is about to change a held key first calls before(), which captures
the key.

    begin()      more()     more()  before(k)  more()        [a thread writes it]        stored()  stored()
      | all held   | fewer    |       | k only   | none held                               | blobs leave memory
      log offset of the capture                                                           or failed(): all is changed

Rule 1: a held value does not change. Every mutator first calls before() with its key.
Rule 2: there is one capture at a time, from begin() until stored() has returned True or failed() was called.
"""

from __future__ import annotations

from typing import Final

from storage.keyspace.values import Value
from storage.streams.capture import Capture
from storage.streams.delayed import DelayedEntries
from storage.streams.metadata import COMPANION
from storage.streams.stages import Stages
from storage.streams.stream import Stream

EVERYTHING: Final = 1 << 62  # as a limit: no limit


class Changes:
    """The changes of a keyspace that the next checkpoint must write, as reported by the mutators."""

    __slots__ = (
        "_capture", "_delayed", "_expires", "_held_delayed", "_held_expires", "_held_streams", "_held_strings", "_keys",
        "_left", "_moved", "_stages", "count", "dead_groups", "dead_streams", "delayed", "flushed", "held", "imports",
        "streams", "strings",
    )  # fmt: skip

    def __init__(
        self, keys: dict[bytes, Value], expires: dict[bytes, int], stages: Stages, delayed: dict[bytes, DelayedEntries]
    ) -> None:  # fmt: skip
        """Refer to the arguments, which belong to the keyspace; it may empty them but never replaces them."""
        self._keys = keys
        self._expires = expires
        self._stages = stages
        self._delayed = delayed
        self.count = 0  # number of changes since the last completed checkpoint
        self.streams: dict[bytes, Stream] = {}  # the ``dirty`` flag of each is set
        # those whose companion or index changed; the ``dirty`` flag of each companion is set
        self.delayed: dict[bytes, DelayedEntries] = {}
        self.strings: set[bytes] = set()  # keys whose string changed or was deleted; those of all dirty strings
        self.dead_streams: list[int] = []
        self.dead_groups: list[tuple[int, bytes]] = []
        self.flushed = False
        self.imports = False  # Keyspace.imports has changed
        self.held = False  # the capture in progress is incomplete, so that before() must be called
        self._capture = Capture()
        self._held_expires = expires  # key -> expiry of held keys; the keyspace's own unless it was flushed
        self._held_streams: dict[bytes, Stream] = {}
        self._held_delayed: dict[bytes, DelayedEntries] = {}
        self._held_strings: set[bytes] = set()
        self._left: list[bytes] = []  # keys held at the beginning of the capture, in reverse order
        self._moved: dict[int, bytes] = {}  # sid -> key, of streams that were captured and then renamed

    def stream(self, key: bytes, stream: Stream) -> None:
        if not stream.dirty:
            stream.dirty = True
            self.streams[key] = stream

    def stream_moved(self, key: bytes, new: bytes, stream: Stream) -> None:
        self.streams.pop(key, None)
        if stream.sid in self._capture.stream_keys:
            self._moved[stream.sid] = new
        stream.dirty = True
        self.streams[new] = stream

    def stream_gone(self, key: bytes, sid: int) -> None:
        self.dead_streams.append(sid)
        self.streams.pop(key, None)

    def delayed_entries(self, key: bytes, delayed: DelayedEntries) -> None:
        if not delayed.entries.dirty:
            delayed.entries.dirty = True
            self.delayed[key] = delayed

    def delayed_moved(self, key: bytes, new: bytes, delayed: DelayedEntries) -> None:
        self.delayed.pop(key, None)
        if delayed.entries.sid in self._capture.stream_keys:
            self._moved[delayed.entries.sid] = new
        delayed.entries.dirty = True
        self.delayed[new] = delayed

    def delayed_gone(self, key: bytes, sid: int) -> None:
        self.dead_streams.append(sid)
        self.delayed.pop(key, None)

    def all_gone(self) -> None:
        """Prepare for FLUSHALL."""
        if self.held:
            for key in self._held_strings:
                self._take_string(key)
            self._held_strings.clear()
            # held streams remain here and can no longer change; without this, their expiries would be lost
            self._held_expires = self._expires.copy()
        self.streams.clear()
        self.delayed.clear()
        self.strings.clear()
        self.dead_streams.clear()
        self.dead_groups.clear()
        self.flushed = True

    # -- a capture in progress -------------------------------------------------------------------------------
    def begin(self, next_sid: int, away: int, imports: bytes) -> Capture:
        """Begin a capture of the current state. It is complete once more() returns True."""
        assert not self.held  # noqa: S101 - Rule 2
        capture = Capture(flushed=self.flushed, next_sid=next_sid, away=away, changes=self.count)
        capture.imports, capture.imports_changed, self.imports = imports, self.imports, False
        capture.dead_streams, capture.dead_groups = self.dead_streams, self.dead_groups
        self.dead_streams, self.dead_groups, self.flushed = [], [], False
        self._capture = capture
        self._held_expires = self._expires
        self._held_streams, self.streams = self.streams, {}
        self._held_delayed, self.delayed = self.delayed, {}
        self._held_strings, self.strings = self.strings, set()
        self._moved.clear()
        self._left = [*self._held_streams, *self._held_delayed, *self._held_strings]
        self._left.reverse()
        self.held = bool(self._left)
        self._stages.begin(capture)
        return capture

    def more(self, limit: int) -> bool:
        """Capture at most ``limit`` keys or stages. Return True once the capture is complete."""
        left = self._left
        while left and limit > 0:
            self.before(left.pop())
            limit -= 1
        if left:
            return False
        self.held = False
        return self._stages.more(limit)

    def before(self, key: bytes) -> None:
        """Capture the value at ``key``, which is about to change, if it is held."""
        stream = self._held_streams.get(key)
        if stream is not None:
            self._take_stream(key, stream)  # can fail; the stream is then still held
            del self._held_streams[key]
        delayed = self._held_delayed.get(key) if self._held_delayed else None
        if delayed is not None:
            self._take_delayed(key, delayed)
            del self._held_delayed[key]
        if key in self._held_strings:
            self._take_string(key)
            self._held_strings.remove(key)

    def _take_stream(self, key: bytes, stream: Stream) -> None:
        capture, taken = self._capture, stream.capture()
        capture.streams.append(taken)
        capture.stream_keys[stream.sid] = (key, self._held_expires.get(key, 0))
        stream.dirty = False
        if not stream.groups:
            return
        for name, group in stream.groups.items():
            if group.dirty:
                group.dirty = False
                capture.groups.append((stream.sid, name, group.meta(), group.pending.parts()))

    def _take_delayed(self, key: bytes, delayed: DelayedEntries) -> None:
        capture, entries = self._capture, delayed.entries
        taken = entries.capture()
        taken.meta = COMPANION + taken.meta
        capture.streams.append(taken)
        capture.stream_keys[entries.sid] = key, 0
        entries.dirty = False
        if delayed.changed:
            delayed.changed = False
            parts, gone = delayed.capture_index()
            capture.groups += [(entries.sid, *part) for part in parts]
            capture.dead_groups += [(entries.sid, name) for name in gone]

    def _take_string(self, key: bytes) -> None:
        value = self._keys.get(key)
        if value is None or isinstance(value, Stream):
            self._capture.dead_strings.append(key)
        else:
            value.dirty = False
            self._capture.strings.append((key, value.value, self._held_expires.get(key, 0)))

    # -- result --------------------------------------------------------------------------------------------
    def stored(self, capture: Capture, limit: int) -> bool:
        """Release the blobs of at most ``limit`` streams after the capture was stored. Return True once all are
        released.

        Released streams and strings are removed from ``capture``, since freeing a million at once takes time.
        """
        assert capture is self._capture and not self.held  # noqa: S101, PT018 - Rule 2
        taken = capture.streams
        while taken and limit > 0:
            one = taken.pop()
            limit -= 1
            if one.nodes or one.tombstones:
                key = self._key_now(capture, one.sid)
                stream = self._find(key, one.sid)
                if stream is not None and stream.captured(one):
                    self._changed(key, stream)
        if limit > 0:
            del capture.strings[-limit:]
        if taken or capture.strings:
            return False
        self._capture = Capture()
        self.count -= capture.changes
        return True

    def failed(self, capture: Capture) -> None:
        """Record all changes of a failed capture again, for the next one."""
        if capture.flushed:
            self.flushed = True
        self.imports = self.imports or capture.imports_changed
        if not self.flushed or capture.flushed:
            self.dead_streams += capture.dead_streams
            self.dead_groups += capture.dead_groups
        for taken in capture.streams:
            key = self._key_now(capture, taken.sid)
            stream = self._find(key, taken.sid)
            if stream is not None:
                stream.uncaptured(taken)
                self._changed(key, stream)
        self._groups_failed(capture)
        for key, stream in self._held_streams.items():  # not captured yet when the capture failed
            if self._find(key, stream.sid) is not None:
                self.streams[key] = stream
        for key, delayed in self._held_delayed.items():
            if self._find(key, delayed.entries.sid) is not None:
                self.delayed[key] = delayed
        self.strings.update(self._held_strings)
        self.strings.update([key for key, _, _ in capture.strings])
        self.strings.update(capture.dead_strings)
        self._held_streams, self._held_delayed, self._held_strings = {}, {}, set()
        self._left, self.held = [], False
        self._capture = Capture()
        self._stages.capture_failed(capture, self.flushed and not capture.flushed)

    def _groups_failed(self, capture: Capture) -> None:
        for sid, name, _, _ in capture.groups:
            key = self._key_now(capture, sid)
            stream = self._find(key, sid)
            if stream is None:
                continue
            delayed = self._delayed.get(key)
            if delayed is not None and delayed.entries is stream:
                delayed.capture_failed()
            elif name in stream.groups:
                stream.groups[name].dirty = True

    def _key_now(self, capture: Capture, sid: int) -> bytes:
        """Return the current key of a captured stream, which may have been renamed."""
        moved = self._moved.get(sid)
        return capture.stream_keys[sid][0] if moved is None else moved

    def _find(self, key: bytes, sid: int) -> Stream | None:
        """Return a captured stream or companion, or None if it was deleted."""
        value = self._keys.get(key)
        if isinstance(value, Stream) and value.sid == sid:
            return value
        delayed = self._delayed.get(key)
        return delayed.entries if delayed is not None and delayed.entries.sid == sid else None

    def _changed(self, key: bytes, stream: Stream) -> None:
        """Record that a stream or companion has changed."""
        delayed = self._delayed.get(key)
        if delayed is not None and delayed.entries is stream:
            self.delayed_entries(key, delayed)
        else:
            self.stream(key, stream)
