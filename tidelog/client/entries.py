"""The results of commands: IDs, entries, batches, and descriptions of streams and groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple, final, overload

SEQ_MAX: Final = 2**64 - 1


class StreamId(NamedTuple):
    """The ID of an entry: when it was appended, and a counter within that millisecond. Ordered; prints as ``ms.seq``.

    No entry has the ID ``StreamId(0, 0)``. It represents the position before the first entry.
    """

    ms: int  # unix time in milliseconds, unsigned 64 bits
    seq: int = 0  # unsigned 64 bits

    @classmethod
    def parse(cls, text: str | bytes) -> StreamId:
        """Parse ``ms.seq``, ``ms-seq`` or ``ms`` (seq 0). Raises ValueError for any other text."""
        if isinstance(text, bytes):
            text = text.decode("ascii", "replace")
        ms, dot, seq = text.partition("." if "." in text else "-")
        if not (ms.isascii() and ms.isdigit()) or (dot and not (seq.isascii() and seq.isdigit())):
            raise ValueError(f"not a stream ID: {text!r}")
        made = cls(int(ms), int(seq or 0))
        if max(made) > SEQ_MAX:
            raise ValueError(f"not a stream ID: {text!r} (a part needs more than 64 bits)")
        return made

    @property
    def time(self) -> datetime:
        """The time of the append, in UTC. Raises OverflowError or ValueError beyond the year 9999."""
        seconds, ms = divmod(self.ms, 1000)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=ms * 1000)

    def __str__(self) -> str:
        return f"{self.ms}.{self.seq}"


@final
class Entry:
    """One entry of a stream: its ID and its fields with their values, in the order in which they were sent.

    Fields and values are bytes. A field may occur more than once: ``pairs`` has all occurrences; ``fields``, ``text()``
    and ``entry["name"]`` have the last one. ``entry["name"]`` raises KeyError if there is no such field.
    """

    __slots__ = ("id", "flat")

    id: StreamId
    flat: tuple[bytes, ...]  # field, value, field, value, ...

    def __init__(self, id: StreamId, flat: Iterable[bytes]) -> None:  # noqa: A002 - its name everywhere else
        self.id = id
        self.flat = tuple(flat)

    @property
    def pairs(self) -> list[tuple[bytes, bytes]]:
        return list(zip(self.flat[::2], self.flat[1::2], strict=True))

    @property
    def fields(self) -> dict[bytes, bytes]:
        return dict(self.pairs)

    def text(self, errors: str = "strict") -> dict[str, str]:
        """Return the fields decoded as UTF-8. ``errors`` is as for bytes.decode; strict: raises UnicodeDecodeError."""
        return {field.decode("utf-8", errors): value.decode("utf-8", errors) for field, value in self.pairs}

    def __getitem__(self, name: str | bytes) -> bytes:
        return self.fields[name.encode() if isinstance(name, str) else name]

    @overload
    def get(self, name: str | bytes) -> bytes | None: ...
    @overload
    def get(self, name: str | bytes, default: bytes) -> bytes: ...
    def get(self, name: str | bytes, default: bytes | None = None) -> bytes | None:
        return self.fields.get(name.encode() if isinstance(name, str) else name, default)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Entry):
            return NotImplemented
        return self.id == other.id and self.flat == other.flat

    def __hash__(self) -> int:
        return hash((self.id, self.flat))

    def __repr__(self) -> str:
        return f"Entry({self.id}, {self.fields!r})"


@final
class Missing:
    """A marker in a batch for entries that were evicted before they were delivered to this reader or group.

    At the start of a batch: an unknown number of entries was evicted between the given ID (or the group's offset) and
    the first entry returned. Elsewhere: an entry that was due for redelivery was evicted. It is false as a condition.
    """

    __slots__ = ()

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()


class Span(NamedTuple):
    """A first and a last ID.

    In the result of WITHINFO, ``first`` is None if the stream has no entry. ``last`` is the newest ID ever generated,
    or 0.0, and can be passed as the next ``last_id``.
    """

    first: StreamId | None
    last: StreamId


class Delayed(NamedTuple):
    """An entry that joins its stream later."""

    token: str
    due: int  # unix time in milliseconds
    flat: tuple[bytes, ...]  # field, value, field, value, ...

    @property
    def fields(self) -> dict[bytes, bytes]:
        """The fields with their values; the last one if a field occurs more than once."""
        return dict(zip(self.flat[::2], self.flat[1::2], strict=True))


class DelayedPage(NamedTuple):
    """The result of one ``tdelay_list``."""

    cursor: str  # of the next page; "0" after the last one
    entries: list[Delayed]  # in the order of their due times


class Published(NamedTuple):
    """The result of ``tpublish``."""

    now: bool  # False: this epoch was published earlier, so nothing was appended
    entries: int  # appended by this call


@final
class Batch(list[Entry | Missing]):
    """The result of one ``tread``: a list of entries and ``MISSING`` markers."""

    __slots__ = ("info", "timed_out")

    def __init__(self, items: Iterable[Entry | Missing] = (), info: Span | None = None, timed_out: bool = False):
        super().__init__(items)
        self.info = info  # first and last ID of the stream; None unless with_info=True
        self.timed_out = timed_out  # no entry arrived within ``block`` ms

    @property
    def entries(self) -> list[Entry]:
        """The entries without the ``MISSING`` markers."""
        return [item for item in self if isinstance(item, Entry)]

    @property
    def last_id(self) -> StreamId | None:
        """The newest ID in this batch, to be passed as the next ``last_id``. None if the batch has no entry."""
        return max((entry.id for entry in self.entries), default=None)


NOTHING: Final = StreamId(0, 0)


@dataclass(frozen=True, slots=True)
class StreamPolicy:
    """The retention policy of a stream (TCFG RETAIN). None: no such limit. At least one of the first three is needed.

    The server evicts an entry if any limit does not retain it.
    """

    count: int | None = None  # retain the newest entries, up to this number
    ms: int | None = None  # retain entries that are younger
    bytes: int | None = None  # retain the newest entries whose sizes add up to this; see TAPPEV BYTES
    groups: bool = False  # retain entries that some group has not read or acknowledged, and all without a group
    limit: int | None = None  # number of entries up to which ``groups`` retains entries
    exact: bool = False  # evict single entries. False: only whole nodes, of several hundred entries each


@dataclass(frozen=True, slots=True)
class Info:
    """The description of a stream by TINFO."""

    length: int  # current number of entries
    first: StreamId | None  # None if there is no entry
    last: StreamId  # newest ID ever generated, 0.0 if none; it remains after that entry is evicted
    entries_added: int  # since the stream was created
    evicted: int  # since the stream was created
    evicted_to: StreamId  # ID of the newest evicted entry, 0.0 if none
    nodes: int  # macro nodes, with several hundred entries each
    memory_bytes: int
    disk_bytes: int
    groups: int
    pending: int  # entries delivered with RETRY and not acknowledged, in all groups
    redelivered: int  # this and the next two: in all groups
    expired: int
    deadlettered: int
    deleted: int = 0  # entries deleted individually (XDEL), since the stream was created
    deleted_to: StreamId = NOTHING  # the highest of their IDs, 0.0 if none
    retain: StreamPolicy | None = None  # the retention policy
    delayed: int = 0  # entries that join it later
    tier: str | None = None  # the words of TCFG TIER, such as "BYTES 1000000000"; None: as configured

    def may_lack(self, id: StreamId) -> bool:  # noqa: A002
        """Return whether an entry with this ID may have existed and been evicted or deleted."""
        return id <= max(self.evicted_to, self.deleted_to)


class GroupInfo(NamedTuple):
    """The description of a group by TGROUP LIST.

    A tuple, because a page of the console reads thousands of them: a frozen dataclass takes twice the time to create.
    """

    name: bytes
    offset: StreamId  # ID of the newest entry delivered, or the ID to which it was set
    ttl: int  # ms without a request after which it is deleted; 0 = never
    pending: int  # entries delivered with RETRY and not acknowledged
    readers: int  # clients that are blocked on it
    redelivered: int
    expired: int
    deadlettered: int


@dataclass(frozen=True, slots=True)
class PendingSummary:
    """The summary of a group's pending entries by TPENDING. The IDs are None if nothing is pending."""

    count: int
    lowest: StreamId | None
    highest: StreamId | None
    next_due: int | None  # ms since 1970; also None if no entry will be redelivered


@dataclass(frozen=True, slots=True)
class Pending:
    """A pending entry: delivered with RETRY and not acknowledged. Times are in ms since 1970."""

    id: StreamId
    deliveries: int
    first_delivered: int
    due: int  # the time from which it may be redelivered
    expire: int  # the time at which it is dropped; 0 = never
