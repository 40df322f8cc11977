"""Records that are sent later: they wait in a stream of their own, and are moved to their partition when it is time.

    orders:delayed              the stream: one for the topic
    orders:delayed:mover        the claim of the worker that moves them

    delayed:due   +5000         milliseconds after the entry's own ID; without +, since 1970
    delayed:key   7             the bytes of the partition key; in a topic without keys ``delayed:turn``, empty
    id            7             the fields of the record, from here on
    item          tea

Rule 1: the times are the server's: ``delay`` counts from the ID that the server gives the entry.
Rule 2: the partition is decided when the record is moved, by its key: the topic may have grown meanwhile.
Rule 3: the first two fields are found by their places, so a record may have fields of these names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from tidelog.client import calls
from tidelog.client.entries import Entry, StreamId
from tidelog.client.steps import Steps, checked
from tidelog.topics.partition import canonical
from tidelog.topics.sending import BYTES, ROWS, Run, Sender, bulk
from tidelog.topics.settings import TopicError

GROUP: Final = "mover"  # the group on the stream
LONGEST: Final = 100 * 365 * 86_400_000  # ms of a delay
_DUE: Final = b"delayed:due"
_KEY: Final = b"delayed:key"
_TURN: Final = b"delayed:turn"

Delay = timedelta | float | None


def stream_of(name: str) -> str:
    """The key of the stream in which a topic's records wait."""
    return f"{name}:delayed"


def mover_of(name: str) -> str:
    """The key of the claim of whoever moves them. No topic's partition has a key like it: those end with a number."""
    return f"{name}:delayed:mover"


def due_text(name: str, delay: Delay, at: datetime | None) -> bytes | None:
    """What stands in the entry for ``delay`` or ``at``; None without either. TopicError if it makes no sense."""
    if delay is None and at is None:
        return None
    title = f"topic {name!r}"
    if at is not None:
        if delay is not None:
            raise TopicError(f"{title}: delay and at both say when the record is to be sent: give one")
        if not isinstance(at, datetime) or at.tzinfo is None:
            raise TopicError(f"{title}: at is a datetime with its zone (datetime.now(UTC) has one): {at!r}")
        return b"%d" % max(0, round(at.timestamp() * 1000))
    if isinstance(delay, bool) or not isinstance(delay, timedelta | int | float):
        raise TopicError(f"{title}: delay is seconds or a timedelta: {delay!r}")
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if not 0 <= seconds * 1000 <= LONGEST:
        raise TopicError(f"{title}: delay is from 0 seconds to 100 years: {delay!r}")
    return b"+%d" % round(seconds * 1000)


def send(sender: Sender, record: Any, due: bytes) -> Steps[StreamId]:
    """Append one record to the stream of those that wait; returns its ID there."""
    at = sender.keyed.partition(record, len(sender.streams))  # as it is today: whether there is room
    key = sender.keyed.key(record)
    fields, values = sender.codec.encode(record)
    yield from sender.room([at])
    head = [(_DUE, due), (_TURN, b"") if key is None else (_KEY, canonical(key))]
    (sent,) = checked((yield [calls.tappend(stream_of(sender.name), [*head, *zip(fields, values, strict=True)])]))
    if sender.retention.hard_limit is not None:
        yield from sender.settled([at])
    done: StreamId = sent
    return done


def send_window(sender: Sender, records: Sequence[Any], due: bytes) -> Steps[int]:
    """As ``send``, for the records of one window, by many in one command; returns how many."""
    touched = sorted(set(sender.keyed.partitions(records, len(sender.streams))))
    yield from sender.room(touched)
    runs: list[Run] = []
    for record in records:
        key = sender.keyed.key(record)
        fields, values = sender.codec.encode(record)
        names = (_DUE, _TURN if key is None else _KEY, *fields)
        if not runs or runs[-1].fields != names or runs[-1].number >= ROWS or runs[-1].size >= BYTES:
            runs.append(Run(names))
        runs[-1].add(bulk((due, b"" if key is None else canonical(key), *values)))
    checked((yield [run.append(stream_of(sender.name)) for run in runs]))
    if sender.retention.hard_limit is not None:
        yield from sender.settled(touched)
    return len(records)


@dataclass(frozen=True, slots=True)
class DelayedRecord:
    """A record that waits."""

    id: StreamId  # in the stream of those that wait
    due: int  # ms since 1970, by the server's clock
    key: bytes | None  # None: partitions take turns
    flat: tuple[bytes, ...]  # field, value, ...: the entry that it becomes


def read(entry: Entry) -> DelayedRecord | None:
    """What an entry of the stream says; None if it was not made by ``send``."""
    flat = entry.flat
    if len(flat) < 6 or flat[0] != _DUE or flat[2] not in (_KEY, _TURN):
        return None
    text = flat[1].removeprefix(b"+")
    if not text.isdigit() or len(text) > 18:
        return None
    due = int(text) if text == flat[1] else entry.id.ms + int(text)
    return DelayedRecord(entry.id, due, flat[3] if flat[2] == _KEY else None, flat[4:])


def again(waiting: DelayedRecord) -> list[bytes]:
    """The fields of the entry for a record that goes on waiting in another one."""
    head = [_TURN, b""] if waiting.key is None else [_KEY, waiting.key]
    return [_DUE, b"%d" % waiting.due, *head, *waiting.flat]
