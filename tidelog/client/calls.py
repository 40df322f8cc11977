"""The commands of tidelog-server, each defined once: its arguments, and how its reply is read.

A function here sends nothing: it returns a ``Call``, which ``Client`` and ``AsyncClient`` send. Their methods have the
signatures and docstrings of these functions, so "returns" in a docstring means the result of the method.

Rule 1: a reply may be in RESP2 or RESP3 form; ``read`` accepts both.
Rule 2: bytes are not decoded. Text in arguments is sent as UTF-8, numbers in the form that Python prints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import pairwise
from secrets import randbits
from typing import Any, TypeVar

from tidelog.client.entries import (
    MISSING,
    Batch,
    Delayed,
    DelayedPage,
    Entry,
    GroupInfo,
    Info,
    Missing,
    Pending,
    PendingSummary,
    Published,
    Span,
    StreamId,
    StreamPolicy,
)
from tidelog.transport.call import Call as Call
from tidelog.transport.call import Name as Name
from tidelog.transport.call import Value as Value

#: From names to values. The key type is Any because that of a Mapping is invariant, and keys may be str or bytes.
Fields = Mapping[Any, Value] | Sequence[tuple[Name, Value]]
#: Accepted as an ID: a StreamId, an entry (its ID), text that the command accepts (``ms.seq``, ``-``, ``+``,
#: ``(ms.seq``), milliseconds since 1970, or a time with its zone.
IdLike = StreamId | Entry | str | bytes | int | datetime

NEW = ""  # as a last ID: only entries that arrive from now on

D = TypeVar("D", Info, GroupInfo)
_ID_FIELDS = {"first", "last", "evicted_to", "deleted_to", "offset"}  # fields of Info and GroupInfo that are IDs


# -- arguments -----------------------------------------------------------------------------------------------
def id_text(id: IdLike) -> str | bytes:  # noqa: A002 - its name everywhere else
    """Return an ID in the form that is sent. Raises ValueError for a time without its zone."""
    if type(id) is str:  # the most frequent case
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


def _described(kind: type[D], reply: dict[bytes, Any] | list[Any]) -> D:
    """Read a map: a map in RESP3, a flat array of names and values in RESP2. Names without a field are skipped."""
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    fields, values = _FIELDS[kind], {}
    for raw, value in pairs:
        found = fields.get(raw)
        if found is not None:
            name, read = found
            values[name] = value if read is None else read(value)
    return kind(**values)


_NUMBERS = {"COUNT": "count", "AGE": "ms", "BYTES": "bytes", "LIMIT": "limit"}  # words of a policy with a number


def _policy(raw: bytes | None) -> StreamPolicy | None:
    """Read the words of a retention policy. Words that this version does not know are skipped."""
    if raw is None:
        return None
    words = raw.decode().split()
    numbers = {_NUMBERS[word]: int(value) for word, value in pairwise(words) if word in _NUMBERS}
    return StreamPolicy(**numbers, groups="GROUPS" in words, exact="EXACT" in words)


def _words(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode()


_READ: dict[str, Callable[[Any], Any]] = {"retain": _policy, "tier": _words}


def _fields_of(kind: type[Any]) -> dict[bytes, tuple[str, Callable[[Any], Any] | None]]:
    """Return the fields of a description by their names in replies, each with what reads its value."""
    found: dict[bytes, tuple[str, Callable[[Any], Any] | None]] = {}
    for name in kind.__annotations__:
        read = _READ.get(name, _maybe_id if name in _ID_FIELDS else None)
        found[name.replace("_", "-").replace("deadlettered", "dead-lettered").encode()] = name, read
    return found


#: Determined once, because a page of the console reads thousands of descriptions.
_FIELDS = {kind: _fields_of(kind) for kind in (Info, GroupInfo)}


def _page(reply: list[Any]) -> DelayedPage:
    cursor, rows = reply
    return DelayedPage(_text(cursor), [Delayed(_text(row[0]), row[1], tuple(row[2:])) for row in rows])


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


# -- appending -----------------------------------------------------------------------------------------------
def tappend(key: Name, fields: Fields) -> Call[StreamId]:
    """Append an entry and return its ID. ``fields`` is a mapping, or pairs if a field occurs more than once.

    Raises ValueError if there are no fields.
    """
    return Call(("TAPPEND", key, *_flat(fields)), _id)


def tappev(
    key: Name, fields: Fields, *, count: int | None = None, ms: int | None = None, before: IdLike | None = None,
    bytes: int | None = None,  # noqa: A002 - the option of the command
) -> Call[StreamId]:  # fmt: skip
    """Append an entry, then evict all but the newest ``count``, or all that are ``ms`` milliseconds old or older, or
    all with an ID below ``before``, or all but the newest whose sizes add up to ``bytes``. The size of older entries is
    that in the store.

    Returns the entry's ID. Raises TypeError unless one of the four is given, and ValueError if there are no fields.
    """
    return Call(("TAPPEV", key, *_limit(count, ms, before, bytes), *_flat(fields)), _id)


_OPTION_WORDS = {"ID", "Id", "iD", "id", b"ID", b"Id", b"iD", b"id"}


def tdelay(
    key: Name, fields: Fields, *, ms: int | None = None, at: int | datetime | None = None, token: Name | None = None
) -> Call[str]:
    """Add an entry that joins the stream in ``ms`` milliseconds, or at a time: unix time in milliseconds, or a time
    with its zone. Returns its token.

    A ``token`` of your own creates one entry: the call can be repeated if its result is unknown. Without it, the server
    chooses one. Raises TypeError unless one of ``ms`` and ``at`` is given, and ValueError for a time without its zone
    or if there are no fields.
    """
    if (ms is None) == (at is None):
        raise TypeError("give one of ms and at")
    flat = _flat(fields)
    if token is None and flat[0] in _OPTION_WORDS:  # without a token, the server would parse this field as the option
        token = f"{time.time_ns() // 1_000_000}.{randbits(63)}"
    chosen: tuple[Value, ...] = () if token is None else ("ID", token)
    when: tuple[Value, ...] = ("AT", id_text(at)) if at is not None else ("IN", ms or 0)
    return Call(("TDELAY", key, *when, *chosen, *flat), _text)


def tdelay_cancel(key: Name, token: Name) -> Call[bool]:
    """Cancel a delayed entry. Returns False if there is none with this token: it may have joined the stream."""
    return Call(("TDELAY", key, "CANCEL", token), bool)


def tdelay_list(key: Name, cursor: str = "0", count: int | None = None) -> Call[DelayedPage]:
    """Return a page of delayed entries, at most ``count`` (up to 1000; None: 100), and the cursor of the next page."""
    return Call(("TDELAY", key, "LIST", cursor, *_count(count)), _page)


def tdelay_count(key: Name) -> Call[int]:
    """Return the number of delayed entries."""
    return Call(("TDELAY", key, "COUNT"), int)


def ttrim(
    key: Name, *, count: int | None = None, ms: int | None = None, before: IdLike | None = None,
    bytes: int | None = None,  # noqa: A002
) -> Call[int]:  # fmt: skip
    """Evict as ``tappev`` does, without appending (TAPPEV without fields). Returns how many entries were evicted.

    Raises TypeError unless one of ``count``, ``ms``, ``before`` and ``bytes`` is given.
    """
    return Call(("TAPPEV", key, *_limit(count, ms, before, bytes)), int)


def _limit(count: int | None, ms: int | None, before: IdLike | None, size: int | None) -> tuple[Value, Value]:
    given: list[tuple[Value, Value]] = []
    if count is not None:
        given.append(("COUNT", count))
    if ms is not None:
        given.append(("TIME", ms))
    if before is not None:
        given.append(("MINID", id_text(before)))
    if size is not None:
        given.append(("BYTES", size))
    if len(given) != 1:
        raise TypeError("give one of count, ms, before and bytes")
    return given[0]


def tmappend(key: Name, fields: Sequence[Name], rows: Iterable[Sequence[Value]]) -> Call[Span]:
    """Append many entries with the same fields in one command, all or nothing. Returns their first and last ID.

    Raises ValueError if the number of values in a row is not that of the fields, or if there are no rows.
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
    """Store entries for a stream in a stage until ``tpublish`` appends them. Returns the total entries of the stage.

    The stage expires ``ttl`` ms after the last call that added to it, 0 = never. It may have entries for several
    streams, from many calls. A call that is sent twice because its reply was lost stages its rows twice. The returned
    count shows that: drop the stage with ``tdrop`` and start again.

    Raises ValueError if the number of values in a row is not that of the fields, or if there are no rows.
    """
    return Call(("TSTAGE", stage, ttl, key, *_rows(fields, rows)), int)


