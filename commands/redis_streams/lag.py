"""``entries-read`` and ``lag`` of a group, by Redis's rules.

A group counts how many of all entries ever added were read for it. The count is known as long as no entry after the
group's offset was deleted. The stream's first ID and its highest deleted ID show whether an entry was, but not how
many. An unknown count can be determined again at the stream's first entry, before it, and at its last ID.
"""

from __future__ import annotations

from typing import Final

from storage.groups.group import Group
from storage.streams.stream import Stream

UNKNOWN: Final = -1


def holes_after(stream: Stream, id: int) -> bool:  # noqa: A002
    """Return whether an entry at or after the ID may have been deleted."""
    return stream.length > 0 and 0 < stream.max_deleted >= id


def count_at(stream: Stream, id: int) -> int:  # noqa: A002
    """Return how many entries had been added when the entry with this ID was added, or UNKNOWN."""
    added = stream.entries_added
    if not added or (not stream.length and id <= stream.last_id):
        return added
    if id and id < stream.max_deleted:
        return UNKNOWN
    if id >= stream.last_id:
        return added if id == stream.last_id else UNKNOWN
    first = stream.first_id()
    if not stream.max_deleted or stream.max_deleted < first:
        if id < first:
            return added - stream.length
        if id == first:
            return added - stream.length + 1
    return UNKNOWN


def count_after(stream: Stream, group: Group, count: int, first: int, last: int) -> int:
    """Return ``entries-read`` after the group has read its next ``count`` entries; ``first``, ``last``: the outer IDs.

    The result is the same as if each had been read alone: an entry that is read while the count is known and no later
    entry was deleted adds one; any other entry sets the count to count_at() of its own ID.
    """
    known = group.entries_read
    # The second condition implies the third without a search: an entry at or before the offset is alive.
    if (
        known >= 0
        and ((group.cursor_of == group.offset and stream.first_ord < group.cursor) or group.offset >= stream.first_id())
        and not holes_after(stream, group.offset)
    ):
        return min(known + count, stream.entries_added)  # XGROUP can have set it
    if not stream.entries_added:
        return known
    known = count_at(stream, first)
    if count == 1:
        return known
    if known >= 0 and not holes_after(stream, first):
        return known + count - 1
    return count_at(stream, last)


def lag(stream: Stream, group: Group) -> int | None:
    """Return how many entries the group has not read yet, None if that is unknown."""
    if not stream.entries_added or not stream.length:
        return 0
    first = stream.first_id()
    if group.offset < first and stream.max_deleted < first:
        return stream.length
    if group.entries_read >= 0 and not holes_after(stream, group.offset):
        return stream.entries_added - group.entries_read
    known = count_at(stream, group.offset)
    return stream.entries_added - known if known >= 0 else None
