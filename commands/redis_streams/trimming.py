"""Trimming that depends on groups (DELREF, ACKED), in slices (``context.Slices``).

Each slice is a separate eviction or deletion. A crash preserves the effect of complete slices; the same command then
continues with the rest.
"""

from __future__ import annotations

from commands.redis_streams.options import MAXLEN, MINID, NO_LIMIT, AddTrimOptions
from commands.slicing import AT_ONCE, ids_at_once
from commands.streams.append import require_retained
from resp.errors import AbsentNodeError, DamagedNodeError
from storage.groups.group import Group
from storage.keyspace import groupmutators
from storage.keyspace.keyspace import Keyspace
from storage.model.ids import MAX_ID
from storage.streams.stream import Stream


class Trimming:
    """The entries that an XTRIM or XADD must evict."""

    __slots__ = ("added", "cost", "evicted")

    def __init__(self) -> None:
        self.added = False  # the command is an XADD, which has appended its entry
        self.evicted = 0  # number of entries so far
        self.cost = 0  # number of entries examined one by one; in a stream of many groups, each counts several times

    def at_once(self, ks: Keyspace, name: bytes, stream: Stream) -> bool:
        """Evict for some milliseconds at most. Returns False if no entries remain to be evicted."""
        while self.proceed(ks, name, stream):
            if self.cost >= AT_ONCE:
                return True
        return False

    def proceed(self, ks: Keyspace, name: bytes, stream: Stream) -> bool:
        """Run step(). Returns False, too, if a damaged node prevents more, but raises DamagedNodeError if nothing was
        evicted and the command has not appended an entry. Raises AbsentNodeError if it has not appended one."""
        try:
            return self.step(ks, name, stream)
        except DamagedNodeError as error:
            if not (self.evicted or self.added) or (isinstance(error, AbsentNodeError) and not self.added):
                raise
            ks.note_damage(error)
            return False

    def step(self, ks: Keyspace, name: bytes, stream: Stream) -> bool:
        """Evict some entries. Returns False if no others remain."""
        raise NotImplementedError


class DelRef(Trimming):
    """Evicts everything before an ordinal, and then removes all IDs below the retained entries from pending lists.

    This includes IDs of entries that were deleted or evicted before: those below the new first entry, or below MINID.
    With MAXLEN they are removed only if something is evicted.
    """

    __slots__ = ("_border", "_groups", "_least")

    def __init__(self, border: int, least: int) -> None:
        """Initialize. ``least``: MINID; 0: none."""
        super().__init__()
        self._border = border
        self._least = least
        self._groups: list[Group] = []  # groups from which the IDs of the last eviction must still be removed

    def step(self, ks: Keyspace, name: bytes, stream: Stream) -> bool:
        lo, border = stream.first_ord, self._border
        if not self._groups:
            if lo < border:
                hi = min(border, stream.after(lo, AT_ONCE))
                if hi < border:
                    hi = max(hi, min(border, _first_pending(stream)))
                self.cost += min(hi - lo, AT_ONCE)
                self.evicted += ks.evict_before(name, stream, hi)
            elif not self._least and not self.evicted:
                return False
            self._groups = list(stream.groups.values())
        self._drop_references(ks, name, stream)
        return bool(self._groups) or stream.first_ord < border

    def _drop_references(self, ks: Keyspace, name: bytes, stream: Stream) -> None:
        """Remove IDs below the retained entries from the pending lists, at most AT_ONCE of all groups together."""
        limit = stream.first_id() if stream.length else stream.last_id + 1
        if self._least and (not stream.length or self._least < limit):
            limit = self._least
        left, groups = AT_ONCE, self._groups
        while groups:
            group = groups[-1]
            if stream.groups.get(group.name) is group:  # otherwise, the group was deleted in the meantime
                found = group.pending.below(limit, left)
                if found:
                    self.cost += len(found)
                    left -= len(found)
                    groupmutators.ack(ks, name, stream, group, found)
                    if not left:
                        return
            groups.pop()


def _first_pending(stream: Stream) -> int:
    """Return the ordinal before which no entry is pending in any group."""
    first, ordinal = stream.first_id(), stream.next_ord
    for group in stream.groups.values():
        for row in group.pending.rows(first, MAX_ID, 1):
            ordinal = min(ordinal, stream.ord_from(row.id))
    return ordinal