def tpublish(fence: Name, epoch: int, *stages: Name, check: Name = "") -> Call[Published]:
    """Append the entries of these stages, in order and in one step, and drop the stages, once for each epoch.

    The server stores the last epoch of each fence. Publishing the same epoch again appends nothing (``now`` is False in
    the result), so a call whose reply was lost may be sent again. Raises StaleEpochError for an epoch below the last
    one, and NoStageError if a stage does not exist; in both cases nothing changes. Raises ValueError without stages.

    ``check`` identifies the content of the epoch, such as a hash of its input, in 1 to 64 bytes. The server stores it
    with the epoch. If the same epoch is published again with another check, nothing changes and ConflictError is
    raised. An epoch without a check is not compared.
    """
    if not stages:
        raise ValueError("nothing to publish")
    words = ("TPUBLISH", fence, epoch, *(("CHECK", check) if check else ()), *stages)
    return Call(words, lambda reply: Published(reply[0] == b"published", reply[1]))


def tdrop(*stages: Name) -> Call[int]:
    """Drop stages with their entries. Returns how many of them existed. Without stages, nothing is sent."""
    return Call(("TDROP", *stages), int) if stages else Call((), lambda _: 0)


def tpersist(*stages: Name) -> Call[int]:
    """Remove the time to live of stages. Returns how many of them existed. Without stages, nothing is sent."""
    return Call(("TPERSIST", *stages), int) if stages else Call((), lambda _: 0)


