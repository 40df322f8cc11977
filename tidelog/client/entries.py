"""What comes back from the server, as small typed objects: IDs, entries, markers, descriptions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple, final, overload

SEQ_MAX: Final = 2**64 - 1


class StreamId(NamedTuple):
    """The ID of an entry: when it was added, and a counter within that millisecond. Ordered; prints as ``ms.seq``.

    ``StreamId(0, 0)`` is never given to an entry: it means "before the first".
    """

    ms: int  # unix time in milliseconds, unsigned 64 bits
    seq: int = 0  # unsigned 64 bits

    @classmethod
    def parse(cls, text: str | bytes) -> StreamId:
        """From ``ms.seq``, ``ms-seq`` or plain ``ms`` (seq 0). ValueError for anything else."""
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
        """When the entry was added, in UTC. OverflowError beyond the year 9999."""
        seconds, ms = divmod(self.ms, 1000)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=ms * 1000)

    def __str__(self) -> str:
        return f"{self.ms}.{self.seq}"


@final
class Entry:
    """One message: its ID and its field-value pairs, in the order in which they were sent.

    Fields and values are bytes, as the server keeps them. A field may occur more than once: ``pairs`` has them all,
    ``fields``, ``text()`` and ``entry["name"]`` the last of each name.
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
        """The fields decoded as UTF-8. ``errors`` as for bytes.decode; UnicodeDecodeError if strict and not UTF-8."""
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
    """Stands where entries are gone: evicted before this reader or group came to them.

    First in a batch: entries between the given ID (or the group's offset) and the first one returned were evicted; how
    many can't be told. Elsewhere: a message that was due for redelivery is gone. False in a condition.
    """

    __slots__ = ()

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()


class Span(NamedTuple):
    """A first and a last ID. As WITHINFO's answer: ``first`` is None while the stream has no entry, ``last`` is the
    newest ID ever generated (0.0 if none), fit to be passed as the next ``last_id``."""

    first: StreamId | None
    last: StreamId


class Published(NamedTuple):
    """What ``tpublish`` did."""

    now: bool  # False: this epoch had been published before, so it was skipped
    entries: int  # appended by this call; 0 where it was skipped


@final
class Batch(list[Entry | Missing]):
    """What one ``tread`` returned: a list of entries and ``MISSING`` markers, and what was said about them."""

    __slots__ = ("info", "timed_out")

    def __init__(self, items: Iterable[Entry | Missing] = (), info: Span | None = None, timed_out: bool = False):
        super().__init__(items)
        self.info = info  # what with_info=True asked for
        self.timed_out = timed_out  # nothing came within ``block`` ms

    @property
    def entries(self) -> list[Entry]:
        """The entries alone, without ``MISSING`` markers."""
        return [item for item in self if isinstance(item, Entry)]

    @property
    def last_id(self) -> StreamId | None:
        """ID of the newest entry in this batch: the next ``last_id``. None if the batch has no entry."""
        return max((entry.id for entry in self.entries), default=None)


@dataclass(frozen=True, slots=True)
class Info:
    """What TINFO says of a stream."""

    length: int  # entries there now
    first: StreamId | None  # None while there is none
    last: StreamId  # newest ID ever generated, 0.0 if none; stays when the entry is evicted
    entries_added: int  # since the stream began
    evicted: int
    evicted_to: StreamId  # ID of the newest evicted entry, 0.0 if none
    nodes: int  # macro nodes
    memory_bytes: int
    disk_bytes: int
    groups: int
    pending: int  # messages that wait for an acknowledgement, in all groups; the next three are sums too
    redelivered: int
    expired: int
    deadlettered: int


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """What TGROUP LIST says of a group."""

    name: bytes
    offset: StreamId  # the newest entry delivered, or where it was set
    ttl: int  # ms without a request until it is destroyed; 0 = never
    pending: int  # messages delivered with RETRY and not acknowledged
    readers: int  # clients blocked on it now
    redelivered: int
    expired: int
    deadlettered: int


@dataclass(frozen=True, slots=True)
class PendingSummary:
    """What TPENDING says without a range. The three are None where nothing is pending."""

    count: int
    lowest: StreamId | None
    highest: StreamId | None
    next_due: int | None  # ms since epoch; also None where no message will be delivered again


@dataclass(frozen=True, slots=True)
class Pending:
    """One message that waits for its acknowledgement."""

    id: StreamId
    deliveries: int
    first_delivered: int  # ms since epoch
    due: int  # ms since epoch at which it may be delivered again
    expire: int  # ms since epoch at which it is dropped; 0 = never
