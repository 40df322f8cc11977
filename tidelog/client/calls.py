"""The commands of tidelog-server, each defined once: what is sent, and how the reply is read.

A function here opens no connection: it returns a ``Call``, which ``Client`` (``client``) and ``AsyncClient`` (``aio``)
send each in their way. Both take their methods, with signatures and docstrings, from here; there
they lack nothing but the ``self``.

Rule 1: a reply may come in RESP2 or RESP3 form; ``read`` takes both.
Rule 2: bytes stay bytes. Text in arguments is sent as UTF-8, numbers as Python prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from tidelog.client.entries import (
    MISSING,
    Batch,
    Entry,
    GroupInfo,
    Info,
    Missing,
    Pending,
    PendingSummary,
    Published,
    Span,
    StreamId,
)

T = TypeVar("T")

Name = str | bytes  # a key, a field, a group
Value = str | bytes | int | float
#: Names to values; Any because a Mapping's keys are invariant: str and bytes both serve.
Fields = Mapping[Any, Value] | Sequence[tuple[Name, Value]]
#: Wherever an ID is taken: one of ours, an entry (its ID), ``ms.seq`` or what else the command knows as text
#: (``-``, ``+``, ``(ms.seq``), plain milliseconds, or a time with its zone.
IdLike = StreamId | Entry | str | bytes | int | datetime

NEW = ""  # as a last ID: only what arrives from now on


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One command, ready to be sent."""

    args: tuple[Value, ...]  # the command's name first; empty: nothing to ask, read(None) is the answer
    read: Callable[[Any], T]
    block: int | None = None  # ms for which the server may keep the reply; 0 = for ever; None: it doesn't


# -- arguments -----------------------------------------------------------------------------------------------
def id_text(id: IdLike) -> str | bytes:  # noqa: A002 - its name everywhere else
    """An ID as it is sent. ValueError for a time without its zone, which could mean any of 24 hours."""
    if isinstance(id, Entry):
        return str(id.id)
    if isinstance(id, datetime):
        if id.tzinfo is None:
            raise ValueError(f"a time needs its zone: {id.isoformat()} (datetime.now(UTC) has one)")
        return str(round(id.timestamp() * 1000))
    return id if isinstance(id, str | bytes) else str(id)


def _flat(fields: Fields) -> list[Value]:
    pairs = fields.items() if isinstance(fields, Mapping) else fields
    flat = [word for pair in pairs for word in pair]
    if not flat:
        raise ValueError("an entry has at least one field")
    return flat


# -- replies -------------------------------------------------------------------------------------------------
def _id(raw: bytes) -> StreamId:
    ms, _, seq = raw.partition(b".")
    return StreamId(int(ms), int(seq))


def _maybe_id(raw: bytes | None) -> StreamId | None:
    return None if raw is None else _id(raw)


def _entry(row: list[bytes]) -> Entry:
    return Entry(_id(row[0]), row[1:])


def _entries(reply: list[list[bytes]]) -> list[Entry]:
    return [_entry(row) for row in reply]


def _span(reply: list[bytes]) -> Span:
    return Span(_maybe_id(reply[0]), _id(reply[1]))


def _facts(reply: dict[bytes, Any] | list[Any]) -> dict[str, Any]:
    """A map: RESP3 has them, in RESP2 it is a flat array."""
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {name.decode(): value for name, value in pairs}


# -- appending -----------------------------------------------------------------------------------------------
def tappend(key: Name, fields: Fields) -> Call[StreamId]:
    """Append an entry and return its ID. ``fields``: a mapping, or pairs where a field occurs more than once."""
    return Call(("TAPPEND", key, *_flat(fields)), _id)


def tappev(key: Name, fields: Fields, *, count: int | None = None, ms: int | None = None) -> Call[StreamId]:
    """Append an entry, then evict all but the newest ``count``, or all whose age isn't under ``ms``. One of the two."""
    return Call(("TAPPEV", key, *_limit(count, ms), *_flat(fields)), _id)


def ttrim(key: Name, *, count: int | None = None, ms: int | None = None) -> Call[int]:
    """Evict as ``tappev`` does, without appending (TAPPEV without fields). Returns how many went."""
    return Call(("TAPPEV", key, *_limit(count, ms)), int)


def _limit(count: int | None, ms: int | None) -> tuple[str, int]:
    if count is not None and ms is None:
        return "COUNT", count
    if ms is not None and count is None:
        return "TIME", ms
    raise TypeError("give either count or ms")


def tmappend(key: Name, fields: Sequence[Name], rows: Iterable[Sequence[Value]]) -> Call[Span]:
    """Append many entries with the same fields in one command, all or nothing. Returns their first and last ID.

    ValueError where a row has more or fewer values than there are fields, or where there is no row.
    """
    return Call(("TMAPPEND", key, *_rows(fields, rows)), _span)


def _rows(fields: Sequence[Name], rows: Iterable[Sequence[Value]]) -> tuple[Value, ...]:
    values: list[Value] = []
    for number, row in enumerate(rows):
        if len(row) != len(fields):
            raise ValueError(f"row {number} has {len(row)} values for {len(fields)} fields")
        values += row
    if not values:
        raise ValueError("nothing to append")
    return "FIELDS", len(fields), *fields, "VALUES", *values


