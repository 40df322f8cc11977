"""The state of an app: members, owners and progress, read from the server regardless of who runs the workers.

    read_status   reads everything, in a few round trips for each SLICE partitions
    throughput    compares two results

Rule 1: it changes nothing on the server, and needs no worker.
Rule 2: a result is not a consistent snapshot. The values of one partition are read together, those of others later.
Rule 3: between two round trips, it computes at most a slice, so that it does not block an event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tidelog.client import calls, strings
from tidelog.client.entries import GroupInfo, Info, Pending, PendingSummary, StreamId
from tidelog.client.steps import Steps, checked
from tidelog.coordination.lease import read_leases
from tidelog.operating.throughput import Throughput, measured
from tidelog.topics import deadletters
from tidelog.topics.reconcile import known
from tidelog.transport.call import Call
from tidelog.transport.slots import hash_tag
from tidelog.workers import keys
from tidelog.workers.coordination import declaration, member_document, pauses
from tidelog.workers.coordination.declaration import AppDeclaration, DeclaredProcessor, declaration_of
from tidelog.workers.coordination.member_document import Member
from tidelog.workers.declare.app_protocol import AppProtocol
from tidelog.workers.execution.failures import ASIDE_MS

PAGE: Final = 1000  # pending messages per page
SLICE: Final = 500  # partitions: each takes about 25 us of CPU time, in five round trips
NONE: Final = StreamId(0)


@dataclass(frozen=True)
class MemberStatus:
    """A worker that is a member of a processor."""

    worker: str
    joined: int  # ms since 1970, on the worker's clock
    capacity: int
    lease_ms: int  # remaining time of its lease; 0: the worker is dead, or has just left


@dataclass(frozen=True)
class PartitionStatus:
    """The progress of one processor in one partition."""

    partition: int
    owner: str | None  # the worker that holds the claim; always None with ordering "none"
    assigned: str | None  # the worker that should own it
    lag: int  # entries that were not delivered yet
    lag_ms: int  # the age of the oldest unfinished entry; 0 if there is none
    pending: int  # entries that were delivered and are not acknowledged, including those set aside
    set_aside: int  # of these, entries set aside because their key is parked
    parked: Mapping[str, Mapping[str, Any]]  # by key: id, error, time
    paused: Mapping[str, Any] | None  # reason, time, worker
    offset: StreamId | None  # the last delivered entry; None before the processor has begun
    added: int  # entries that were ever appended to this partition

    @property
    def unfinished(self) -> int:
        return self.lag + self.pending

    @property
    def finished(self) -> int:
        """Entries that were processed, or evicted before."""
        return self.added - self.unfinished


@dataclass(frozen=True)
class ProcessorStatus:
    """One processor. ``partitions`` is empty while its topic does not exist."""

    name: str
    topic: str
    ordering: str
    members: Sequence[MemberStatus]
    partitions: Sequence[PartitionStatus]
    halted: Mapping[str, Any] | None  # reason, time, worker; set if all partitions are paused
    dead_letters: Mapping[str, int | None]  # open ones by dead-letter queue; None: the topic can't be read
    omitted: int = 0  # partitions that were not read, because of the limit of ``read_status``

    @property
    def alive(self) -> list[str]:
        """The workers with a valid lease."""
        return [member.worker for member in self.members if member.lease_ms]


@dataclass(frozen=True)
class AppStatus:
    """The state of an app at one time."""

    app: str
    at: int  # ms since 1970, on the server's clock
    leader: str | None
    processors: Sequence[ProcessorStatus]


def throughput(before: AppStatus | None, after: AppStatus) -> dict[str, Throughput]:
    """Return rates and dead letters by processor, without rates if its topic has grown or was recreated meanwhile."""
    ms = 0 if before is None else after.at - before.at
    earlier = {} if before is None else {each.name: each for each in before.processors}
    found = {}
    for now in after.processors:
        then = earlier.get(now.name)
        arrived = finished = None
        if then is not None and len(then.partitions) == len(now.partitions) > 0:
            arrived = measured(_added(then), _added(now), ms)
            if arrived is not None:  # the number of finished entries falls if the processor is reset to an older entry
                finished = measured(_finished(then), _finished(now), ms)
        found[now.name] = Throughput(arrived, finished, now.dead_letters)
    return found


def _added(processor: ProcessorStatus) -> int:
    return sum(each.added for each in processor.partitions)


def _finished(processor: ProcessorStatus) -> int:
    return sum(each.finished for each in processor.partitions)


# -- reading -------------------------------------------------------------------------------------------------
def read_status(
    app: AppProtocol | AppDeclaration, names: Iterable[str] | None = None, limit: int | None = None
) -> Steps[AppStatus]:
    """Read the status of these processors, or of all. Raises AppError if a processor does not exist.

    ``limit``: partitions of all processors together that are read; each processor gets its first ones.
    """
    wanted = declaration_of(app).select(names)
    (clock,) = checked((yield [strings.server_time()]))
    existing = {}
    for topic in {declared.topic: None for declared in wanted}:
        settings = yield from known(topic)
        existing[topic] = (settings.partitions or 0) if settings is not None else 0
    counts = _limited([existing[declared.topic] for declared in wanted], limit)
    topics = {}
    for name in existing:
        largest = max(count for declared, count in zip(wanted, counts, strict=True) if declared.topic == name)
        topics[name] = yield from _topic(name, largest, clock)
    leader = yield from _holders([keys.leader(app.name)])
    letters = {declared.name: [declared.dead_letters] if declared.dead_letters else [] for declared in wanted}
    open_letters = yield from deadletters.open_counts(topic for found in letters.values() for topic in found)
    processors: list[ProcessorStatus] = []
    for declared, count in zip(wanted, counts, strict=True):
        found = yield from _processor(app.name, declared, topics[declared.topic], count)
        found = replace(
            found, dead_letters={topic: open_letters[topic] for topic in letters[declared.name]},
            omitted=existing[declared.topic] - count,
        )  # fmt: skip
        if declared.ordering == "none":
            found = replace(found, members=(yield from _workers(app.name)))
        processors += [found]
    return AppStatus(app.name, clock, leader[0], processors)


def _limited(counts: Sequence[int], limit: int | None) -> list[int]:
    """Return how many partitions of each processor are read: small ones in full, and large ones share the rest."""
    found = list(counts)
    left = sum(counts) if limit is None else limit
    for number, at in enumerate(sorted(range(len(counts)), key=counts.__getitem__)):
        found[at] = min(counts[at], left // (len(counts) - number))
        left -= found[at]
    return found


@dataclass
class _Topic:
    """A topic's streams, read once for all processors of the topic."""

    clock: int  # ms since 1970 on the server
    infos: list[Info | None] = field(default_factory=list)  # by partition; None: the stream does not exist
    groups: list[dict[bytes, GroupInfo]] = field(default_factory=list)


