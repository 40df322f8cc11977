"""The commands of tidelog-server, each defined once: what is sent, and how the reply is read.

A function here sends nothing: it returns a ``Call``, which ``Client`` and ``AsyncClient`` send. Their methods have the
signatures and docstrings of these functions, so "returns" in a docstring means what the method returns.

Rule 1: a reply may be in RESP2 or RESP3 form; ``read`` takes both.
Rule 2: bytes stay bytes. Text in arguments is sent as UTF-8, numbers as Python prints them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

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
from tidelog.transport.call import Call as Call
from tidelog.transport.call import Name as Name
from tidelog.transport.call import Value as Value

#: Names to values. Any: a Mapping's key type is invariant, and keys may be str or bytes.
Fields = Mapping[Any, Value] | Sequence[tuple[Name, Value]]
#: What is accepted as an ID: a StreamId, an entry (its ID), text that the command accepts (``ms.seq``, ``-``, ``+``,
#: ``(ms.seq``), milliseconds since 1970, or a time with its zone.
IdLike = StreamId | Entry | str | bytes | int | datetime

NEW = ""  # as a last ID: only entries that arrive from now on


# -- arguments -----------------------------------------------------------------------------------------------
def id_text(id: IdLike) -> str | bytes:  # noqa: A002 - its name everywhere else
    """An ID as it is sent. ValueError for a time without its zone."""
    if type(id) is str:  # nearly all are
        return id
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


def read_span(reply: list[bytes]) -> Span:
    return Span(_maybe_id(reply[0]), _id(reply[1]))


def _facts(reply: dict[bytes, Any] | list[Any]) -> dict[str, Any]:
    """A map in RESP3, a flat array of names and values in RESP2."""
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {name.decode(): value for name, value in pairs}


# -- appending -----------------------------------------------------------------------------------------------
def tappend(key: Name, fields: Fields) -> Call[StreamId]:
    """Append an entry and return its ID. ``fields`` is a mapping, or pairs if a field occurs more than once.

    ValueError without fields.
    """
    return Call(("TAPPEND", key, *_flat(fields)), _id)


def tappev(
    key: Name, fields: Fields, *, count: int | None = None, ms: int | None = None, before: IdLike | None = None
) -> Call[StreamId]:
    """Append an entry, then evict all but the newest ``count``, or all that are ``ms`` milliseconds old or older, or
    all with an ID below ``before``.

    Returns the entry's ID. TypeError unless one of the three is given, ValueError without fields.
    """
    return Call(("TAPPEV", key, *_limit(count, ms, before), *_flat(fields)), _id)


def ttrim(
    key: Name, *, count: int | None = None, ms: int | None = None, before: IdLike | None = None
) -> Call[int]:  # fmt: skip
    """Evict as ``tappev`` does, without appending (TAPPEV without fields). Returns how many entries were evicted.

    TypeError unless one of ``count``, ``ms`` and ``before`` is given.
    """
    return Call(("TAPPEV", key, *_limit(count, ms, before)), int)


def _limit(count: int | None, ms: int | None, before: IdLike | None) -> tuple[Value, Value]:
    given: list[tuple[Value, Value]] = []
    if count is not None:
        given.append(("COUNT", count))
    if ms is not None:
        given.append(("TIME", ms))
    if before is not None:
        given.append(("MINID", id_text(before)))
    if len(given) != 1:
        raise TypeError("give one of count, ms and before")
    return given[0]


def tmappend(key: Name, fields: Sequence[Name], rows: Iterable[Sequence[Value]]) -> Call[Span]:
    """Append many entries with the same fields in one command, all or nothing. Returns their first and last ID.

    ValueError if a row has more or fewer values than there are fields, or if there is no row.
    """
    return Call(("TMAPPEND", key, *_rows(fields, rows)), read_span)


def _rows(fields: Sequence[Name], rows: Iterable[Sequence[Value]]) -> tuple[Value, ...]:
    values: list[Value] = []
    for number, row in enumerate(rows):
        if len(row) != len(fields):
            raise ValueError(f"row {number} has {len(row)} values for {len(fields)} fields")
        values += row
    if not values:
        raise ValueError("nothing to append")
    return "FIELDS", len(fields), *fields, "VALUES", *values


# -- staging and publishing ------------------------------------------------------------------------------------
def tstage(stage: Name, ttl: int, key: Name, fields: Sequence[Name], rows: Iterable[Sequence[Value]]) -> Call[int]:
    """Keep entries for a stream aside, in a stage, until ``tpublish`` appends them. Returns the stage's entries in all.

    The stage ends ``ttl`` ms after the last call that added to it, 0 = never. It may hold entries for several streams,
    from many calls. A call that is sent twice because its reply was lost stages its rows twice. The count returned
    shows that: then ``tdrop`` the stage and begin again.

    ValueError if a row has more or fewer values than there are fields, or if there is no row.
    """
    return Call(("TSTAGE", stage, ttl, key, *_rows(fields, rows)), int)


def tpublish(fence: Name, epoch: int, *stages: Name, check: Name = "") -> Call[Published]:
    """Append everything in these stages, in their order and in one step, and drop the stages: once for each epoch.

    The server remembers the last epoch of each fence. The same epoch again appends nothing (``now`` is False in the
    result), so a call whose reply was lost may be sent again. StaleEpochError for an epoch below the last one,
    NoStageError if a stage does not exist: in both cases nothing has changed. ValueError without stages.

    ``check`` says what the epoch stands for, such as a hash of its input, in 1 to 64 bytes. The server keeps it with
    the epoch: ConflictError where the same epoch comes again with another one, and nothing has changed. An epoch that
    has no check is not compared.
    """
    if not stages:
        raise ValueError("nothing to publish")
    words = ("TPUBLISH", fence, epoch, *(("CHECK", check) if check else ()), *stages)
    return Call(words, lambda reply: Published(reply[0] == b"published", reply[1]))


def tdrop(*stages: Name) -> Call[int]:
    """Drop stages with their entries. Returns how many of them existed. Without stages nothing is sent."""
    return Call(("TDROP", *stages), int) if stages else Call((), lambda _: 0)


def tfence(fence: Name) -> Call[int | None]:
    """The epoch that was published last under a fence; None if none was."""
    return Call(("TFENCE", fence), lambda reply: reply)


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
    """Read up to ``count`` entries after ``last_id`` (excluded); without it, only entries that arrive from now on.

    block: wait up to so many ms for the first entry, 0 = without limit. If none came, the batch is empty and its
        ``timed_out`` is True.
    group, ttl: share the stream with the other readers of this group: each entry goes to one of them. The server keeps
        the group's offset; ``last_id`` counts only for a new group. The group ends after ``ttl`` ms without a request,
        0 = never; a reader blocked on it then gets NoGroupError.
    retry, expire: entries must be acknowledged with ``tack``. One that wasn't is delivered again, to any reader, every
        ``retry`` ms, until ``expire`` ms after its first delivery (0 = no limit) or ``max_deliveries`` deliveries. Then
        it is dropped, or appended to the stream ``deadletter``.
    with_info: return the stream's first and last ID too, as ``batch.info``.

    TypeError for ``expire``, ``max_deliveries`` or ``deadletter`` without ``retry``.
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
            info = read_span(head) if head is not None else None
        items: list[Entry | Missing] = [MISSING if row is None else _entry(row) for row in reply]
        return Batch(items, info)

    return Call(tuple(args), read, block)


