"""The description of a stream, its groups, consumers, and pending entries, as a server reports it.

A stream and its groups are described in one step (MULTI), so that the position of a group is never behind the last ID
of the description. Idle times are converted to absolute times by the clock of the server, which is read in the same
step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import hiredis

from tidelog.client.entries import SEQ_MAX, StreamId
from tidelog.moving.endpoints import Command, Endpoint
from tidelog.moving.errors import MovingError

ROWS: Final = 1000  # pending entries per command
ZERO: Final = StreamId(0, 0)
NEVER: Final = -1  # a key without expiry
AT_ONCE: Final = 50  # streams per round trip


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group of a stream."""

    name: bytes
    last: StreamId  # last-delivered-id
    read: int | None  # entries-read; None: unknown
    pending: int
    consumers: int


@dataclass(frozen=True, slots=True)
class StreamDescription:
    """A stream at one point in time."""

    length: int
    first: StreamId | None  # of the oldest entry
    newest: StreamId | None  # of the newest entry
    last: StreamId  # last-generated-id
    added: int | None  # entries-added; None: not reported (before 7.0)
    max_deleted: StreamId | None  # None: not reported
    expires: int  # ms since 1970; NEVER
    largest: int  # size of the larger one of the oldest and the newest entry, in bytes
    retain: bytes = b""  # the retention policy in the words of TCFG; empty: none, or a Redis server
    tier: bytes = b""  # likewise, of TCFG TIER
    groups: dict[bytes, GroupDescription] = field(default_factory=dict)

    def is_trimmed(self, at: StreamId) -> bool:
        """Return whether an entry with this ID was trimmed, because it would be older than the oldest."""
        return self.first is None or at < self.first


@dataclass(frozen=True, slots=True)
class ConsumerDescription:
    """A consumer of a group."""

    name: bytes
    pending: int
    seen: int  # ms since 1970, by the clock of its server


@dataclass(frozen=True, slots=True)
class PendingDescription:
    """An entry that was delivered and not acknowledged."""

    id: StreamId
    consumer: bytes
    delivered: int  # ms since 1970, by the clock of its server
    count: int  # deliveries


def dashed(at: StreamId) -> str:
    """Format an ID as Redis does."""
    return f"{at.ms}-{at.seq}"


def expiry_slack(end: Endpoint) -> int:
    """Return the tolerance for expiry times in ms."""
    return 0 if end.version >= (7, 0) else 1000


def expiry_command(end: Endpoint) -> str:
    """Return the command that ``expiry_of`` needs: before 7.0, a server reports only the remaining time."""
    return "PEXPIRETIME" if end.version >= (7, 0) else "PTTL"


def expiry_of(end: Endpoint, reply: int, time: list[bytes]) -> int:
    """Return the expiry time of a key, or NEVER. ``time``: the reply to TIME in the same step."""
    return max(reply + clock(time) if reply >= 0 and end.version < (7, 0) else reply, NEVER)


def text(name: bytes) -> str:
    """Decode a key or a name, and escape bytes that are not UTF-8."""
    return name.decode("utf-8", "backslashreplace")


def after(at: StreamId) -> StreamId:
    """Return the next ID."""
    return StreamId(at.ms, at.seq + 1) if at.seq < SEQ_MAX else StreamId(at.ms + 1)


def streams(end: Endpoint, keys: Sequence[bytes]) -> Iterator[tuple[bytes, StreamDescription | None]]:
    """Yield each key with its stream; None if the key does not exist any more or has another type."""
    expiry = expiry_command(end)
    for begin in range(0, len(keys), AT_ONCE):
        part = keys[begin : begin + AT_ONCE]
        units: list[list[Command]] = [
            [("XINFO", "STREAM", key), ("XINFO", "GROUPS", key), (expiry, key), ("TIME",)] for key in part
        ]
        for key, replies in zip(part, end.at_once(units), strict=True):
            yield key, _stream(end, replies)


def stream(end: Endpoint, key: bytes) -> StreamDescription | None:
    """Return one stream, as ``streams`` does."""
    ((_, found),) = streams(end, [key])
    return found


def _stream(end: Endpoint, replies: list[Any]) -> StreamDescription | None:
    info, groups, left, time = replies
    if isinstance(info, hiredis.ReplyError):
        if str(info).startswith("NOPERM"):
            raise end.refused(("XINFO", "STREAM"), str(info))
        return None  # no such key, or WRONGTYPE
    for reply, command in ((groups, ("XINFO", "GROUPS")), (left, ("PTTL",)), (time, ("TIME",))):
        if isinstance(reply, hiredis.ReplyError):
            raise end.refused(command, str(reply))
    fields = pairs(info)
    added = fields.get("entries-added")
    oldest, newest = fields["first-entry"], fields["last-entry"]
    return StreamDescription(
        length=fields["length"],
        first=StreamId.parse(oldest[0]) if oldest else None,
        newest=StreamId.parse(newest[0]) if newest else None,
        last=StreamId.parse(fields["last-generated-id"]),
        added=added,
        max_deleted=_maybe(fields.get("max-deleted-entry-id")),
        expires=expiry_of(end, left, time),
        largest=max((sum(map(len, entry[1])) for entry in (oldest, newest) if entry), default=0),
        retain=fields.get("retain", b""),
        tier=fields.get("tier", b""),
        groups={each.name: each for each in (_group(row, added) for row in groups)},
    )


def _group(row: list[Any], added: int | None) -> GroupDescription:
    fields = pairs(row)
    read = fields.get("entries-read")
    if read is not None and added is not None:
        read = min(read, added)  # Redis up to 8.2 can report more than entries-added, which not every target accepts
    return GroupDescription(
        fields["name"], StreamId.parse(fields["last-delivered-id"]), read, fields["pending"], fields["consumers"]
    )


def consumers(end: Endpoint, key: bytes, group: bytes) -> dict[bytes, ConsumerDescription]:
    """Return the consumers of a group by name."""
    ((time, reply),) = end.at_once([[("TIME",), ("XINFO", "CONSUMERS", key, group)]])
    if isinstance(reply, hiredis.ReplyError):
        raise end.refused(("XINFO", "CONSUMERS"), str(reply))
    now = clock(time)
    found = [pairs(row) for row in reply]
    return {each["name"]: ConsumerDescription(each["name"], each["pending"], now - each["idle"]) for each in found}


def pending(end: Endpoint, key: bytes, group: bytes) -> Iterator[PendingDescription]:
    """Yield the pending entries of a group by ID, page by page."""
    begin = ZERO
    while True:
        ask: Command = ("XPENDING", key, group, dashed(begin), "+", ROWS)
        ((time, rows),) = end.at_once([[("TIME",), ask]])
        if isinstance(rows, hiredis.ReplyError):
            raise end.refused(ask, str(rows))
        now = clock(time)
        for at, consumer, idle, count in rows:
            begin = StreamId.parse(at)
            yield PendingDescription(begin, consumer or b"", now - idle, count)
        if len(rows) < ROWS:
            return
        begin = after(begin)


def pairs(row: list[Any]) -> dict[str, Any]:
    """Return the names and values of a flat array."""
    if not isinstance(row, list):
        raise MovingError(f"a server sent {row!r} where names and values were expected")
    return {name.decode(): value for name, value in zip(row[::2], row[1::2], strict=True)}


def clock(reply: list[bytes]) -> int:
    """Parse the reply to TIME as ms."""
    return int(reply[0]) * 1000 + int(reply[1]) // 1000


def _maybe(raw: bytes | None) -> StreamId | None:
    return None if raw is None else StreamId.parse(raw)
