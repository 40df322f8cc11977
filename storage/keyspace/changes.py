"""What changed since the last checkpoint, and how the next one takes it while commands go on.

A capture belongs to one log offset. To copy the state of 100,000 changed streams takes a second, and no client may wait
that long. So begin() only notes which keys the capture is to have: from then on they are *held*. more() takes them part
by part, and a mutator that is about to change a held key has it taken first, by before().

    begin()      more()     more()  before(k)  more()        [a thread writes it]        stored()  stored()
      | all held   | fewer    |       | k only   | none held                               | blobs leave memory
      log offset of the capture                                                           or failed(): all is changed

Rule 1: what is held does not change: every mutator calls before() with its key, before it does anything.
Rule 2: there is one capture at a time, from begin() until stored() returned True or failed() was called.
"""

from __future__ import annotations

from typing import Final

from storage.keyspace.values import Value
from storage.streams.capture import Capture
from storage.streams.stages import Stages
from storage.streams.stream import Stream

EVERYTHING: Final = 1 << 62  # as a limit


class Changes:
    """Of one keyspace, whose mutators report here what the next checkpoint must write."""

    __slots__ = (
        "_capture", "_expires", "_held_expires", "_held_streams", "_held_strings", "_keys", "_left", "_moved",
        "_stages", "count", "dead_groups", "dead_streams", "flushed", "held", "streams", "strings",
    )  # fmt: skip

    def __init__(self, keys: dict[bytes, Value], expires: dict[bytes, int], stages: Stages) -> None:
        """The keyspace's own; they are emptied, but never replaced."""
        self._keys = keys
        self._expires = expires
        self._stages = stages
        self.count = 0  # of changes since the last completed checkpoint
        self.streams: dict[bytes, Stream] = {}  # each has ``dirty`` set
        self.strings: set[bytes] = set()  # keys whose string changed or was deleted
        self.dead_streams: list[int] = []
        self.dead_groups: list[tuple[int, bytes]] = []
        self.flushed = False
        self.held = False  # whether the capture in progress is incomplete, so that before() must be called
        self._capture = Capture()
        self._held_expires = expires  # key -> expiry of what is held; the keyspace's own unless it was flushed
        self._held_streams: dict[bytes, Stream] = {}
        self._held_strings: set[bytes] = set()
        self._left: list[bytes] = []  # keys that were held when the capture began, in reverse order
        self._moved: dict[int, bytes] = {}  # sid -> key, of streams that were captured and then renamed

    def stream(self, key: bytes, stream: Stream) -> None:
        """The stream changed."""
        if not stream.dirty:
            stream.dirty = True
            self.streams[key] = stream

    def stream_moved(self, key: bytes, new: bytes, stream: Stream) -> None:
        """The stream was renamed."""
        self.streams.pop(key, None)
        if stream.sid in self._capture.stream_keys:
            self._moved[stream.sid] = new
        stream.dirty = True
        self.streams[new] = stream

    def stream_gone(self, key: bytes, sid: int) -> None:
        """The stream was deleted."""
        self.dead_streams.append(sid)
        self.streams.pop(key, None)

    def all_gone(self) -> None:
        """FLUSHALL is about to happen."""
        if self.held:
            for key in self._held_strings:
                self._take_string(key)
            self._held_strings.clear()
            # held streams live on here and can't be changed any more; only their expiries are about to be lost
            self._held_expires = self._expires.copy()
        self.streams.clear()
        self.strings.clear()
        self.dead_streams.clear()
        self.dead_groups.clear()
        self.flushed = True

    # -- a capture in progress -------------------------------------------------------------------------------
    def begin(self, next_sid: int, away: int) -> Capture:
        """A capture of the state as of now; it is complete once more() returns True."""
        capture = Capture(flushed=self.flushed, next_sid=next_sid, away=away, changes=self.count)
        capture.dead_streams, capture.dead_groups = self.dead_streams, self.dead_groups
        self.dead_streams, self.dead_groups, self.flushed = [], [], False
        self._capture = capture
        self._held_expires = self._expires
        self._held_streams, self.streams = self.streams, {}
        self._held_strings, self.strings = self.strings, set()
        self._moved.clear()
        self._left = [*self._held_streams, *self._held_strings]
        self._left.reverse()
        self.held = bool(self._left)
        self._stages.begin(capture)
        return capture

    def more(self, limit: int) -> bool:
        """Take at most ``limit`` keys, or stages; True once the capture has all."""
        left = self._left
        while left and limit > 0:
            self.before(left.pop())
            limit -= 1
        if left:
            return False
        self.held = False
        return self._stages.more(limit)

    def before(self, key: bytes) -> None:
        """The value at ``key`` is about to change: if it is held, the capture takes it as it is."""
        stream = self._held_streams.get(key)
        if stream is not None:
            self._take_stream(key, stream)  # may fail: then it is still held
            del self._held_streams[key]
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

    def _take_string(self, key: bytes) -> None:
        value = self._keys.get(key)
        if value is None or isinstance(value, Stream):
            self._capture.dead_strings.append(key)
        else:
            self._capture.strings.append((key, value.value, self._held_expires.get(key, 0)))

    # -- how it ended ----------------------------------------------------------------------------------------
    def stored(self, capture: Capture, limit: int) -> bool:
        """The capture is on disk and the node store reads from it: at most ``limit`` streams drop the blobs they kept.

        True once all have. What is done leaves ``capture``, strings too: to free a million at once takes a while.
        """
        taken = capture.streams
        while taken and limit > 0:
            one = taken.pop()
            limit -= 1
            if one.nodes or one.tombstones:
                key = self._key_now(capture, one.sid)
                stream = self._find(key, one.sid)
                if stream is not None and stream.captured(one):
                    self.stream(key, stream)
        if limit > 0:
            del capture.strings[-limit:]
        if taken or capture.strings:
            return False
        self._capture = Capture()
        self.count -= capture.changes
        return True

    def failed(self, capture: Capture) -> None:
        """Nothing of it is on disk: the next capture must hold it all again."""
        if capture.flushed:
            self.flushed = True
        if not self.flushed or capture.flushed:
            self.dead_streams += capture.dead_streams
            self.dead_groups += capture.dead_groups
        for taken in capture.streams:
            key = self._key_now(capture, taken.sid)
            stream = self._find(key, taken.sid)
            if stream is not None:
                stream.uncaptured(taken)
                self.stream(key, stream)
        for sid, name, _, _ in capture.groups:
            stream = self._find(self._key_now(capture, sid), sid)
            if stream is not None and name in stream.groups:
                stream.groups[name].dirty = True
        for key, stream in self._held_streams.items():  # left over if it failed before it was complete
            if self._find(key, stream.sid) is not None:
                self.streams[key] = stream
        self.strings.update(self._held_strings)
        self.strings.update([key for key, _, _ in capture.strings])
        self.strings.update(capture.dead_strings)
        self._held_streams, self._held_strings, self._left, self.held = {}, set(), [], False
        self._capture = Capture()
        self._stages.capture_failed(capture, self.flushed and not capture.flushed)

    def _key_now(self, capture: Capture, sid: int) -> bytes:
        """The key of a stream that was captured, which may have been renamed since."""
        moved = self._moved.get(sid)
        return capture.stream_keys[sid][0] if moved is None else moved

    def _find(self, key: bytes, sid: int) -> Stream | None:
        """The stream that was captured, unless it has been deleted since."""
        value = self._keys.get(key)
        return value if isinstance(value, Stream) and value.sid == sid else None
