"""What a frame job holds back: its group in its input topics, at what its checkpoint has as done.

A frame job reads without groups: where it is stands in Spark's checkpoint. With ``overflow="protect"`` a topic evicts
what all of its groups have finished, so the job has a group, ``keys.group(job)``, that nobody reads from: it is moved.

Rule 1: the group is there before the query starts, and never beyond what a batch has read that Spark has committed.
Rule 2: it is moved at most every EVERY seconds, and when the query stops. It may lag, which holds back more.
Rule 3: the group stays when the job stops or dies: what it has not read is kept for it. A job that is removed or reset
        has its group destroyed by whoever does that; a generation that has published nothing begins with a moved group.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tidelog.client import calls
from tidelog.client.calls import NEW
from tidelog.client.entries import StreamId
from tidelog.client.steps import checked
from tidelog.transport.errors import NoGroupError
from tidelog.transport.leader import LeaderConnection

EVERY: Final = 3.0  # seconds


class RetentionGroups:
    """The group of a job in the partitions of its inputs. Errors of ``LeaderConnection.ask``, and ReplyError."""

    def __init__(self, servers: LeaderConnection, group: str) -> None:
        self.group = group
        self._servers = servers
        self._there: dict[str, StreamId] = {}  # where the group of each stream was moved to
        self._next = 0.0  # monotonic seconds

    def begin(self, streams: Iterable[str], latest: bool, anew: bool) -> None:
        """Make the groups that lack. With ``anew``, all of them are moved to the job's start.

        latest: the job starts at what comes from now on; else the groups begin with what there is.
        """
        for stream in streams:
            self._make(stream, latest)
            if anew:
                last = checked(self._servers.ask(calls.tread(stream, "0", 0, with_info=True)))[0].info.last
                self._move({stream: last if latest else StreamId(0)})

    def finished(self, ends: Mapping[str, StreamId], now: bool = False) -> None:
        """Move the groups to these IDs if they are new, and if it is time or ``now``."""
        moved = {stream: end for stream, end in ends.items() if self._there.get(stream) != end}
        if not moved or (not now and time.monotonic() < self._next):
            return
        self._move(moved)
        self._there.update(moved)
        self._next = time.monotonic() + EVERY

    def _move(self, ends: Mapping[str, StreamId]) -> None:
        replies = self._servers.ask(*[calls.tgroup_setid(stream, self.group, end) for stream, end in ends.items()])
        for (stream, end), reply in zip(ends.items(), replies, strict=True):
            if _is_no_group(reply):  # of a partition that is new
                self._make(stream, latest=False)
                checked(self._servers.ask(calls.tgroup_setid(stream, self.group, end)))
            else:
                checked([reply])

    def _make(self, stream: str, latest: bool) -> None:
        """Make a group that does not end, unless it is there."""
        checked(self._servers.ask(calls.tread(stream, NEW if latest else "0", 0, group=self.group)))


def _is_no_group(reply: Any) -> bool:
    return isinstance(reply, NoGroupError) or (isinstance(reply, Exception) and str(reply).startswith("NOGROUP"))