class Acked(Trimming):
    """Evicts entries that no group needs, as many as the options require; the rest of the stream's beginning stays.
    Parts of the stream that are needed as a whole cost O(log N), and the next part is then twice as long."""

    __slots__ = ("_at", "_left", "_low", "_options", "_window")

    def __init__(self, stream: Stream, options: AddTrimOptions) -> None:
        super().__init__()
        self._options = options
        self._at, self._low = stream.first_ord, stream.first_id()  # where to continue: ordinal and ID
        self._left = self._most(stream, options.limit)  # number of entries that must still be evicted
        self._window = 0  # number of entries that are examined together

    def _most(self, stream: Stream, left: int) -> int:
        options = self._options
        return min(left, stream.length - options.threshold) if options.strategy == MAXLEN else left

    def step(self, ks: Keyspace, name: bytes, stream: Stream) -> bool:
        left = self._most(stream, self._left)  # other commands may trim in the meantime
        at = max(self._at, stream.first_ord)
        if at > self._at:
            self._low = max(self._low, stream.first_id())
        border = self._border(stream, at, left) if left > 0 else at
        if border <= at:
            return False
        high = stream.id_before(border)
        runs = _without_needed(stream, at, border, self._low, high)
        marked: list[int] = []
        gone = 0
        for lo, hi in runs:
            count = stream.count(lo, hi)
            if count > left - gone:
                hi = stream.after(lo, left - gone)
                count = left - gone
            gone += count
            if lo <= stream.first_ord:
                if hi > stream.first_ord:
                    ks.evict_before(name, stream, hi)
            else:
                for start, stop in [(lo, hi)] if stream.tombstones is None else stream.tombstones.live_ranges(lo, hi):
                    marked.extend(range(start, stop))
            if gone == left:
                break
        if marked:
            ks.delete_entries(name, stream, marked, 0)  # as in Redis, max-deleted-entry-id does not include trimming
        self._at, self._low = border, max(self._low, high + 1)
        self._left -= gone
        self.evicted += gone
        return gone < left

    def _border(self, stream: Stream, at: int, left: int) -> int:
        """Return the ordinal up to which to examine entries now; not above ``at`` if there are none."""
        options = self._options
        # some group did not read the entries after the lowest offset
        offsets = [group.offset for group in stream.groups.values()]
        end = stream.ord_from(min(offsets) + 1) if offsets else stream.next_ord
        if options.strategy == MINID:
            end = min(end, stream.ord_from(options.threshold))
        self._window = left if options.approximate else max(left, 2 * self._window)
        border = stream.after(at, self._window) if self._window < stream.length else stream.next_ord
        if options.approximate:
            if options.strategy == MINID:
                border = min(border, stream.ord_from(options.threshold))
            border = stream.node_border(border)
        border = min(border, end)
        if border > at and not _all_needed(stream, at, border, self._low):
            most = ids_at_once(len(stream.groups))
            border = min(border, stream.after(at, most))
            self.cost += (border - at) * (AT_ONCE // most)
        return border


def _all_needed(stream: Stream, at: int, border: int, low: int) -> bool:
    """Return whether one group has all of [at, border) pending. The first ID in this range is at least ``low``."""
    high = stream.id_before(border)
    return (
        stream.tombstones is None
        and low <= high
        and any(group.pending.between(low, high) == border - at for group in stream.groups.values())
    )


def _without_needed(stream: Stream, at: int, stop: int, low: int, high: int) -> list[tuple[int, int]]:
    """Return the ranges in [at, stop), whose entries have the IDs ``low`` to ``high``, that no group has pending."""
    needed: set[int] = set()
    for group in stream.groups.values():
        count = group.pending.between(low, high) if low <= high else 0
        if count and count == stop - at and stream.tombstones is None:
            return []
        if count:
            needed.update(stream.ords_of([row.id for row in group.pending.rows(low, high, count)]))
    runs: list[tuple[int, int]] = []
    for ordinal in [*sorted(needed), stop]:
        if at < ordinal:
            runs.append((at, ordinal))
        at = ordinal + 1
    return runs


def trimming_of(stream: Stream, options: AddTrimOptions) -> Trimming:
    """Return the trimming for options with ACKED or DELREF."""
    if options.references == b"ACKED":
        return Acked(stream, options)
    return DelRef(trim_border(stream, options), options.threshold if options.strategy == MINID else 0)


def trim_border(stream: Stream, options: AddTrimOptions) -> int:
    """Return the ordinal before which entries must be evicted, regardless of groups."""
    if options.strategy == MAXLEN:
        border = stream.ahead(stream.next_ord, options.threshold)
    else:
        border = stream.ord_from(options.threshold)
    if options.limit < NO_LIMIT:
        border = min(border, stream.after(stream.first_ord, options.limit))
    return stream.node_border(border) if options.approximate else border


def require_trimmed(stream: Stream | None, options: AddTrimOptions, added: int) -> None:
    """Raise AbsentNodeError if the eviction after ``added`` appends needs entries that are only in the object store.

    The appends can then wait. Afterwards, they could not be undone.
    """
    if stream is None:
        return
    if options.strategy == MAXLEN:
        require_retained(stream, options.threshold, added, options.approximate)
    else:
        try:
            border = stream.ord_from(options.threshold)
        except AbsentNodeError:
            raise
        except DamagedNodeError:
            return
        stream.require_border(stream.node_border(border) if options.approximate else border)


def border_after(ks: Keyspace, stream: Stream, options: AddTrimOptions) -> int:
    """Return trim_border() after an append: if a damaged node prevents more, the ordinal of its first entry."""
    try:
        return trim_border(stream, options)
    except DamagedNodeError as error:
        return ks.border_before(stream, error)