# -- all or nothing, once --------------------------------------------------------------------------------------
def tstage(stage: Name, ttl: int, key: Name, fields: Sequence[Name], rows: Iterable[Sequence[Value]]) -> Call[int]:
    """Keep entries for a stream aside until ``tpublish`` appends them, or ``ttl`` ms have passed since the last call
    with this stage, 0 = for ever. Returns how many entries the stage holds now, in all.

    A stage may take entries for several streams, from many calls. A call that was sent twice because its reply was lost
    stages its rows twice, and the count tells: then ``tdrop`` the stage and begin again.

    ValueError where a row has more or fewer values than there are fields, or where there is no row.
    """
    return Call(("TSTAGE", stage, ttl, key, *_rows(fields, rows)), int)


def tpublish(fence: Name, epoch: int, *stages: Name) -> Call[Published]:
    """Append all that is staged, in the order of the stages, in one step, and drop the stages: once for each epoch.

    The server remembers the last epoch of each fence. The same again appends nothing (``now`` is False), so a call
    whose reply was lost may be sent again; StaleEpochError for a lower one. NoStageError where a stage isn't there:
    then nothing has changed.
    """
    if not stages:
        raise ValueError("nothing to publish")
    return Call(("TPUBLISH", fence, epoch, *stages), lambda reply: Published(reply[0] == b"published", reply[1]))


def tdrop(*stages: Name) -> Call[int]:
    """Forget stages and what they hold. Returns how many there were; asks nothing without stages."""
    return Call(("TDROP", *stages), int) if stages else Call((), lambda _: 0)


# -- reading -------------------------------------------------------------------------------------------------
def tread(
    key: Name,
    last_id: IdLike = NEW,
    count: int = 100,
    *,
    block: int | None = None,
    group: Name | None = None,
    ttl: int = 0,
    retry: int | None = None,
    expire: int = 0,
    max_deliveries: int | None = None,
    deadletter: Name | None = None,
    with_info: bool = False,
) -> Call[Batch]:
    """Read up to ``count`` entries after ``last_id`` (excluded); without one, only what arrives from now on.

    block: wait up to so many ms for the first entry, 0 = for ever. If none came, the batch is empty and ``timed_out``.
    group, ttl: share the stream with the other readers of this group: each entry goes to one of them. The server
        keeps the group's place; ``last_id`` counts only for a group that is new. The group ends after ``ttl`` ms
        without a request, 0 = never; a reader blocked on it then gets ``NoGroupError``.
    retry, expire: entries must be acknowledged with ``tack``; one that wasn't is delivered again, to any reader, every
        ``retry`` ms, until ``expire`` ms after its first delivery (0 = for ever) or ``max_deliveries`` deliveries; it
        is then dropped, or appended to the stream ``deadletter``.
    with_info: ask also for the stream's first and last ID: ``batch.info``.
    """
    args: list[Value] = ["TREAD", key, id_text(last_id), count]
    if block is not None:
        args += ("BLOCK", block)
    if group is not None:
        args += ("GROUP", group, ttl)
    if retry is not None:
        args += ("RETRY", retry, expire)
        if max_deliveries is not None:
            args += ("MAXDELIVERIES", max_deliveries)
        if deadletter is not None:
            args += ("DEADLETTER", deadletter)
    elif expire or max_deliveries is not None or deadletter is not None:
        raise TypeError("expire, max_deliveries and deadletter need retry")
    if with_info:
        args.append("WITHINFO")

    def read(reply: list[list[bytes] | None] | None) -> Batch:
        if reply is None:
            return Batch(timed_out=True)
        info = None
        if with_info:
            head, *reply = reply
            info = _span(head) if head is not None else None
        items: list[Entry | Missing] = [MISSING if row is None else _entry(row) for row in reply]
        return Batch(items, info)

    return Call(tuple(args), read, block)


def trange(key: Name, start: IdLike = "-", end: IdLike = "+", count: int | None = None) -> Call[list[Entry]]:
    """The entries from ``start`` to ``end``, both included, oldest first. Plain ms or a time means that whole
    millisecond; ``"(ms.seq"`` excludes the end it names."""
    return Call(("TRANGE", key, id_text(start), id_text(end), *_count(count)), _entries)


def trevrange(key: Name, end: IdLike = "+", start: IdLike = "-", count: int | None = None) -> Call[list[Entry]]:
    """As ``trange``, newest first; note the order of the bounds."""
    return Call(("TREVRANGE", key, id_text(end), id_text(start), *_count(count)), _entries)


def _count(count: int | None) -> tuple[Value, ...]:
    return () if count is None else ("COUNT", count)


def tlen(key: Name) -> Call[int]:
    """How many entries there are; 0 for a missing key."""
    return Call(("TLEN", key), int)