def _topic(name: str, count: int, clock: int) -> Steps[_Topic]:
    found = _Topic(clock)
    for part in _slices(count):
        streams = [f"{name}:{at}" for at in part]
        replies = yield [call for each in streams for call in (calls.tinfo(each), calls.tgroup_list(each))]
        for info, groups in zip(replies[::2], replies[1::2], strict=True):
            checked([groups])
            if isinstance(info, Exception) and "no such key" not in str(info):
                raise info
            found.infos.append(None if isinstance(info, Exception) else info)
            found.groups.append({group.name: group for group in groups})
    return found


def _slices(count: int) -> Iterator[range]:
    """Return the numbers of the partitions, SLICE at a time."""
    for start in range(0, count, SLICE):
        yield range(start, min(start + SLICE, count))


def _processor(app: str, declared: DeclaredProcessor, topic: _Topic, count: int) -> Steps[ProcessorStatus]:
    name = declared.name
    document = yield from member_document.read(keys.members(app, name))
    paused = yield from pauses.read(pauses.paused_key(app, name))
    taking_part = yield from _members(app, document.members)
    partitions: list[PartitionStatus] = []
    for part in _slices(count):
        partitions += yield from _partitions(app, declared, topic, document, paused, part)
    return ProcessorStatus(
        name, declared.topic, declared.ordering, taking_part, partitions, paused.get(pauses.ALL), {}
    )  # fmt: skip


def _partitions(
    app: str, declared: DeclaredProcessor, topic: _Topic, document: member_document.MemberDocument,
    paused: pauses.PauseEntries, part: range,
) -> Steps[list[PartitionStatus]]:  # fmt: skip
    parked = yield from _parked(app, declared, part)
    owners = yield from _owners(app, declared, part)
    behind = yield from _behind(declared, topic, part)
    found: list[PartitionStatus] = []
    for at, owner, entries, (lag, first, pending) in zip(part, owners, parked, behind, strict=True):
        info, group = topic.infos[at], topic.groups[at].get(declared.group.encode())
        aside = 0
        if entries and pending.count:
            aside = yield from _aside(declared, at, topic.clock)
        oldest = min([each for each in (first, pending.lowest) if each is not None], default=None)
        found += [PartitionStatus(
            at, owner, document.owners[at] if at < len(document.owners) else None, lag,
            max(0, topic.clock - oldest.ms) if oldest is not None else 0, pending.count, aside, entries,
            paused.get(str(at)), group.offset if group is not None else None,
            info.entries_added if info is not None else 0,
        )]  # fmt: skip
    return found


