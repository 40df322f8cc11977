"""The values of streams and their groups.

They are those of this server's own data, also on a replica. Ages are measured from the times in IDs to the clock of
this server; an ID in the future has the age 0. An ID that is not a time makes them meaningless.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from resp.errors import CorruptError
from respserver.metrics.text import Sample
from storage.groups.group import Group
from storage.keyspace import groupmutators
from storage.keyspace.keyspace import Keyspace
from storage.streams.stream import Stream

MOST_GROUPS: Final = 10_000  # of one text, which has 3 MB then


STREAM: Final = 1
GROUP: Final = 2
OMITTED: Final = 3


def age(entry_id: int, now: int) -> float:
    """Return the seconds since the time in an ID."""
    return max(0, now - (entry_id >> 64)) / 1000


def collect(ks: Keyspace, keys: list[bytes], now: int, samples: dict[str, list[Sample]]) -> Iterator[int]:
    """Add the samples of these streams. Yield after each of them what it was: STREAM, GROUP, or OMITTED, a group
    beyond MOST_GROUPS.

    ``now``: ms since epoch. Streams and groups that were deleted in the meantime, and those that have expired, are
    skipped.
    """
    left = MOST_GROUPS
    for key in keys:
        stream = ks.keys.get(key)
        if not isinstance(stream, Stream) or ks.expires.get(key, now + 1) <= now:
            continue
        _add_stream(samples, key, stream)
        yield STREAM
        for name in list(stream.groups):
            group = stream.groups.get(name)
            if group is None:
                continue
            if left:
                left -= 1
                _add_group(samples, (key, name), stream, group, now)
                yield GROUP
            else:
                yield OMITTED


def _add_stream(samples: dict[str, list[Sample]], key: bytes, stream: Stream) -> None:
    labels = (key,)
    samples["stream_entries"].append((labels, stream.length))
    samples["stream_bytes"].append((labels, stream.disk_bytes()))
    samples["stream_memory_bytes"].append((labels, stream.memory_bytes()))
    samples["stream_entries_added"].append((labels, stream.entries_added))
    samples["stream_groups"].append((labels, len(stream.groups)))
    if stream.last_id:
        samples["stream_last_entry_timestamp_seconds"].append((labels, stream.last_ms / 1000))
    first = _first_id(stream)
    if first:
        samples["stream_first_entry_timestamp_seconds"].append((labels, (first >> 64) / 1000))


def _first_id(stream: Stream) -> int:
    """Return the ID of the oldest entry; 0 if there is none, or if its node is damaged."""
    try:
        return stream.first_id()
    except (CorruptError, OSError):
        return 0


def _add_group(
    samples: dict[str, list[Sample]], labels: tuple[bytes, bytes], stream: Stream, group: Group, now: int
) -> None:  # fmt: skip
    oldest = group.pending.lowest()
    samples["group_pending_messages"].append((labels, len(group.pending)))
    samples["group_oldest_pending_seconds"].append((labels, 0 if oldest is None else age(oldest, now)))
    samples["group_redelivered"].append((labels, group.redelivered))
    samples["group_expired"].append((labels, group.expired))
    samples["group_dead_letters"].append((labels, group.deadlettered))
    samples["group_consumers"].append((labels, len(group.consumers)))
    samples["group_blocked_readers"].append((labels, group.waiters))
    try:
        at = groupmutators.cursor(stream, group)
        seconds = age(stream.id_at(at), now) if at < stream.next_ord else 0
    except (CorruptError, OSError):
        return  # the node at the position is damaged: the lag is unknown
    samples["group_lag_entries"].append((labels, stream.count(at, stream.next_ord)))
    samples["group_lag_seconds"].append((labels, seconds))