def tcount(key: Name, start: IdLike = "-", end: IdLike = "+") -> Call[int]:
    """How many entries there are from ``start`` to ``end``, both included. Reads the index, not the entries."""
    return Call(("TCOUNT", key, id_text(start), id_text(end)), int)


def tseek(key: Name, last_id: IdLike, n: int) -> Call[StreamId | None]:
    """The ID of the n-th entry after ``last_id``, of the last one if there are fewer, None if there is none."""
    return Call(("TSEEK", key, id_text(last_id), n), _maybe_id)


def tinfo(key: Name) -> Call[Info]:
    """What the server knows of a stream. ResponseError if there is no such key."""

    def read(reply: dict[bytes, Any] | list[Any]) -> Info:
        facts = _facts(reply)
        return Info(
            length=facts["length"],
            first=_maybe_id(facts["first"]),
            last=_id(facts["last"]),
            entries_added=facts["entries-added"],
            evicted=facts["evicted"],
            evicted_to=_id(facts["evicted-to"]),
            nodes=facts["nodes"],
            memory_bytes=facts["memory-bytes"],
            disk_bytes=facts["disk-bytes"],
            groups=facts["groups"],
            pending=facts["pending"],
            redelivered=facts["redelivered"],
            expired=facts["expired"],
            deadlettered=facts["dead-lettered"],
        )

    return Call(("TINFO", key), read)


# -- groups --------------------------------------------------------------------------------------------------
def tack(key: Name, group: Name, *ids: IdLike) -> Call[int]:
    """Acknowledge messages: they won't be delivered again. Returns how many were pending; asks nothing without ids."""
    return _on_ids(("TACK", key, group), ids)


def tnack(key: Name, group: Name, *ids: IdLike, delay: int = 0) -> Call[int]:
    """Give messages back: they are due again now, or in ``delay`` ms. Returns how many were pending."""
    return _on_ids(("TNACK", key, group, "DELAY", delay) if delay else ("TNACK", key, group), ids)


def ttouch(key: Name, group: Name, ms: int, *ids: IdLike) -> Call[int]:
    """Still at work: the messages are due again ``ms`` from now, not earlier. Returns how many were pending."""
    return _on_ids(("TTOUCH", key, group, ms), ids)


def _on_ids(head: tuple[Value, ...], ids: tuple[IdLike, ...]) -> Call[int]:
    return Call((*head, *map(id_text, ids)), int) if ids else Call((), lambda _: 0)


def tpending(key: Name, group: Name) -> Call[PendingSummary]:
    """How many messages of a group wait for their acknowledgement, the lowest and highest ID, and the next due time."""

    def read(reply: list[Any]) -> PendingSummary:
        return PendingSummary(reply[0], _maybe_id(reply[1]), _maybe_id(reply[2]), reply[3])

    return Call(("TPENDING", key, group), read)


def tpending_range(
    key: Name, group: Name, start: IdLike = "-", end: IdLike = "+", count: int = 100
) -> Call[list[Pending]]:
    """The messages of a group that wait for their acknowledgement, by ID."""

    def read(reply: list[list[Any]]) -> list[Pending]:
        return [Pending(_id(row[0]), *row[1:]) for row in reply]

    return Call(("TPENDING", key, group, id_text(start), id_text(end), count), read)


def tgroup_list(key: Name) -> Call[list[GroupInfo]]:
    """The groups of a stream."""

    def read(reply: list[Any]) -> list[GroupInfo]:
        return [
            GroupInfo(
                name=facts["name"],
                offset=_id(facts["offset"]),
                ttl=facts["ttl"],
                pending=facts["pending"],
                readers=facts["readers"],
                redelivered=facts["redelivered"],
                expired=facts["expired"],
                deadlettered=facts["dead-lettered"],
            )
            for facts in map(_facts, reply)
        ]

    return Call(("TGROUP", "LIST", key), read)


def tgroup_setid(key: Name, group: Name, id: IdLike) -> Call[None]:  # noqa: A002 - its name everywhere else
    """Rewind a group, or move it on: the next new entry it delivers is the first after ``id``. Pending ones stay."""
    return Call(("TGROUP", "SETID", key, group, id_text(id)), lambda _: None)


def tgroup_destroy(key: Name, group: Name) -> Call[bool]:
    """End a group and its pending list. False if there was no such group."""
    return Call(("TGROUP", "DESTROY", key, group), bool)


# -- replicas ------------------------------------------------------------------------------------------------
def wait(replicas: int, timeout: int = 0) -> Call[int]:
    """Wait until so many replicas have what was written on this connection, at most ``timeout`` ms, 0 = for ever.

    Returns how many have it. A client that threads or tasks share has several connections: there, send it behind the
    write with ``together``.
    """
    return Call(("WAIT", replicas, timeout), int, timeout)


def waitaof(local: int, replicas: int, timeout: int = 0) -> Call[tuple[int, int]]:
    """As ``wait``, until it is on disk: at the server itself (``local`` 1, or 0 for "no matter") and at replicas.

    Returns both counts.
    """
    return Call(("WAITAOF", local, replicas, timeout), lambda reply: (reply[0], reply[1]), timeout)
