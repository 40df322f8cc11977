"""The consumer group with which a frame job protects unread entries of its inputs from eviction.

A frame job reads without a group: its position is in Spark's checkpoint. With ``overflow="protect"``, the server evicts
only entries that all groups of a partition have finished. The job therefore has a group, ``keys.group(job)``, from
which nobody reads, and moves it to the position that its checkpoint has committed.

Rule 1: The group exists before the query starts, and is never ahead of the batches that Spark has committed.
Rule 2: It is moved at most every EVERY seconds, and when the query stops. If it lags, more entries are retained.
Rule 3: The group remains when the job stops or dies, so that its unread entries are retained. The commands that remove
        or reset a job destroy or move its group; a generation that has published nothing moves it at the start.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Final

from tidelog.client import calls
from tidelog.client.calls import NEW
from tidelog.client.entries import StreamId
from tidelog.client.steps import checked
from tidelog.transport.errors import ReplyError
from tidelog.transport.leader import LeaderConnection

EVERY: Final = 3.0  # seconds


class RetentionGroups:
    """The group of a job in the partitions of its inputs. Raises errors of ``LeaderConnection.ask``, and ReplyError."""

    def __init__(self, servers: LeaderConnection, group: str) -> None:
        self.group = group
        self._servers = servers
        self._positions: dict[str, StreamId] = {}  # by stream: the position of the group
        self._next = 0.0  # monotonic time of the next move

    def create(self, streams: Iterable[str], latest: bool, restart: bool) -> None:
        """Create missing groups. With ``restart``, move all of them to the job's start.

        latest: the job starts with new entries; otherwise with the oldest existing ones.
        """
        for stream in streams:
            self._create(stream, latest)
            if restart:
                last = checked(self._servers.ask(calls.tread(stream, "0", 0, with_info=True)))[0].info.last
                self._move({stream: last if latest else StreamId(0)})

    def advance(self, ends: Mapping[str, StreamId], now: bool = False) -> None:
        """Move the groups to these IDs if they have changed, and if EVERY seconds have passed or ``now`` is set."""
        moved = {stream: end for stream, end in ends.items() if self._positions.get(stream) != end}
        if not moved or (not now and time.monotonic() < self._next):
            return
        self._move(moved)
        self._positions.update(moved)
        self._next = time.monotonic() + EVERY

    def _move(self, ends: Mapping[str, StreamId]) -> None:
        replies = self._servers.ask(*[calls.tgroup_setid(stream, self.group, end) for stream, end in ends.items()])
        for (stream, end), reply in zip(ends.items(), replies, strict=True):
            if isinstance(reply, ReplyError) and reply.code == "NOGROUP":  # of a new partition
                self._create(stream, latest=False)
                checked(self._servers.ask(calls.tgroup_setid(stream, self.group, end)))
            else:
                checked([reply])

    def _create(self, stream: str, latest: bool) -> None:
        """Create a group that does not expire, unless it exists."""
        checked(self._servers.ask(calls.tread(stream, NEW if latest else "0", 0, group=self.group)))
