"""How far the groups of a partition have finished its entries. Operations without I/O.

Rule 1: a finished entry remains finished, so an eviction of finished entries may be executed late, or twice.
"""

from __future__ import annotations

from tidelog.client import calls
from tidelog.client.entries import GroupInfo, PendingSummary, StreamId
from tidelog.client.steps import Steps, checked, single
from tidelog.topics.groupreader import group_offset
from tidelog.transport.errors import NoGroupError


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
