"""Eviction by retention, for ``tidelog topics trim`` and the leader of an app. Operations without I/O.

Rule 1: with overflow="protect", entries that a group of the partition has not finished are not evicted, and neither is
        any entry of a partition without groups or without a required group.
Rule 2: a finished entry remains finished, so an eviction may be executed late, or twice.
"""

from __future__ import annotations

from collections.abc import Collection

from tidelog.client import calls, strings
from tidelog.client.entries import GroupInfo, PendingSummary, StreamId
from tidelog.client.steps import Steps, checked, single
from tidelog.topics.groupreader import group_offset
from tidelog.topics.sending import evictions
from tidelog.topics.settings import Retention
from tidelog.transport.errors import NoGroupError


def trim(stream: str, kept: Retention, needed: Collection[bytes] = ()) -> Steps[int]:
    """Evict entries of one partition according to its retention. Returns their number.

    ``needed``: groups that must exist, with "protect", before anything is evicted.
    """
    if kept.drops:
        return sum(checked((yield evictions(kept, stream))))
    length, groups, now = checked((yield [calls.tlen(stream), calls.tgroup_list(stream), strings.server_time()]))
    if not {group.name for group in groups}.issuperset(needed):
        return 0
    safe = yield from finished(stream, groups)
    if safe is None:
        return 0
    border = StreamId(0)  # entries below it are evicted
    if kept.partition_size is not None and length > kept.partition_size:
        border = yield from _newest(stream, length, kept.partition_size)
    if kept.max_age_ms is not None:
        border = max(border, StreamId(max(0, now - kept.max_age_ms)))
    border = min(border, after(safe))
    (evicted,) = checked((yield [calls.ttrim(stream, before=border)])) if border > StreamId(0) else (0,)
    return int(evicted)


def finished(stream: str, groups: list[GroupInfo]) -> Steps[StreamId | None]:
    """Return the ID up to which all these groups have finished all entries. None without groups."""
    ends = yield from progress(stream, groups)
    return min(ends.values(), default=None)


def unfinished(stream: str, group: str) -> Steps[int]:
    """Return how many entries a group has not finished: those that are pending or not delivered yet."""
    (offset,) = checked((yield [group_offset(stream, group)]))
    if offset is None:
        return (yield from single(calls.tlen(stream)))
    pending, new = checked((yield [calls.tpending(stream, group), calls.tcount(stream, f"({offset}")]))
    return int(pending.count + new)


def progress(stream: str, groups: list[GroupInfo]) -> Steps[dict[bytes, StreamId]]:
    """Return the ID up to which each of the stream's groups has finished all entries."""
    try:
        pending: list[PendingSummary] = checked((yield [calls.tpending(stream, group.name) for group in groups]))
    except NoGroupError:  # one was deleted in the meantime: start again
        (left,) = checked((yield [calls.tgroup_list(stream)]))
        ends: dict[bytes, StreamId] = yield from progress(stream, left)
        return ends
    return {
        group.name: group.offset if summary.lowest is None else min(group.offset, before(summary.lowest))
        for group, summary in zip(groups, pending, strict=True)
    }


def before(id: StreamId) -> StreamId:  # noqa: A002 - its name everywhere else
    """Return the ID before this one."""
    return StreamId(id.ms, id.seq - 1) if id.seq else StreamId(max(0, id.ms - 1), 2**64 - 1)


def after(id: StreamId) -> StreamId:  # noqa: A002
    """Return the ID after this one."""
    return StreamId(id.ms, id.seq + 1) if id.seq < 2**64 - 1 else StreamId(id.ms + 1, 0)


def _newest(stream: str, length: int, number: int) -> Steps[StreamId]:
    """Return the ID of the oldest of the newest ``number`` entries; 0.0 if there are fewer.

    ``length`` is the last known length. If another program evicts entries in the meantime, the entry that is found is
    too new. Fewer entries follow it then, and the search is repeated.
    """
    while length > number:
        (found,) = checked((yield [calls.tseek(stream, "0", length - number + 1)]))
        left, length = checked((yield [calls.tcount(stream, found or "+"), calls.tlen(stream)]))
        if found is not None and left >= number:
            done: StreamId = found
            return done
    return StreamId(0)
