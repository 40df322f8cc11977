"""What people do to a processor from outside: move it back or on, hold it back, let it go on.

    reset   another position, for the whole processor or one partition
    hold    pause the processor, a partition, or a key
    resume  let it go on

Rule 1: workers are told by a message in the control stream. One that misses it sees the change when it takes a
        partition, and while something is held back.
Rule 2: a reset is one transaction for each partition. It watches the members, so no worker begins meanwhile unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidelog.client import calls, strings
from tidelog.client.entries import SEQ_MAX, StreamId
from tidelog.client.steps import Steps, checked
from tidelog.topics import partition_of
from tidelog.topics.reconcile import known
from tidelog.transport.call import Call
from tidelog.workers import keys
from tidelog.workers.coordination import pauses
from tidelog.workers.coordination.control_stream import message
from tidelog.workers.declare.app_protocol import Program
from tidelog.workers.declare.errors import AppError
from tidelog.workers.declare.processor import Declared
from tidelog.workers.operate import status
from tidelog.workers.operate.status import ProcessorStatus

WHO: Final = "tidelog app"  # in place of a worker's name
END: Final = "end"


class AliveError(AppError):
    """Workers take part in the processor, which must not be."""


@dataclass(frozen=True)
class Moved:
    """What a reset did to one partition."""

    partition: int
    before: StreamId | None  # where the processor was; None: nowhere
    after: StreamId  # it goes on with the first entry after this
    forgotten: int  # messages that were pending
    left: int  # entries that are after it now


def reset(
    app: Program, name: str, to: StreamId | str, partition: int | None = None, force: bool = False
) -> Steps[list[Moved]]:
    """Let a processor go on with the first entry after the ID ``to``, or after the last one there is (``END``).

    What was pending is forgotten: of that, entries after ``to`` come again as new ones, those before it don't come any
    more. AliveError while workers take part, unless ``force``. To be driven on one connection, which is not made again.
    """
    (declared,) = app.select([name])
    count = yield from _partitions(declared, partition)
    moved = []
    for at in range(count) if partition is None else [partition]:
        while True:
            yield [Call(("WATCH", keys.members(app.name, name)), bool)]
            seen = yield from status.look(app, [name])
            (processor,) = seen.processors
            if not force:
                _check_idle(processor)
            done = yield from _reset(declared, processor.partitions[at], to)
            if done is not None:
                moved.append(done)
                break
    yield [Call(("UNWATCH",), bool), _told(app, name)]
    return moved


def hold(
    app: Program, name: str, partition: int | None = None, key: str | None = None, reason: str = "by hand"
) -> Steps[list[str]]:
    """Hold back a processor, one partition, or one key; returns what is held back now and was not, in words."""
    (declared,) = app.select([name])
    if key is not None:
        return (yield from _hold_key(app, declared, partition, key, reason))
    yield from _partitions(declared, partition)
    mark = pauses.ALL if partition is None else str(partition)
    where = pauses.paused_key(app.name, name)
    before = yield from pauses.read(where)
    (now,) = checked((yield [strings.server_time()]))
    facts = {"reason": reason, "time": now, "worker": WHO}
    yield from pauses.add(where, mark, facts)
    checked((yield [_told(app, name)]))
    return [] if mark in before else [f"partition {partition}" if partition is not None else "all partitions"]


def resume(app: Program, name: str, partition: int | None = None, key: str | None = None) -> Steps[list[str]]:
    """Let go on what is held back; returns what, in words.

    With a key: that key. With a partition: it and the keys that are parked in it. With neither: everything.
    """
    (declared,) = app.select([name])
    count = yield from _partitions(declared, partition)
    found = []
    if key is None:
        where = pauses.paused_key(app.name, name)
        held = yield from pauses.read(where)
        wanted = [mark for mark in held if partition is None or mark == str(partition)]
        yield from pauses.remove(where, wanted)
        found += ["all partitions" if mark == pauses.ALL else f"partition {mark}" for mark in wanted]
    for at in range(count) if partition is None else [partition]:
        where = pauses.parked_key(app.name, name, at)
        parked = yield from pauses.read(where)
        wanted = [each for each in parked if key is None or each == key]
        yield from pauses.remove(where, wanted)
        found += [f"key {each} in partition {at}" for each in wanted]
    checked((yield [_told(app, name)]))
    return found


# -- resetting -----------------------------------------------------------------------------------------------
def before(ms: int) -> StreamId:
    """The last ID before this time, in ms since 1970."""
    return StreamId(ms - 1, SEQ_MAX) if ms else StreamId(0)


def _check_idle(processor: ProcessorStatus) -> None:
    alive = processor.alive or sorted({each.owner for each in processor.partitions if each.owner is not None})
    if alive:
        listed = ", ".join(alive[:5]) + (", ..." if len(alive) > 5 else "")
        raise AliveError(
            f"processor {processor.name!r} is being run by {len(alive)} workers ({listed}): stop them first. --force"
            " moves it under them: what they have in hand is finished all the same"
        )


def _reset(declared: Declared, partition: status.PartitionStatus, to: StreamId | str) -> Steps[Moved | None]:
    """None: somebody has joined meanwhile."""
    stream, group = declared.topic.stream(partition.partition), declared.group
    if to == END:
        (batch,) = checked((yield [calls.tread(stream, "0", 0, with_info=True)]))
        after = batch.info.last if batch.info is not None else StreamId(0)
    else:
        after = to if isinstance(to, StreamId) else StreamId.parse(to)
    todo: Sequence[Call[Any]] = [
        calls.tgroup_destroy(stream, group),
        calls.tread(stream, after, 0, group=group),  # makes it anew, after this ID
        calls.tcount(stream, f"({after}"),
    ]
    queued = [Call(call.args, lambda reply: reply) for call in todo]
    replies = checked((yield [Call(("MULTI",), bool), *queued, Call(("EXEC",), lambda reply: reply)]))
    results = replies[-1]
    if results is None:
        return None
    checked(results)
    return Moved(partition.partition, partition.offset, after, partition.pending, results[2])


# -- holding back --------------------------------------------------------------------------------------------
def _hold_key(app: Program, declared: Declared, partition: int | None, key: str, reason: str) -> Steps[list[str]]:
    if declared.ordering != "key":
        raise AppError(
            f"processor {declared.name!r} has ordering={declared.ordering!r}: only with ordering='key' can a key be"
            " held back by itself. A partition can: --partition N"
        )
    count = yield from _partitions(declared, partition)
    by_topic = declared.key == declared.topic.key
    if partition is not None:
        places: Iterable[int] = [partition]
    else:
        places = [partition_of(key, count)] if by_topic else range(count)
    found = []
    (now,) = checked((yield [strings.server_time()]))
    for at in places:
        where = pauses.parked_key(app.name, declared.name, at)
        held = yield from pauses.read(where)
        facts: Mapping[str, Any] = {"id": "", "error": reason, "time": now}
        yield from pauses.add(where, key, facts)
        found += [f"key {key} in partition {at}"] if key not in held else []
    checked((yield [_told(app, declared.name)]))
    return found


def _partitions(declared: Declared, partition: int | None) -> Steps[int]:
    """How many partitions there are. AppError if ``partition`` is none of them, or nobody has made the topic."""
    facts = yield from known(declared.topic.name)
    if facts is None or not facts.partitions:
        raise AppError(
            f"topic {declared.topic.name!r} is not on the server yet: nobody has sent to it, and no worker has run"
        )
    if partition is not None and not 0 <= partition < facts.partitions:
        raise AppError(
            f"topic {declared.topic.name!r} has the partitions 0 to {facts.partitions - 1}, so not {partition}"
        )
    return facts.partitions


def _told(app: Program, name: str) -> Call[Any]:
    return message(app.name, "paused", WHO, name)
