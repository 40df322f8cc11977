"""Converts entries in RESP to pages: columns of bytes, from which columns.py builds batches. It is compiled if
possible.

    bytes --hiredis-->  a list for each entry, [id, field, value, ...]  --HiredisPage-->  Arrow arrays
    bytes --_rows.c-->  Arrow's buffers                                 --NativePage--->  the same arrays

Rule 1: both implementations produce the same pages and the same errors. Input that the compiled one does not understand
        is passed to hiredis, from the first byte of that entry. The compiled one is stricter in two cases that no
        server uses: a value must be followed by CRLF, and sets and simple strings are refused.
Rule 2: an entry is an array of an odd number of bulk strings. Anything else is a NotAnEntryError, and an error reply is
        a ReplyError.
Rule 3: a missing field is null. A field that occurs twice has its last value, at its first position.
Rule 4: if all entries of a page have the same fields in the same order, HiredisPage takes its columns as slices of one
        flat list, without work per row.
"""

from __future__ import annotations

import os
import reprlib
from abc import ABC, abstractmethod
from dataclasses import astuple, dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import hiredis
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.arrow import names
from tidelog.transport.connection import BlockingConnection, NotAnEntryError, PageBuilder
from tidelog.transport.errors import ReplyError

if TYPE_CHECKING:
    from tidelog.arrow._rows import Column

try:
    from tidelog.arrow._rows import Rows

    BUILT = True
except ImportError:  # installed without a compiler, or run from a zip file
    BUILT = False

SWITCH: Final = "TIDELOG_NATIVE"
MICROSECONDS: Final = pa.timestamp("us", "UTC")
MORE: Final = object()  # returned by hiredis if bytes are missing; its default, False, is a value in RESP3


def native() -> bool:
    """Return whether pages are built by the compiled helper: it exists, and ``TIDELOG_NATIVE=0`` is not set."""
    return BUILT and os.environ.get(SWITCH, "1") != "0"


@dataclass(frozen=True)
class PageContent:
    """The required parts of the entries. Pages may lack other parts."""

    names: tuple[bytes, ...] = ()  # these fields
    ids: bool = False
    times: bool = False
    fields: bool = False  # maps of all fields
    entries: bool = False  # whole entries, for Page.entry()


class Page(ABC):
    """One or more entries, as columns."""

    last: bytes  # ID of the last entry

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def ids(self) -> pa.Array:
        """Return the IDs, as binary."""

    def times(self) -> pa.Array:
        """Return the time in each ID, as timestamp in UTC; null if it exceeds the range of a timestamp."""
        return times(self.ids().cast(pa.string()))

    @abstractmethod
    def field(self, name: bytes) -> pa.Array:
        """Return one field, as binary; null if an entry lacks it."""

    @abstractmethod
    def maps(self) -> pa.Array:
        """Return all fields, as map<string, binary>; names as in names.py."""

    @abstractmethod
    def entry(self, number: int) -> list[bytes]:
        """Return one entry, ``[id, field, value, ...]``."""


def gather(wanted: PageContent) -> PageBuilder[Page]:
    """Return the PageBuilder for one range (tidelog.transport.connection)."""
    return NativeGather(wanted) if native() else HiredisGather()


def header(wire: BlockingConnection, key: str) -> tuple[int, bytes]:
    """Return ``wire.header()`` of the reply to a TRANGE. Raises ReplyError with the key in its text."""
    try:
        return wire.header()
    except ReplyError as error:
        raise ReplyError(f"{error} (stream {key!r})") from None


def judged(reply: Any) -> NotAnEntryError | ReplyError:
    """Return the error for a reply in place of an entry."""
    if isinstance(reply, hiredis.ReplyError):
        return ReplyError(str(reply))
    return NotAnEntryError(f"an entry was expected, not {reprlib.repr(reply)}")