def twait(keys: Mapping[Any, IdLike], *, block: int = 0) -> Call[list[bytes]]:
    """Wait up to ``block`` ms, 0 = without limit, until one of these streams has entries after the ID given for it.

    Returns the keys of those that have, none if the time is over. Nothing is read. ValueError without keys.
    """
    pairs = sorted(keys.items(), key=lambda pair: pair[0].upper() in ("GROUP", b"GROUP"))  # first, it is an option
    return _twait([word for key, last_id in pairs for word in (key, id_text(last_id))], block)


def twait_group(group: Name, keys: Sequence[Name], *, block: int = 0) -> Call[list[bytes]]:
    """Wait as ``twait`` does, until there is something for this group to read in one of these streams: new entries, or
    messages that are due.

    The group does not end while a client waits. NoGroupError if a stream doesn't have it. ValueError without keys.
    """
    return _twait(["GROUP", group, *keys] if keys else [], block)


def _twait(words: list[Name], block: int) -> Call[list[bytes]]:
    if not words:
        raise ValueError("no key to wait for")
    return Call(("TWAIT", block, *words), lambda reply: reply or [], block)


def trange(key: Name, start: IdLike = "-", end: IdLike = "+", count: int | None = None) -> Call[list[Entry]]:
    """The entries from ``start`` to ``end``, both included, oldest first; the first ``count`` of them if it is given.

    Milliseconds and times stand for the whole millisecond. ``"(ms.seq"`` is a bound that is excluded.
    """
    return Call(("TRANGE", key, id_text(start), id_text(end), *_count(count)), _entries)


def trevrange(key: Name, end: IdLike = "+", start: IdLike = "-", count: int | None = None) -> Call[list[Entry]]:
    """As ``trange``, newest first. Note the order of the bounds."""
    return Call(("TREVRANGE", key, id_text(end), id_text(start), *_count(count)), _entries)