def _parked(app: str, declared: DeclaredProcessor, part: range) -> Steps[list[pauses.PauseEntries]]:
    """Return the parked keys of each partition, in a cluster or not."""
    names = [pauses.parked_keys(app, declared.name, at, declared.stream(at)) for at in part]
    texts = checked((yield [strings.mget(*each) for each in zip(*names, strict=True)]))
    return [
        pauses.decoded(text, alone) | pauses.decoded(other, tagged)
        for (alone, tagged), text, other in zip(names, *texts, strict=True)
    ]


def _owners(app: str, declared: DeclaredProcessor, part: range) -> Steps[list[str | None]]:
    """Return the worker that owns each partition, or None. In a cluster, the claims have other names."""
    tags = [hash_tag(declared.stream(at)) for at in part]
    alone = yield from _holders([keys.owner(app, declared.name, at) for at in part])
    tagged = yield from _holders([keys.owner(app, declared.name, at, tag) for at, tag in zip(part, tags, strict=True)])
    return [worker or other for worker, other in zip(tagged, alone, strict=True)]


def _behind(
    declared: DeclaredProcessor, topic: _Topic, part: range
) -> Steps[list[tuple[int, StreamId | None, PendingSummary]]]:
    """Return for each partition: the number of undelivered entries, the first of them, and the pending summary."""
    asked: list[Call[Any]] = []
    streams = []
    for at in part:
        info, group = topic.infos[at], topic.groups[at].get(declared.group.encode())
        stream, offset = declared.stream(at), group.offset if group is not None else NONE
        streams.append((group is not None, info is not None and info.last > offset))
        if info is not None and info.last > offset:
            asked += [calls.tcount(stream, f"({offset}"), calls.tseek(stream, str(offset), 1)]
        if group is not None:
            asked.append(calls.tpending(stream, declared.group))
    replies = iter((yield asked))
    found = []
    for grouped, more in streams:
        lag, first = checked([next(replies), next(replies)]) if more else (0, None)
        pending = next(replies) if grouped else None
        if isinstance(pending, Exception) and not str(pending).startswith("NOGROUP"):
            raise pending
        empty = PendingSummary(0, None, None, None)
        found.append((lag, first, pending if isinstance(pending, PendingSummary) else empty))
    return found


def _aside(declared: DeclaredProcessor, partition: int, clock: int) -> Steps[int]:
    """Return how many pending messages are set aside: they become due much later than any lease could require."""
    stream, start, found = declared.stream(partition), "-", 0
    while True:
        page: list[Pending]
        (page,) = checked((yield [calls.tpending_range(stream, declared.group, start, "+", PAGE)]))
        found += sum(message.due - clock > ASIDE_MS // 4 for message in page)
        if len(page) < PAGE:
            return found
        start = f"({page[-1].id}"


# -- workers -------------------------------------------------------------------------------------------------
def _members(app: str, document: Mapping[str, Member]) -> Steps[list[MemberStatus]]:
    values = yield from _leases([keys.lease(app, name) for name in document])
    found = []
    for (name, member), (value, left) in zip(document.items(), values, strict=True):
        lives = value == f"{name}:{member.epoch}".encode()
        found += [MemberStatus(name, member.joined, member.capacity, left if lives else 0)]
    return sorted(found, key=lambda member: member.worker)


def _workers(app: str) -> Steps[list[MemberStatus]]:
    """Return all workers of an app: with ordering "none" there are no members, and any worker may read."""
    found = yield from declaration.read(app)
    workers = [] if found is None else sorted(found.workers.items(), key=lambda each: each[1])
    names = dict(workers[-declaration.WORKERS :])
    values = yield from _leases([keys.lease(app, name) for name in sorted(names)])
    ends = zip(sorted(names), values, strict=True)
    return [MemberStatus(name, names[name], 1, left) for name, (_, left) in ends if left]


def _leases(leases: Sequence[str]) -> Steps[list[tuple[bytes | None, int]]]:
    """Return the value and the remaining milliseconds of each lease; 0 if it has expired."""
    return [(value, max(0, left)) for value, left in (yield from read_leases(leases))]


def _holders(claims: Sequence[str]) -> Steps[list[str | None]]:
    """Return the workers that hold these claims, or None."""
    (values,) = checked((yield [strings.mget(*claims)]))
    named = [_lease(value) for value in values]
    leases = sorted({key for key, _ in named if key})
    (found,) = checked((yield [strings.mget(*leases)]))
    there = dict(zip(leases, found, strict=True))
    return [
        value.rpartition(b":")[0].decode("utf-8", "backslashreplace") if key and there[key] == value else None
        for key, value in named
    ]


def _lease(claim: bytes | None) -> tuple[str, bytes]:
    """Return key and value of the lease that a claim names; both are empty if the claim is free."""
    key, _, rest = (claim or b"||").partition(b"|")
    return key.decode("utf-8", "backslashreplace"), rest.partition(b"|")[0]