def times(ids: pa.Array) -> pa.Array:
    """Return the result of Page.times() for IDs as strings."""
    ms = pc.list_element(pc.split_pattern(ids, "."), 0) if len(ids) else ids
    try:
        return pc.multiply_checked(ms.cast(pa.int64()), 1000).cast(MICROSECONDS)
    except pa.ArrowInvalid:  # an ID has 64 bits for ms, a timestamp 63 bits for us
        micros = [int(text) * 1000 for text in ms.to_pylist()]
        fitting = [number if number < 1 << 63 else None for number in micros]
        return pa.array(fitting, pa.int64()).cast(MICROSECONDS)


# -- by hiredis -----------------------------------------------------------------------------------------------------
class HiredisGather:
    """Builds HiredisPages."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader(notEnoughData=MORE)
        self._rows: list[list[bytes]] = []
        self._flat: list[bytes] = []

    def feed(self, data: bytes) -> None:
        self._reader.feed(data)

    def parse(self, limit: int) -> int:
        gets, rows = self._reader.gets, []
        try:
            for _ in range(limit - len(self._rows)):
                row = gets()
                if row is MORE:
                    break
                rows.append(row)
        except hiredis.ProtocolError as error:
            self._take(rows)
            raise NotAnEntryError(str(error)) from None
        self._take(rows)
        return len(self._rows)

    def _take(self, rows: list[Any]) -> None:
        """Add rows to the page. Rule 2 is checked without work per row as long as all rows are entries."""
        try:
            if rows and set(map(type, rows)) != {list}:
                raise TypeError
            flat = list(chain.from_iterable(rows))
            b"".join(flat)  # the fastest check that all of them are bytes
            if not all(length % 2 for length in set(map(len, rows))):
                raise TypeError
        except TypeError:
            raise judged(next(row for row in rows if not _is_entry(row))) from None
        self._rows += rows
        self._flat += flat

    def page(self) -> HiredisPage:
        page = HiredisPage(self._rows, self._flat)
        self._rows, self._flat = [], []
        return page


def _is_entry(reply: Any) -> bool:
    return type(reply) is list and len(reply) % 2 == 1 and all(type(word) is bytes for word in reply)


class HiredisPage(Page):
    """A page of entries as lists."""

    def __init__(self, rows: list[list[bytes]], flat: list[bytes]) -> None:
        self.rows = rows
        self.flat = flat
        self.last = rows[-1][0]
        # words per row if all rows have the same fields in the same order, otherwise 0
        self.width = self._common_width()
        self._dicts: list[dict[bytes, bytes]] = []

    def __len__(self) -> int:
        return len(self.rows)

    def _common_width(self) -> int:
        width, number = len(self.rows[0]), len(self.rows)
        if len(self.flat) != width * number or set(map(len, self.rows)) != {width}:
            return 0
        names = self.rows[0][1::2]
        if len(set(names)) < len(names):
            return 0
        at = range(1, width, 2)
        same = all(self.flat[i::width].count(name) == number for i, name in zip(at, names, strict=True))
        return width if same else 0

    @property
    def dicts(self) -> list[dict[bytes, bytes]]:
        """Return the fields of each entry, for pages whose entries differ."""
        if not self._dicts:
            self._dicts = [dict(zip(row[1::2], row[2::2], strict=True)) for row in self.rows]
        return self._dicts

    def ids(self) -> pa.Array:
        return pa.array(self.flat[:: self.width] if self.width else [row[0] for row in self.rows], pa.binary())

    def field(self, name: bytes) -> pa.Array:
        if not self.width:
            return pa.array([fields.get(name) for fields in self.dicts], pa.binary())
        names = self.rows[0][1::2]
        if name not in names:
            return pa.nulls(len(self.rows), pa.binary())
        return pa.array(self.flat[2 + 2 * names.index(name) :: self.width], pa.binary())

    def maps(self) -> pa.Array:
        number = len(self.rows)
        if self.width:
            names = self.rows[0][1::2]
            fields = len(names)
            offsets = pa.array([fields * i for i in range(number + 1)], pa.int32())
            items: list[bytes] = [b""] * (fields * number)
            for i in range(fields):
                items[i::fields] = self.flat[2 + 2 * i :: self.width]
            keys: list[bytes] = names * number
        else:
            lengths = [0, *map(len, self.dicts)]
            offsets = pc.cumulative_sum(pa.array(lengths, pa.int32()))
            keys = list(chain.from_iterable(self.dicts))
            items = list(chain.from_iterable(fields.values() for fields in self.dicts))
        return _maps(offsets, pa.array(keys, pa.binary()), pa.array(items, pa.binary()))

    def entry(self, number: int) -> list[bytes]:
        return self.rows[number]


# -- compiled -------------------------------------------------------------------------------------------------------
class NativeGather:
    """Builds NativePages."""

    def __init__(self, wanted: PageContent) -> None:
        self._wanted = wanted
        self._rows = Rows(*astuple(wanted))
        self._number = 0  # entries in the page
        self._judge: Any = None  # a hiredis.Reader, as soon as some input has to be passed to it (Rule 1)

    def feed(self, data: bytes) -> None:
        (self._judge or self._rows).feed(data)

    def parse(self, limit: int) -> int:
        if self._judge is None:
            number = self._rows.parse(limit)
            self._number = max(number, ~number)
            if number >= 0:
                return number
            self._judge = hiredis.Reader(notEnoughData=MORE)
            self._judge.feed(self._rows.rest())
        try:
            reply = self._judge.gets()
        except hiredis.ProtocolError as error:
            raise NotAnEntryError(str(error)) from None
        if reply is MORE:
            return self._number
        if _is_entry(reply):
            raise NotAnEntryError(f"an entry in a form that no server sends it in: {reprlib.repr(reply)}")
        raise judged(reply)

    def page(self) -> NativePage:
        self._number = 0
        return NativePage(self._wanted.names, *self._rows.page())


class NativePage(Page):
    """A page as ``Rows.page()`` returned it (_rows.pyi)."""

    def __init__(
        self, names: tuple[bytes, ...], number: int, last: bytes, ids: Column | None, micros: bytearray | None,
        fields: tuple[Column, ...], maps: bytearray, keys: Column | None, items: Column | None, entries: Column | None,
    ) -> None:  # fmt: skip
        self.number = number
        self.last = last
        self._ids = ids
        self._micros = micros
        self._fields = dict(zip(names, fields, strict=True))
        self._maps, self._keys, self._items = maps, keys, items
        self._entries = entries

    def __len__(self) -> int:
        return self.number

    def ids(self) -> pa.Array:
        return _binary(self.number, self._ids)

    def times(self) -> pa.Array:
        if self._micros is None:
            return super().times()
        return pa.Array.from_buffers(MICROSECONDS, self.number, [None, pa.py_buffer(self._micros)])

    def field(self, name: bytes) -> pa.Array:
        return _binary(self.number, self._fields[name])

    def maps(self) -> pa.Array:
        offsets = pa.Array.from_buffers(pa.int32(), self.number + 1, [None, pa.py_buffer(self._maps)])
        fields = offsets[-1].as_py()
        return _maps(offsets, _binary(fields, self._keys), _binary(fields, self._items))

    def entry(self, number: int) -> list[bytes]:
        reader = hiredis.Reader()
        reader.feed(_binary(self.number, self._entries)[number].as_py())
        entry: list[bytes] = reader.gets()
        return entry


def _binary(number: int, column: Column | None) -> pa.Array:
    if column is None:
        raise AssertionError("not wanted, so the page lacks it")
    offsets, data, valid = column
    bits = None if valid is None else pa.py_buffer(valid)
    return pa.Array.from_buffers(pa.binary(), number, [bits, pa.py_buffer(offsets), pa.py_buffer(data)])


def _maps(offsets: pa.Array, keys: pa.Array, items: pa.Array) -> pa.Array:
    return pa.MapArray.from_arrays(offsets, names.texts(keys), items)
