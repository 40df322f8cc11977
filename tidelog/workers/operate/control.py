"""Control of a processor from outside: reset, pause, resume.

    preview_reset  the effects that a reset would have
    reset          move the whole processor or one partition to another position
    pause          pause the processor, a partition, or a key
    resume         resume what is paused, parked or halted

Rule 1: workers are notified by a message in the control stream. A worker that misses it sees the change when it takes a
        partition, and while something is paused.
Rule 2: a reset is one transaction per partition. It watches the member document, so a worker that joins is noticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tidelog.client import calls, strings
from tidelog.client.entries import StreamId
from tidelog.client.steps import Steps, checked, transaction
from tidelog.options.start import LATEST, ZERO, StartPosition
from tidelog.topics import partition_of
from tidelog.topics.reconcile import known
from tidelog.transport.call import Call
from tidelog.transport.slots import hash_tag
from tidelog.workers import keys
from tidelog.workers.coordination import pauses
from tidelog.workers.coordination.declaration import AppDeclaration, DeclaredProcessor, declaration_of
from tidelog.workers.coordination.messages import message
from tidelog.workers.declare.app_protocol import AppProtocol
from tidelog.workers.declare.errors import AppError
from tidelog.workers.operate import status
from tidelog.workers.operate.status import PartitionStatus, ProcessorStatus

Described = AppProtocol | AppDeclaration  # an app in code, or as its workers have declared it
WHO: Final = "tidelog app"  # instead of a worker's name


class AliveError(AppError):
    """Workers are running the processor, which the operation does not allow."""


@dataclass(frozen=True)
class ResetResult:
    """The effect of a reset on one partition."""

    partition: int
    before: StreamId | None  # the position before; None: the processor had not begun
    after: StreamId  # the processor continues with the first entry after this ID
    read_again: int  # entries up to the old position that are delivered again
    skipped: int  # undelivered entries up to the new position that are not delivered
    dropped: int  # pending messages that are dropped; those after the new position are delivered as new entries
    left: int  # entries after the new position


def preview_reset(
    app: Described, name: str, to: StartPosition, partition: int | None = None, force: bool = False
) -> Steps[list[ResetResult]]:
    """Return the effects that ``reset`` with the same arguments would have now. Changes nothing."""
    (declared,) = declaration_of(app).select([name])
    count = yield from _partitions(declared, partition)
    processor = yield from _status(app, name, force)
    found = []
    for at in range(count) if partition is None else [partition]:
        found += [(yield from _planned(declared, processor.partitions[at], to))]
    return found


def reset(
    app: Described, name: str, to: StartPosition, partition: int | None = None, force: bool = False
) -> Steps[list[ResetResult]]:
    """Move a processor to a position, in all partitions or in one.

    Raises AliveError while workers run the processor, unless ``force``. Must be driven on one connection that is not
    re-established.
    """
    (declared,) = declaration_of(app).select([name])
    count = yield from _partitions(declared, partition)
    moved = []
    for at in range(count) if partition is None else [partition]:
        while True:
            yield [Call(("WATCH", keys.members(app.name, name)), bool)]
            processor = yield from _status(app, name, force)
            planned = yield from _planned(declared, processor.partitions[at], to)
            left = yield from _reset(declared, planned)
            if left is not None:
                moved.append(replace(planned, left=left))
                break
    yield [Call(("UNWATCH",), bool), _notification(app, name)]
    return moved


def pause(
    app: Described, name: str, partition: int | None = None, key: str | None = None, reason: str = "by hand"
) -> Steps[list[str]]:
    """Pause a processor, one partition, or one key; returns descriptions of what was not paused before."""
    (declared,) = declaration_of(app).select([name])
    if key is not None:
        return (yield from _park(app, declared, partition, key, reason))
    yield from _partitions(declared, partition)
    entry = pauses.ALL if partition is None else str(partition)
    where = pauses.paused_key(app.name, name)
    before = yield from pauses.read(where)
    (now,) = checked((yield [strings.server_time()]))
    yield from pauses.add(where, entry, {"reason": reason, "time": now, "worker": WHO})
    checked((yield [_notification(app, name)]))
    return [] if entry in before else [f"partition {partition}" if partition is not None else "all partitions"]


def resume(app: Described, name: str, partition: int | None = None, key: str | None = None) -> Steps[list[str]]:
    """Resume a key, a partition with its parked keys, or everything; returns descriptions of what was resumed."""
    (declared,) = declaration_of(app).select([name])
    count = yield from _partitions(declared, partition)
    found = []
    if key is None:
        where = pauses.paused_key(app.name, name)
        paused = yield from pauses.read(where)
        wanted = [entry for entry in paused if partition is None or entry == str(partition)]
        yield from pauses.remove(where, wanted)
        found += ["all partitions" if entry == pauses.ALL else f"partition {entry}" for entry in wanted]
    for at in range(count) if partition is None else [partition]:
        wanted = []
        for where in pauses.parked_keys(app.name, name, at, declared.stream(at)):
            parked = yield from pauses.read(where)
            here = [each for each in parked if key is None or each == key]
            yield from pauses.remove(where, here)
            wanted += here
        found += [f"key {each} in partition {at}" for each in wanted]
    checked((yield [_notification(app, name)]))
    return found


# -- resetting -----------------------------------------------------------------------------------------------
def _status(app: Described, name: str, force: bool) -> Steps[ProcessorStatus]:
    """Return the status of a processor. Raises AliveError while workers run it, unless ``force``."""
    seen = yield from status.read_status(app, [name])
    (processor,) = seen.processors
    alive = processor.alive or sorted({each.owner for each in processor.partitions if each.owner is not None})
    if alive and not force:
        listed = ", ".join(alive[:5]) + (", ..." if len(alive) > 5 else "")
        raise AliveError(
            f"processor {processor.name!r} is running on workers {listed}: stop them first. With --force it is reset"
            " anyway, while the workers still finish the entries in flight"
        )
    return processor


def _planned(declared: DeclaredProcessor, partition: PartitionStatus, to: StartPosition) -> Steps[ResetResult]:
    stream = declared.stream(partition.partition)
    after = to.after
    if to == LATEST or after is None:
        (batch,) = checked((yield [calls.tread(stream, "0", 0, with_info=True)]))
        after = batch.info.last if batch.info is not None else ZERO
    before = partition.offset or ZERO
    low, high = sorted((before, after))
    between, left = checked((yield [calls.tcount(stream, f"({low}", str(high)), calls.tcount(stream, f"({after}")]))
    again, skipped = (between, 0) if after < before else (0, between)
    return ResetResult(partition.partition, partition.offset, after, again, skipped, partition.pending, left)


def _reset(declared: DeclaredProcessor, planned: ResetResult) -> Steps[int | None]:
    """Execute a reset; returns the number of entries after the position, or None if a worker has joined meanwhile."""
    stream, group = declared.stream(planned.partition), declared.group
    todo: Sequence[Call[Any]] = [
        calls.tgroup_destroy(stream, group),
        calls.tread(stream, planned.after, 0, group=group),  # creates the group again, after this ID
        calls.tcount(stream, f"({planned.after}"),
    ]
    results = yield from transaction(todo)
    return None if results is None else int(checked(results)[2])


# -- pausing -------------------------------------------------------------------------------------------------
def _park(
    app: Described, declared: DeclaredProcessor, partition: int | None, key: str, reason: str
) -> Steps[list[str]]:
    if declared.ordering != "key":
        raise AppError(
            f"processor {declared.name!r} has ordering={declared.ordering!r}: a single key can be paused only with"
            " ordering='key'. To pause a partition: --partition N"
        )
    count = yield from _partitions(declared, partition)
    by_topic = declared.topic_key
    if partition is not None:
        partitions: Iterable[int] = [partition]
    else:
        partitions = [partition_of(key, count)] if by_topic else range(count)
    found = []
    (now,) = checked((yield [strings.server_time()]))
    for at in partitions:
        where = yield from _parked_key(app.name, declared, at)
        parked = yield from pauses.read(where)
        details: Mapping[str, Any] = {"id": "", "error": reason, "time": now}
        yield from pauses.add(where, key, details)
        found += [f"key {key} in partition {at}"] if key not in parked else []
    checked((yield [_notification(app, declared.name)]))
    return found


def _parked_key(app: str, declared: DeclaredProcessor, partition: int) -> Steps[str]:
    """Return where the workers look for parked keys: where the claim of the partition is."""
    stream = declared.stream(partition)
    alone, tagged = pauses.parked_keys(app, declared.name, partition, stream)
    (claim,) = checked((yield [strings.get(keys.owner(app, declared.name, partition, hash_tag(stream)))]))
    return alone if claim is None else tagged


def _partitions(declared: DeclaredProcessor, partition: int | None) -> Steps[int]:
    """Return the number of partitions. Raises AppError if ``partition`` or the topic does not exist."""
    settings = yield from known(declared.topic)
    if settings is None or not settings.partitions:
        raise AppError(f"topic {declared.topic!r} does not exist yet: nobody has sent records, and no worker has run")
    if partition is not None and not 0 <= partition < settings.partitions:
        last = settings.partitions - 1
        raise AppError(f"topic {declared.topic!r} has the partitions 0 to {last}, not {partition}")
    return settings.partitions


def _notification(app: Described, name: str) -> Call[Any]:
    return message(app.name, "paused", WHO, name)