def tfence(fence: Name) -> Call[int | None]:
    """Return the epoch that was published last under a fence, or None."""
    return Call(("TFENCE", fence), lambda reply: reply)


# -- reading -------------------------------------------------------------------------------------------------
def tread(
    key: Name,
    last_id: IdLike = NEW,
    count: int = 100,
    *,
    max_bytes: int | None = None,
    block: int | None = None,
    group: Name | None = None,
    ttl: int = 0,
    retry: int | None = None,
    expire: int = 0,
    max_deliveries: int | None = None,
    deadletter: Name | None = None,
    with_info: bool = False,
) -> Call[Batch]:
    """Read up to ``count`` entries after ``last_id`` (excluded); without it, only new entries.

    max_bytes: no entry is added once the entries have this size; at least one is returned. The size is that on the
        wire, including the lengths of fields and values.
    block: wait up to this many ms for the first entry, 0 = without limit. If none arrives, the batch is empty and its
        ``timed_out`` is True.
    group, ttl: share the stream with the other readers of this group: each entry is delivered to one of them. The
        server stores the group's offset; ``last_id`` is used only for a new group. The group is deleted after ``ttl``
        ms without a request, 0 = never; a reader that is blocked on it then gets NoGroupError.
    retry, expire: entries must be acknowledged with ``tack``. Other entries are redelivered, to any reader, every
        ``retry`` ms, until ``expire`` ms after the first delivery (0 = no limit) or ``max_deliveries`` deliveries. Then
        they are dropped, or appended to the stream ``deadletter``.
    with_info: also return the stream's first and last ID, as ``batch.info``.

    Raises TypeError for ``expire``, ``max_deliveries`` or ``deadletter`` without ``retry``.
    """
    args: list[Value] = ["TREAD", key, id_text(last_id), count]
    if max_bytes is not None:
        args += ("MAXBYTES", max_bytes)
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

    Returns the keys of the streams that have such entries; none after a timeout. Nothing is read. Raises ValueError
    without keys.
    """
    # A first key named GROUP would be the option.
    pairs = sorted(keys.items(), key=lambda pair: pair[0].upper() in ("GROUP", b"GROUP"))
    return _twait([word for key, last_id in pairs for word in (key, id_text(last_id))], block)


def twait_group(group: Name, keys: Sequence[Name], *, block: int = 0) -> Call[list[bytes]]:
    """Wait as ``twait`` does, until one of these streams has new entries or due redeliveries for this group.

    The group does not expire while a client waits. Raises NoGroupError if a stream does not have the group, and
    ValueError without keys.
    """
    return _twait(["GROUP", group, *keys] if keys else [], block)


def _twait(words: list[Name], block: int) -> Call[list[bytes]]:
    if not words:
        raise ValueError("no key to wait for")
    return Call(("TWAIT", block, *words), lambda reply: reply or [], block)


def trange(key: Name, start: IdLike = "-", end: IdLike = "+", count: int | None = None) -> Call[list[Entry]]:
    """Return the entries from ``start`` to ``end``, both included, oldest first, and at most ``count`` of them.

    Milliseconds and times include the whole millisecond. ``"(ms.seq"`` is an exclusive bound.
    """
    return Call(("TRANGE", key, id_text(start), id_text(end), *_count(count)), _entries)


def trevrange(key: Name, end: IdLike = "+", start: IdLike = "-", count: int | None = None) -> Call[list[Entry]]:
    """Return entries like ``trange``, but newest first. Note the order of the bounds."""
    return Call(("TREVRANGE", key, id_text(end), id_text(start), *_count(count)), _entries)


def _count(count: int | None) -> tuple[Value, ...]:
    return () if count is None else ("COUNT", count)


def tlen(key: Name) -> Call[int]:
    """Return the number of entries in a stream; 0 if there is no such key."""
    return Call(("TLEN", key), int)


def tcount(key: Name, start: IdLike = "-", end: IdLike = "+") -> Call[int]:
    """Return the number of entries from ``start`` to ``end``, both included. The server reads only the index."""
    return Call(("TCOUNT", key, id_text(start), id_text(end)), int)


def tseek(key: Name, last_id: IdLike, n: int) -> Call[StreamId | None]:
    """Return the ID of the ``n``-th entry after ``last_id``, or of the last entry if there are fewer, or None."""
    return Call(("TSEEK", key, id_text(last_id), n), _maybe_id)


def tinfo(key: Name) -> Call[Info]:
    """Describe a stream. Raises redis.ResponseError if there is no such key."""
    return Call(("TINFO", key), partial(_described, Info))


# -- settings ------------------------------------------------------------------------------------------------
def tcfg(key: Name) -> Call[StreamPolicy | None]:
    """Return the retention policy of a stream; None if it has none.

    Raises redis.ResponseError if there is no such key.
    """

    def read(reply: Any) -> StreamPolicy | None:
        named = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
        return _policy(named[b"retain"])

    return Call(("TCFG", key), read)


def tcfg_retain(key: Name, policy: StreamPolicy | None, *, dry: bool = False) -> Call[int]:
    """Set the retention policy of a stream, and create the stream if the key does not exist. None removes the policy.

    From then on, the server evicts what the policy does not retain. Returns the number of entries that it evicts at
    once. With ``dry``, nothing changes. Raises redis.ResponseError for an invalid policy, and for None if there is no
    such key.
    """
    words: list[Value] = ["TCFG", key, "RETAIN"]
    if policy is None:
        words.append("NONE")
    else:
        for word, name in _NUMBERS.items():
            if word == "LIMIT" and policy.groups:
                words.append("GROUPS")
            number = getattr(policy, name)
            if number is not None:
                words += (word, number)
        if policy.exact:
            words.append("EXACT")
    if dry:
        words.append("DRY")
    return Call(tuple(words), int)


def tcfg_tier(key: Name, *, ms: int | None = None, bytes: int | None = None) -> Call[None]:  # noqa: A002
    """Set how much of a stream stays local if the server copies history to an object store: the entries that are
    younger than ``ms``, or the newest nodes with this size in the store. Without both, that of the server applies.

    Creates the stream if the key does not exist. Raises ValueError for both, and redis.ResponseError for invalid
    values.
    """
    if ms is not None and bytes is not None:
        raise ValueError("ms and bytes exclude each other: give one of them, or none for the default of the server")
    words: tuple[Value, ...] = ("DEFAULT",)
    if ms is not None:
        words = "AGE", ms
    elif bytes is not None:
        words = "BYTES", bytes
    return Call(("TCFG", key, "TIER", *words), lambda _: None)


# -- groups --------------------------------------------------------------------------------------------------
def tack(key: Name, group: Name, *ids: IdLike) -> Call[int]:
    """Acknowledge entries: they are not redelivered. Returns how many of them were pending.

    Without IDs, nothing is sent.
    """
    return _on_ids(("TACK", key, group), ids)


def tnack(key: Name, group: Name, *ids: IdLike, delay: int = 0) -> Call[int]:
    """Return entries to the group: they are due immediately, or in ``delay`` ms. Returns how many were pending.

    Without IDs, nothing is sent.
    """
    return _on_ids(("TNACK", key, group, "DELAY", delay) if delay else ("TNACK", key, group), ids)


def ttouch(key: Name, group: Name, ms: int, *ids: IdLike) -> Call[int]:
    """Postpone the redelivery of entries: they become due ``ms`` from now. Returns how many of them were pending.

    Without IDs, nothing is sent.
    """
    return _on_ids(("TTOUCH", key, group, ms), ids)


def _on_ids(head: tuple[Value, ...], ids: tuple[IdLike, ...]) -> Call[int]:
    return Call((*head, *map(id_text, ids)), int) if ids else Call((), lambda _: 0)


def tpending(key: Name, group: Name) -> Call[PendingSummary]:
    """Summarize the pending entries of a group: their number, lowest and highest ID, and the next due time.

    Raises NoGroupError if there is no such group.
    """

    def read(reply: list[Any]) -> PendingSummary:
        return PendingSummary(reply[0], _maybe_id(reply[1]), _maybe_id(reply[2]), reply[3])

    return Call(("TPENDING", key, group), read)


def tpending_range(
    key: Name, group: Name, start: IdLike = "-", end: IdLike = "+", count: int = 100
) -> Call[list[Pending]]:
    """Return at most ``count`` pending entries of a group from ``start`` to ``end``, ordered by ID.

    Raises NoGroupError if there is no such group.
    """

    def read(reply: list[list[Any]]) -> list[Pending]:
        return [Pending(_id(row[0]), *row[1:]) for row in reply]

    return Call(("TPENDING", key, group, id_text(start), id_text(end), count), read)


def tgroup_list(key: Name) -> Call[list[GroupInfo]]:
    """Return the groups of a stream; none if there is no such key."""
    return Call(("TGROUP", "LIST", key), lambda reply: [_described(GroupInfo, each) for each in reply])


def tgroup_setid(key: Name, group: Name, id: IdLike) -> Call[None]:  # noqa: A002 - its name everywhere else
    """Move a group's offset backward or forward: the next new entry that it delivers is the first one after ``id``.

    Pending entries remain pending.
    """
    return Call(("TGROUP", "SETID", key, group, id_text(id)), lambda _: None)


def tgroup_destroy(key: Name, group: Name) -> Call[bool]:
    """Delete a group and its pending list. Returns False if there was no such group."""
    return Call(("TGROUP", "DESTROY", key, group), bool)


# -- replicas ------------------------------------------------------------------------------------------------
def wait(replicas: int, timeout: int = 0) -> Call[int]:
    """Wait until ``replicas`` replicas have the writes of this connection, at most ``timeout`` ms, 0 = no limit.

    Returns how many have them. A client that threads or tasks share has several connections: send the write and
    ``wait`` on the same one with ``together``.
    """
    return Call(("WAIT", replicas, timeout), int, timeout)


def waitaof(local: int, replicas: int, timeout: int = 0) -> Call[tuple[int, int]]:
    """Like ``wait``, but wait until writes are on disk: on the server if ``local`` is 1, and on ``replicas`` replicas.

    Returns how many have them on disk: the server itself (0 or 1), and replicas.
    """
    return Call(("WAITAOF", local, replicas, timeout), lambda reply: (reply[0], reply[1]), timeout)
