"""Delayed records: entries that join their partition when they are due. The server delivers them (TDELAY).

Rule 1: the partition is determined by the key when the record is sent.
Rule 2: all times are those of the server: ``delay`` starts when it receives the record.
Rule 3: earlier versions stored the delayed records of ``orders`` in the stream ``orders:delayed``, from which a worker
moved them. This version does not deliver them, but reports them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from tidelog.client import calls, tracecontext
from tidelog.client.entries import StreamId
from tidelog.client.steps import Steps, checked
from tidelog.client.tracecontext import TraceContext
from tidelog.topics.groupprogress import unfinished
from tidelog.topics.sending import Sender
from tidelog.topics.settings import TopicError
from tidelog.transport.call import Call, Value

LONGEST: Final = 100 * 365 * 86_400_000  # ms of a delay

_EARLIER_FIELD: Final = b"delayed:due"  # the first field of a record in the stream of earlier versions
_EARLIER_GROUP: Final = "mover"

Delay = timedelta | float | None


class Due(NamedTuple):
    """When a record is due: in ``ms`` milliseconds, or ``at`` a time in ms since 1970."""

    ms: int | None
    at: int | None


def due_of(name: str, delay: Delay, at: datetime | None) -> Due | None:
    """Return when a record with these arguments is due; None: at once. Raises TopicError if they are invalid."""
    if delay is None and at is None:
        return None
    title = f"topic {name!r}"
    if at is not None:
        if delay is not None:
            raise TopicError(f"{title}: delay and at exclude each other")
        if not isinstance(at, datetime) or at.tzinfo is None:
            raise TopicError(f"{title}: at is a datetime with its zone (datetime.now(UTC) has one): {at!r}")
        return Due(None, max(0, round(at.timestamp() * 1000)))
    if isinstance(delay, bool) or not isinstance(delay, timedelta | int | float):
        raise TopicError(f"{title}: delay is seconds or a timedelta: {delay!r}")
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if not 0 <= seconds * 1000 <= LONGEST:
        raise TopicError(f"{title}: delay is from 0 seconds to 100 years: {delay!r}")
    return Due(round(seconds * 1000), None)


def undelivered(name: str) -> Steps[int]:
    """Return the number of a topic's records that an earlier version delayed and did not deliver (Rule 3)."""
    stream = f"{name}:delayed"
    (newest,) = yield [calls.trevrange(stream, count=1)]
    if isinstance(newest, Exception) or not newest or newest[0].flat[0] != _EARLIER_FIELD:
        return 0
    return (yield from unfinished(stream, _EARLIER_GROUP))


def send(sender: Sender, record: Any, due: Due) -> Steps[StreamId]:
    """Delay one record and return the token of its entry, which has the form of an ID."""
    at = sender.keyed.partition(record, len(sender.streams))  # it must have room
    fields, values = sender.encode(record)
    yield from sender.room([at])
    (token,) = checked((yield [_delayed(sender.streams[at], fields, values, due)]))
    if sender.retention.hard_limit is not None:
        yield from sender.settled([at])
    return StreamId.parse(token)


def send_window(
    sender: Sender, records: Sequence[Any], due: Due, context: TraceContext = tracecontext.NONE
) -> Steps[int]:  # fmt: skip
    """Delay the records of one window in one pipeline. Returns their number.

    ``context``: of the span that was current when the window was collected.
    """
    places = sender.keyed.partitions(records, len(sender.streams))
    touched = sorted(set(places))
    yield from sender.room(touched)
    encoded = [sender.encode(record, context) for record in records]
    checked(
        (
            yield [
                _delayed(sender.streams[at], fields, values, due)
                for at, (fields, values) in zip(places, encoded, strict=True)
            ]
        )
    )
    if sender.retention.hard_limit is not None:
        yield from sender.settled(touched)
    return len(records)


def _delayed(stream: str, fields: Sequence[str], values: Sequence[Value], due: Due) -> Call[str]:
    return calls.tdelay(stream, list(zip(fields, values, strict=True)), ms=due.ms, at=due.at)
