"""Delayed records: they are stored in a separate stream and moved to their partition when they are due.

    orders:delayed              the stream: one per topic
    orders:delayed:mover        the claim of the worker that moves them

    delayed:due   +5000         milliseconds after the entry's own ID; without +, since 1970
    delayed:key   7             the bytes of the partition key; in a topic without keys ``delayed:turn``, empty
    id            7             the fields of the record
    item          tea

Rule 1: all times are those of the server: ``delay`` starts at the ID that the server assigns to the entry.
Rule 2: the partition is determined by the key when the record is moved, since the topic may grow in the meantime.
Rule 3: the first two fields are identified by their positions, so a record may have fields with these names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from tidelog.client import calls, tracecontext
from tidelog.client.entries import Entry, StreamId
from tidelog.client.steps import Steps, checked
from tidelog.client.tracecontext import TraceContext
from tidelog.topics.partition import canonical
from tidelog.topics.sending import BYTES, ROWS, PartitionBatch, Sender, bulk
from tidelog.topics.settings import TopicError

GROUP: Final = "mover"  # the group on the stream
LONGEST: Final = 100 * 365 * 86_400_000  # ms of a delay
_DUE: Final = b"delayed:due"
_KEY: Final = b"delayed:key"
_TURN: Final = b"delayed:turn"

Delay = timedelta | float | None


def stream_of(name: str) -> str:
    """Return the key of the stream with a topic's delayed records."""
    return f"{name}:delayed"


def mover_of(name: str) -> str:
    """Return the key of the claim of the worker that moves them. Unlike it, keys of partitions end with a number."""
    return f"{name}:delayed:mover"


def due_text(name: str, delay: Delay, at: datetime | None) -> bytes | None:
    """Return the value of the entry's first field for ``delay`` or ``at``, or None. Raises TopicError if invalid."""
    if delay is None and at is None:
        return None
    title = f"topic {name!r}"
    if at is not None:
        if delay is not None:
            raise TopicError(f"{title}: delay and at exclude each other")
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
    """Append one record to the stream of delayed records and return its ID there."""
    at = sender.keyed.partition(record, len(sender.streams))  # its current partition must have room
    key = sender.keyed.key(record)
    fields, values = sender.encode(record)
    yield from sender.room([at])
    head = [(_DUE, due), (_TURN, b"") if key is None else (_KEY, canonical(key))]
    (sent,) = checked((yield [calls.tappend(stream_of(sender.name), [*head, *zip(fields, values, strict=True)])]))
    if sender.retention.hard_limit is not None:
        yield from sender.settled([at])
    done: StreamId = sent
    return done


def send_window(
    sender: Sender, records: Sequence[Any], due: bytes, context: TraceContext = tracecontext.NONE
) -> Steps[int]:  # fmt: skip
    """Append the records of one window like ``send``, many per command. Returns their number.

    ``context``: of the span that was current when the window was collected.
    """
    touched = sorted(set(sender.keyed.partitions(records, len(sender.streams))))
    yield from sender.room(touched)
    batches: list[PartitionBatch] = []
    for record in records:
        key = sender.keyed.key(record)
        fields, values = sender.encode(record, context)
        names = (_DUE, _TURN if key is None else _KEY, *fields)
        if not batches or batches[-1].fields != names or batches[-1].number >= ROWS or batches[-1].size >= BYTES:
            batches.append(PartitionBatch(names))
        batches[-1].add(bulk((due, b"" if key is None else canonical(key), *values)))
    checked((yield [batch.append(stream_of(sender.name)) for batch in batches]))
    if sender.retention.hard_limit is not None:
        yield from sender.settled(touched)
    return len(records)


@dataclass(frozen=True, slots=True)
class DelayedRecord:
    """A delayed record."""

    id: StreamId  # in the stream of delayed records
    due: int  # ms since 1970, on the server's clock
    key: bytes | None  # None: round-robin
    flat: tuple[bytes, ...]  # field, value, ... of the entry that is appended later


def read(entry: Entry) -> DelayedRecord | None:
    """Parse an entry of the stream; None if ``send`` did not write it."""
    flat = entry.flat
    if len(flat) < 6 or flat[0] != _DUE or flat[2] not in (_KEY, _TURN):
        return None
    text = flat[1].removeprefix(b"+")
    if not text.isdigit() or len(text) > 18:
        return None
    due = int(text) if text == flat[1] else entry.id.ms + int(text)
    return DelayedRecord(entry.id, due, flat[3] if flat[2] == _KEY else None, flat[4:])


def again(waiting: DelayedRecord) -> list[bytes]:
    """Return the fields of a new entry in the stream for a record that is still delayed."""
    head = [_TURN, b""] if waiting.key is None else [_KEY, waiting.key]
    return [_DUE, b"%d" % waiting.due, *head, *waiting.flat]
