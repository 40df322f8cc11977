"""What the oldest snapshot still needs: input entries and markers of the replay log. The rest may be evicted.

The group ``job:NAME`` of an input partition tells ``overflow="protect"`` which entries the job has finished: those that
no retained snapshot needs for a recovery. It does not follow the entries that were read, because their effect is in
the state, on a disk that may be lost, and because a damaged newest snapshot requires an older one. The retention of
topics considers only groups, so it need not know about snapshots.

Rule 1: A snapshot of epoch N whose run published N needs the entries after N. Otherwise, or if this is unknown, it
        needs the entries after N-1: N will be undone.
Rule 2: All partitions need a topic with one partition that they all read: its group moves to the lowest position, and
        stays where it is until each partition has a snapshot.
Rule 3: The newest marker is never evicted: it determines the position of the partition.
Rule 4: A snapshot that contradicts the log (other runs published its epoch and the one before, or the epoch is higher
        than any published one) belongs to a history that the server does not have. It does not count as retained. A
        snapshot of an attempt that was not published is one of the epoch before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tidelog.client import calls
from tidelog.client.entries import StreamId
from tidelog.client.steps import checked
from tidelog.jobs import keys
from tidelog.jobs.commits import CLOSED
from tidelog.jobs.replaylog.marker import Marker, read_marker
from tidelog.jobs.replaylog.progress import read_log
from tidelog.jobs.snapshots.catalog import JobSnapshots
from tidelog.jobs.snapshots.manifests import PreviousVersion, SnapshotManifest
from tidelog.transport.call import Call
from tidelog.transport.errors import ReplyError
from tidelog.transport.leader import LeaderConnection


class ReplayLog:
    """The replay log of a partition, as one generation wrote it. Raises UnreachableError, ReplyError or JobError."""

    def __init__(self, servers: LeaderConnection, job: str, generation: int, partition: int) -> None:
        self.key = keys.log(job, partition)
        self._servers = servers
        self._generation = generation
        self._first = self._one(calls.trange(self.key, count=1))
        self._last = self._one(calls.trevrange(self.key, count=1))
        (fence,) = checked(servers.ask(calls.tfence(keys.fence(job, generation))))
        self._closed = fence == CLOSED

    @property
    def superseded(self) -> bool:
        """Whether a later generation writes or will write the log: this generation's snapshots are then irrelevant."""
        return self._closed or (self._last is not None and self._last[1].generation > self._generation)

    @property
    def last(self) -> int:
        """The last published epoch; 0 if there is none."""
        ours = self._last is not None and self._last[1].generation == self._generation
        return self._last[1].epoch if ours and self._last is not None else 0

    def find(self, epoch: int) -> tuple[StreamId, Marker] | None:
        """Return the marker of an epoch, if any. Every epoch has one, so its expected position is checked first."""
        if self._first is None or epoch > self.last:
            return None
        at, first = self._first
        if epoch == first.epoch:
            found: tuple[StreamId, Marker] | None = self._first
        elif epoch < first.epoch and first.generation == self._generation:
            return None
        else:
            (id_,) = checked(self._servers.ask(calls.tseek(self.key, at, max(1, epoch - first.epoch))))
            found = self._one(calls.trange(self.key, id_, id_)) if id_ is not None else None
        return found if found is not None and self._is(found[1], epoch) else self._searched(epoch)

    def _searched(self, epoch: int) -> tuple[StreamId, Marker] | None:
        """Search backward through a log that more than one generation wrote."""
        for id_, marker in read_log(self._servers.ask, self.key):
            if self._is(marker, epoch):
                return id_, marker
            if marker.generation < self._generation or marker.epoch < epoch:
                break
        return None

    def _is(self, marker: Marker, epoch: int) -> bool:
        return (marker.generation, marker.epoch) == (self._generation, epoch)

    def _one(self, call: Call[Any]) -> tuple[StreamId, Marker] | None:
        (entries,) = checked(self._servers.ask(call))
        return (entries[0].id, read_marker(self.key, entries[0])) if entries else None


def contradicted(log: ReplayLog, manifest: SnapshotManifest) -> bool:
    """Return whether the log contradicts a snapshot (Rule 4). A missing marker contradicts nothing."""
    if manifest.epoch > log.last:
        return manifest.epoch > log.last + 1
    return _of_another_run(log, manifest) and (manifest.previous is None or _of_another_run(log, manifest.previous))


def _of_another_run(log: ReplayLog, version: SnapshotManifest | PreviousVersion) -> bool:
    found = log.find(version.epoch)
    return found is not None and found[1].run != version.run


def spans(log: ReplayLog, manifest: SnapshotManifest) -> Mapping[str, tuple[str, str]]:
    """Return the positions of each input after and before the epoch of a snapshot; {} if the log lacks that epoch."""
    found = log.find(manifest.epoch)
    if found is None or found[1].run != manifest.run:
        return {}
    return {topic: (str(span.end), str(span.after)) for topic, span in found[1].inputs.items()}


def needs(log: ReplayLog, manifest: SnapshotManifest) -> Mapping[str, str]:
    """Return, by topic, the IDs after which a snapshot needs the entries (Rule 1); {} if they are unknown."""
    found = log.find(manifest.epoch)
    if found is not None:
        published = found[1].run == manifest.run
        return {topic: str(span.end if published else span.after) for topic, span in found[1].inputs.items()}
    earlier = log.find(manifest.epoch - 1)
    return {topic: str(span.end) for topic, span in earlier[1].inputs.items()} if earlier is not None else {}


def trim(servers: LeaderConnection, log: ReplayLog, manifest: SnapshotManifest) -> int:
    """Evict the markers that are not needed if this is the oldest snapshot; return their number.

    The marker of its epoch is retained, and the previous one while the epoch may have to be undone: they show whether
    the snapshot belongs to the server's history.
    """
    found = log.find(manifest.epoch)
    if found is None or found[1].run != manifest.run:
        found = log.find(manifest.epoch - 1)
    if found is None:
        return 0
    (evicted,) = checked(servers.ask(calls.ttrim(log.key, before=found[0])))
    return int(evicted)


def move_groups(
    servers: LeaderConnection, job: str, partition: int, partitions: int, shared: Collection[str], records: JobSnapshots
) -> None:
    """Move the group of every input partition to where the snapshots allow it. Creates missing groups.

    shared: the topics with one partition, which all partitions of the job read (Rule 2).
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
