"""What the oldest snapshot still needs: entries of the inputs, and markers of the replay log. The rest may go.

The group ``job:NAME`` of an input partition says to ``overflow="protect"`` which entries the job is done with: those
that no kept snapshot needs for a recovery.

Rule 1: a snapshot of epoch N whose run is the one that published N needs what comes after N. Otherwise, or if that
        can't be told, it needs what comes after N-1: N will be undone.
Rule 2: a topic of one partition that all partitions of the job read is needed by all of them: its group goes to the
        lowest need, and stays where it is until each has a snapshot.
Rule 3: the newest marker is never evicted: it says where the partition is.
Rule 4: what the log contradicts (another run published that epoch, or the epoch is beyond what was ever published) is
        of a history that the server does not have. It is not counted as kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tidelog.client import calls
from tidelog.client.entries import StreamId
from tidelog.jobs import keys
from tidelog.jobs.replaylog.marker import Marker, read_marker
from tidelog.jobs.replaylog.origin import CLOSED
from tidelog.jobs.snapshots.catalog import JobSnapshots
from tidelog.jobs.snapshots.manifests import SnapshotManifest
from tidelog.transport.call import Call
from tidelog.transport.errors import ReplyError
from tidelog.transport.leader import LeaderConnection

PAGE = 1000  # markers that are read at once


class ReplayLog:
    """The replay log of a partition, as far as one generation wrote it. UnreachableError, ReplyError, JobError."""

    def __init__(self, servers: LeaderConnection, job: str, generation: int, partition: int) -> None:
        self.key = keys.log(job, partition)
        self._servers = servers
        self._generation = generation
        self._first = self._one(calls.trange(self.key, count=1))
        self._last = self._one(calls.trevrange(self.key, count=1))
        (fence,) = _good(servers.ask(calls.tfence(keys.fence(job, generation))))
        self._closed = fence == CLOSED

    @property
    def superseded(self) -> bool:
        """Whether a later generation writes it, or will: it needs what this one's snapshots don't."""
        return self._closed or (self._last is not None and self._last[1].generation > self._generation)

    @property
    def last(self) -> int:
        """The epoch that was published last; 0 if none was."""
        ours = self._last is not None and self._last[1].generation == self._generation
        return self._last[1].epoch if ours and self._last is not None else 0

    def find(self, epoch: int) -> tuple[StreamId, Marker] | None:
        """The marker of an epoch, if it is there. There is one for each epoch, so it is looked for where it must be."""
        if self._first is None or epoch > self.last:
            return None
        at, first = self._first
        if epoch == first.epoch:
            found: tuple[StreamId, Marker] | None = self._first
        elif epoch < first.epoch and first.generation == self._generation:
            return None
        else:
            (id_,) = _good(self._servers.ask(calls.tseek(self.key, at, max(1, epoch - first.epoch))))
            found = self._one(calls.trange(self.key, id_, id_)) if id_ is not None else None
        return found if found is not None and self._is(found[1], epoch) else self._searched(epoch)

    def _searched(self, epoch: int) -> tuple[StreamId, Marker] | None:
        """One after the other, newest first: a log that more than one generation wrote."""
        end = "+"
        while entries := _good(self._servers.ask(calls.trevrange(self.key, end, count=PAGE)))[0]:
            for entry in entries:
                marker = read_marker(self.key, entry)
                if self._is(marker, epoch):
                    return entry.id, marker
                if marker.generation < self._generation or marker.epoch < epoch:
                    return None
            end = f"({entries[-1].id}"
        return None

    def _is(self, marker: Marker, epoch: int) -> bool:
        return (marker.generation, marker.epoch) == (self._generation, epoch)

    def _one(self, call: Call[Any]) -> tuple[StreamId, Marker] | None:
        (entries,) = _good(self._servers.ask(call))
        return (entries[0].id, read_marker(self.key, entries[0])) if entries else None


def contradicted(log: ReplayLog, manifest: SnapshotManifest) -> bool:
    """Rule 4. A marker that is not there any more contradicts nothing."""
    if manifest.epoch > log.last:
        return manifest.epoch > log.last + 1
    found = log.find(manifest.epoch)
    return found is not None and found[1].run != manifest.run


def spans(log: ReplayLog, manifest: SnapshotManifest) -> Mapping[str, tuple[str, str]]:
    """What the epoch of a snapshot has read of each input, up to, after; {} if the log does not have it."""
    found = log.find(manifest.epoch)
    if found is None or found[1].run != manifest.run:
        return {}
    return {topic: (str(span.end), str(span.after)) for topic, span in found[1].inputs.items()}


def needs(log: ReplayLog, manifest: SnapshotManifest) -> Mapping[str, str]:
    """The entries after these are needed by a snapshot, by topic (Rule 1). {}: it can't be told, nothing may go."""
    found = log.find(manifest.epoch)
    if found is not None:
        published = found[1].run == manifest.run
        return {topic: str(span.end if published else span.after) for topic, span in found[1].inputs.items()}
    earlier = log.find(manifest.epoch - 1)
    return {topic: str(span.end) for topic, span in earlier[1].inputs.items()} if earlier is not None else {}


def trim(servers: LeaderConnection, log: ReplayLog, manifest: SnapshotManifest) -> int:
    """Evict the markers that no snapshot needs if this one is the oldest; returns how many.

    The marker of its epoch stays, and the one before while the epoch may have to be undone: they tell whether it is
    of the history that the server has.
    """
    found = log.find(manifest.epoch)
    if found is None or found[1].run != manifest.run:
        found = log.find(manifest.epoch - 1)
    if found is None:
        return 0
    (evicted,) = _good(servers.ask(calls.ttrim(log.key, before=found[0])))
    return int(evicted)


def move_groups(
    servers: LeaderConnection, job: str, partition: int, partitions: int, shared: Collection[str], records: JobSnapshots
) -> None:
    """Move the group of every input partition to where the records allow it. It is made where it is missing.

    shared: the topics that have one partition, which all partitions of the job read (Rule 2).
    """
    group = keys.group(job)
    for topic, own in records.of(partition).needs.items():
        of_all = [records.of(each).needs.get(topic) for each in range(partitions)] if topic in shared else [own]
        ends = [StreamId.parse(each) for each in of_all if each is not None]
        if len(ends) < len(of_all) or min(ends) == StreamId(0):
            continue
        stream = f"{topic}:{0 if topic in shared else partition}"
        (reply,) = servers.ask(calls.tgroup_setid(stream, group, min(ends)))
        if isinstance(reply, ReplyError) and reply.code == "NOGROUP":
            (reply,) = servers.ask(calls.tread(stream, min(ends), 0, group=group))
        if isinstance(reply, ReplyError):
            raise reply


def _good(replies: Sequence[Any]) -> Sequence[Any]:
    for reply in replies:
        if isinstance(reply, ReplyError):
            raise reply
    return replies