def _count(count: int | None) -> tuple[Value, ...]:
    return () if count is None else ("COUNT", count)


def tlen(key: Name) -> Call[int]:
    """The number of entries in a stream; 0 if there is no such key."""
    return Call(("TLEN", key), int)


def tcount(key: Name, start: IdLike = "-", end: IdLike = "+") -> Call[int]:
    """The number of entries from ``start`` to ``end``, both included. Reads the index, not the entries."""
    return Call(("TCOUNT", key, id_text(start), id_text(end)), int)


def tseek(key: Name, last_id: IdLike, n: int) -> Call[StreamId | None]:
    """The ID of the ``n``-th entry after ``last_id``; of the last one if there are fewer, None if there is none."""
    return Call(("TSEEK", key, id_text(last_id), n), _maybe_id)


def tinfo(key: Name) -> Call[Info]:
    """Facts about a stream. redis.ResponseError if there is no such key."""

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
            deleted=facts.get("deleted", 0),  # earlier servers don't say it
            deleted_to=_id(facts.get("deleted-to", b"0.0")),
        )

    return Call(("TINFO", key), read)


# -- groups --------------------------------------------------------------------------------------------------
def tack(key: Name, group: Name, *ids: IdLike) -> Call[int]:
    """Acknowledge messages: they won't be delivered again. Returns how many of them were pending.

    Without IDs nothing is sent.
    """
    return _on_ids(("TACK", key, group), ids)


def tnack(key: Name, group: Name, *ids: IdLike, delay: int = 0) -> Call[int]:
    """Give messages back: they are due again now, or in ``delay`` ms. Returns how many of them were pending.

    Without IDs nothing is sent.
    """
    return _on_ids(("TNACK", key, group, "DELAY", delay) if delay else ("TNACK", key, group), ids)


def ttouch(key: Name, group: Name, ms: int, *ids: IdLike) -> Call[int]:
    """Keep messages for longer: they are due again ``ms`` from now. Returns how many of them were pending.

    Without IDs nothing is sent.
    """
    return _on_ids(("TTOUCH", key, group, ms), ids)


def _on_ids(head: tuple[Value, ...], ids: tuple[IdLike, ...]) -> Call[int]:
    return Call((*head, *map(id_text, ids)), int) if ids else Call((), lambda _: 0)


def tpending(key: Name, group: Name) -> Call[PendingSummary]:
    """The pending messages of a group in figures: how many, lowest and highest ID, when the next one is due.

    NoGroupError if there is no such group.
    """

    def read(reply: list[Any]) -> PendingSummary:
        return PendingSummary(reply[0], _maybe_id(reply[1]), _maybe_id(reply[2]), reply[3])

    return Call(("TPENDING", key, group), read)


def tpending_range(
    key: Name, group: Name, start: IdLike = "-", end: IdLike = "+", count: int = 100
) -> Call[list[Pending]]:
    """The pending messages of a group from ``start`` to ``end``, by ID, at most ``count``.

    NoGroupError if there is no such group.
    """

    def read(reply: list[list[Any]]) -> list[Pending]:
        return [Pending(_id(row[0]), *row[1:]) for row in reply]

    return Call(("TPENDING", key, group, id_text(start), id_text(end), count), read)


def tgroup_list(key: Name) -> Call[list[GroupInfo]]:
    """The groups of a stream; none if there is no such key."""

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
    """Move a group's offset, back or on: the next new entry it delivers is the first one after ``id``.

    Pending messages stay pending.
    """
    return Call(("TGROUP", "SETID", key, group, id_text(id)), lambda _: None)


def tgroup_destroy(key: Name, group: Name) -> Call[bool]:
    """Remove a group and its pending list. False if there was no such group."""
    return Call(("TGROUP", "DESTROY", key, group), bool)


# -- replicas ------------------------------------------------------------------------------------------------
def wait(replicas: int, timeout: int = 0) -> Call[int]:
    """Wait until so many replicas have what was written on this connection, at most ``timeout`` ms, 0 = no limit.

    Returns how many have it. A client that is shared by threads or tasks has several connections: send the write and
    ``wait`` on one of them with ``together``.
    """
    return Call(("WAIT", replicas, timeout), int, timeout)


def waitaof(local: int, replicas: int, timeout: int = 0) -> Call[tuple[int, int]]:
    """As ``wait``, until it is on disk: on the server itself if ``local`` is 1, and on so many replicas.

    Returns how many have it on disk: the server itself (0 or 1), replicas.
    """
    return Call(("WAITAOF", local, replicas, timeout), lambda reply: (reply[0], reply[1]), timeout)
