"""The new entries of a group's long read, which are delivered in slices (``context.Slices``)."""

from __future__ import annotations

from typing import Final

from storage.groups.group import Group
from storage.keyspace import groupmutators
from storage.streams.snapshot import Snapshot
from storage.streams.stream import Stream

NEW_AT_ONCE: Final = 5000  # new entries that become pending in a slice, which takes some milliseconds
NO_MORE: Final = -1


class NewEntries:
    """The new entries that exist when the read reaches them, at most ``most``.

    If another reader or a command moves the group's offset in the meantime, the read ends there; it also ends if one of
    the entries is deleted before it is delivered. Delivered entries are in the snapshot, so the reply contains them
    even if they are evicted before it is sent.
    """

    __slots__ = ("_next", "_read_to", "_snapshot", "count")

    def __init__(self, stream: Stream, group: Group, most: int) -> None:
        lo = groupmutators.cursor(stream, group)
        end = stream.after(lo, most)
        self._next = lo  # ordinal of the next entry
        self._read_to = lo  # ordinal after the last entry delivered
        self._snapshot: Snapshot | None = stream.snapshot(lo, end) if lo < end else None
        self.count = 0  # number of entries delivered so far

    def left(self) -> int:
        """Return approximately how many entries are still to be delivered."""
        return 0 if self._snapshot is None else self._snapshot.end - self._next

    def following(self, stream: Stream, group: Group, at_once: int) -> int:
        """Return the ordinal before which the slice that begins at the group's cursor ends; NO_MORE: there is none."""
        snapshot, lo = self._snapshot, groupmutators.cursor(stream, group)
        if snapshot is None or lo != self._next or lo >= snapshot.end:
            return NO_MORE
        hi = min(snapshot.end, stream.after(lo, at_once))
        # An entry that was deleted in the meantime is still in the snapshot but was not delivered, so the read ends
        # here. It may also be between the last delivered entry and the next living one.
        return hi if snapshot.count(self._read_to, hi) == stream.count(lo, hi) else NO_MORE

    def delivered(self, stream: Stream, group: Group, lo: int, hi: int) -> bool:
        """Record that the group has received the entries in [lo, hi). Returns whether there are more."""
        self.count += stream.count(lo, hi)
        self._next = groupmutators.cursor(stream, group)
        self._read_to = hi
        return self._snapshot is not None and hi < self._snapshot.end

    def take(self) -> Snapshot | None:
        """Return the delivered entries, None if there are none. The caller closes them."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is None:
            return None
        if self.count:
            snapshot.end_at(self._read_to)
            return snapshot
        snapshot.close()
        return None

    def close(self) -> None:
        """Release the snapshot: nothing will be sent."""
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None
