"""Entries of an input to rows of Arrow: those of a range, or the next ones.

    look      TIME, and for each input TCOUNT and TINFO: one round trip says what there is to read
    read      TRANGE of one input, and TINFO behind it
    reread    TRANGE of a range that was read before, for a replay

Rule 1: no entry is missing. ``evicted_to`` of TINFO never goes back: where it is not after the range's beginning once
        the range was answered, nothing of the range was evicted before. ``reread`` counts instead: the marker says how
        many there were. Otherwise InputsLostError.
Rule 2: a value that is not of its field's type is not made null: its row is in ``bad``, with the error.
Rule 3: ``inspect_inputs`` asks for the time first. Entries that arrive after it have IDs from that time on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa
from zstandard import ZstdError

from tidelog.client import calls, strings
from tidelog.client.entries import Entry, Info, StreamId
from tidelog.client.steps import checked
from tidelog.codecs import UndecodableError
from tidelog.codecs.packed import FIELD, Packed
from tidelog.jobs.errors import InputsLostError
from tidelog.jobs.replaylog.marker import InputSpan
from tidelog.jobs.task.fieldtypes import DATA, FIELDS, PLAIN, ColumnField, as_json, fields_of
from tidelog.jobs.task.rows import InputRows
from tidelog.spark import values
from tidelog.spark.pages import Page, PageContent, gather
from tidelog.topics import Topic, TopicSettings
from tidelog.transport.connection import BlockingConnection
from tidelog.transport.errors import ReplyError
from tidelog.transport.leader import LeaderConnection

ZERO: Final = StreamId(0, 0)
PAGE: Final = 50_000  # rows
FIRST: Final = 1000  # rows that are asked for while nobody knows how large they are
NO_KEY: Final = "ERR no such key"


@dataclass(frozen=True)
class InputStatus:
    """What there is to read of one input."""

    count: int  # entries after the place where it goes on
    info: Info | None  # None: the stream has no key


class TaskInput:
    """A stream that a partition of a job reads."""

    def __init__(self, topic: Topic[Any], facts: TopicSettings, partition: int) -> None:
        self.topic = topic
        self.shared = facts.partitions == 1  # every partition of the job reads all of it
        self.partition = 0 if self.shared else partition  # of the topic
        self.key = topic.stream(self.partition)
        self.plain = facts.codec == PLAIN
        self.fields = fields_of(topic, facts)
        names = [field.name.encode() for field in self.fields] if self.plain else [FIELD.encode()]
        self._wanted = PageContent(tuple(names), ids=True, fields=self.plain and not self.fields)
        self._row_bytes = 0.0  # of those that were read last

    # -- reading ---------------------------------------------------------------------------------------------
    def read(
        self, servers: LeaderConnection, after: StreamId, status: InputStatus, most: int, most_bytes: int
    ) -> tuple[InputRows, bool]:
        """The next rows after an ID, and whether there are more: at most ``most`` rows, about ``most_bytes`` of Arrow.

        InputsLostError, OSError, ReplyError.
        """
        if status.info is None or not status.count:
            return self._rows([]), False
        wanted = min(status.count, most)
        pages: list[Page] = []
        rows, size = 0, 0
        while rows < wanted and size < most_bytes:
            number = int((most_bytes - size) / self._row_bytes) if self._row_bytes else FIRST
            number = max(1, min(wanted - rows, number))
            start = StreamId.parse(pages[-1].last) if pages else after
            some = self._attempt(servers, start, status.info.last, number, most_bytes - size)
            if not some:
                break
            got = sum(map(len, some))
            grown = sum(map(self._size, some))
            pages += some
            rows, size = rows + got, size + grown
            self._row_bytes = max(1.0, grown / got)
        return self._rows(pages), rows < status.count

    def reread(self, servers: LeaderConnection, span: InputSpan, lost: Callable[[str], InputsLostError]) -> InputRows:
        """The rows of a range that was read before. ``lost`` makes the error where not all are there any more."""
        if not span.rows:
            return self._rows([])

        def once() -> list[Page]:
            wire = servers.leader()
            wire.send(calls.trange(self.key, f"({span.after}", span.end).args)
            number, first = self._header(wire)
            if number != span.rows:
                servers.close()
                raise lost(f"{span.rows - number} of {span.rows} entries of {self.key!r} after {span.after} up to"
                           f" {span.end}")  # fmt: skip
            return list(wire.pages(number, first, gather(self._wanted), PAGE))

        return self._rows(servers.attempts(once))

    def entry(self, servers: LeaderConnection, at: str) -> Entry:
        """The entry with this ID, with all its fields. InputsLostError if it is gone."""
        (entries,) = checked(servers.ask(calls.trange(self.key, at, at)))
        if not entries:
            raise InputsLostError(f"the entry {at} of {self.key!r} was evicted before it was written as a dead letter")
        found: Entry = entries[0]
        return found

    def lost(self, after: StreamId, info: Info | None) -> InputsLostError | None:
        """The error if entries after ``after`` were evicted."""
        if info is None or info.evicted_to <= after:
            return None
        return InputsLostError(
            f"entries of {self.key!r} after {after} were evicted, up to {info.evicted_to}, before the job has read"
            f" them. Its retention must keep what the job has not read: overflow='protect' for topic"
            f" {self.topic.name!r}. To go on with what is there, reset the job with --from earliest"
        )

    def _attempt(
        self, servers: LeaderConnection, after: StreamId, end: StreamId, number: int, most_bytes: int
    ) -> list[Page]:  # fmt: skip
        """Up to ``number`` rows of (after, end], fewer where they have many bytes. InputsLostError by Rule 1."""

        def once() -> list[Page]:
            wire = servers.leader()
            wire.send(calls.trange(self.key, f"({after}", end, number).args)
            there, first = self._header(wire)
            pages: list[Page] = []
            left, size = there, 0
            for page in wire.pages(there, first, gather(self._wanted), PAGE):
                pages.append(page)
                left -= len(page)
                size += self._size(page)
                if left and size > 2 * most_bytes:  # they are larger than those before them: the rest is not taken
                    servers.close()
                    break
            (info,) = checked(servers.ask(calls.tinfo(self.key)))
            if (gone := self.lost(after, info)) is not None:
                raise gone
            return pages

        return servers.attempts(once)

    def _header(self, wire: BlockingConnection) -> tuple[int, bytes]:
        try:
            return wire.header()
        except ReplyError as error:
            raise ReplyError(f"{error} (stream {self.key!r})") from None

    def _size(self, page: Page) -> int:
        columns = [page.maps()] if self._wanted.fields else map(page.field, self._wanted.names)
        return int(sum(column.nbytes for column in columns))

    # -- rows ------------------------------------------------------------------------------------------------
    def _rows(self, pages: Sequence[Page]) -> InputRows:
        schema = self.schema
        bad: dict[int, UndecodableError] = {}
        batches, ids = [], []
        base = 0
        for page in pages:
            named = page.ids().cast(pa.string())
            arrays = self._plain(page, named, base, bad) if self.plain else self._packed(page, named, base, bad)
            batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
            ids.append(named)
            base += len(page)
        table = pa.Table.from_batches(batches, schema)
        if len(batches) > 1:
            table = table.combine_chunks()
        return InputRows(self.topic, table, pa.concat_arrays(ids) if ids else pa.array([], pa.string()), bad)

    @property
    def schema(self) -> pa.Schema:
        """Of the tables."""
        if self.fields:
            return pa.schema([(field.name, field.type) for field in self.fields])
        return pa.schema([(FIELDS, pa.map_(pa.string(), pa.binary())) if self.plain else (DATA, pa.string())])

    def _plain(self, page: Page, ids: pa.Array, base: int, bad: dict[int, UndecodableError]) -> list[pa.Array]:
        if not self.fields:
            return [page.maps()]
        columns = []
        for column in self.fields:
            raw = page.field(column.name.encode())
            made, wrong = values.convert(raw, column.type)
            for at in wrong:
                what = f"the field {column.name!r} is {raw[at].as_py()!r}, which is no {column.kind}"
                bad.setdefault(base + at, self._error(ids, at, what))
            columns.append(made)
        return columns

    def _packed(self, page: Page, ids: pa.Array, base: int, bad: dict[int, UndecodableError]) -> list[pa.Array]:
        shape = self.topic.codec.shape
        records = self._records(page.field(FIELD.encode()).to_pylist(), ids, base, bad)
        if not self.fields:
            whole = ColumnField(DATA, "json", pa.string(), is_json=True, fix=as_json)
            return [whole.array(records)]
        if shape.mapping:
            columns: list[list[Any]] = [
                [None if record is None else record.get(field.name) for record in records] for field in self.fields
            ]
        else:
            names = [field.attribute for field in shape.fields]
            if None in records:
                columns = [[None if record is None else getattr(record, name) for record in records] for name in names]
            else:
                columns = [list(map(attrgetter(name), records)) for name in names]
        return [
            self._fitting(field, column, ids, base, bad) for field, column in zip(self.fields, columns, strict=True)
        ]

    def _records(
        self, given: list[bytes | None], ids: pa.Array, base: int, bad: dict[int, UndecodableError]
    ) -> list[Any]:  # fmt: skip
        """The records of entries, None for one that is bad."""
        codec = self.topic.codec
        made: list[Any] = []
        if isinstance(codec, Packed) and None not in given:
            with suppress(ValueError, TypeError, RecursionError, ZstdError):  # which one is found below
                return [codec.record(data) for data in given if data is not None]
        for at, data in enumerate(given):
            try:
                entry = Entry(ZERO, () if data is None else (FIELD.encode(), data))
                made.append(codec.decode(entry, self.key.encode()))
            except UndecodableError as error:
                bad[base + at] = self._error(ids, at, error.reason)
                made.append(None)
        return made

    def _fitting(
        self, column: ColumnField, found: list[Any], ids: pa.Array, base: int, bad: dict[int, UndecodableError]
    ) -> pa.Array:
        """A column. A value that Arrow can't hold, such as an int of more than 64 bits, makes its row bad."""
        try:
            return column.array(found)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            pass
        arrays = []
        for at, value in enumerate(found):
            try:
                arrays.append(column.array([value]))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                what = f"the field {column.name!r} does not fit into {column.type}: {error}"
                bad.setdefault(base + at, self._error(ids, at, what))
                arrays.append(pa.nulls(1, column.type))
        return pa.concat_arrays(arrays)

    def _error(self, ids: pa.Array, at: int, what: str) -> UndecodableError:
        return UndecodableError(self.key.encode(), Entry(StreamId.parse(ids[at].as_py()), ()), what)


def inspect_inputs(
    servers: LeaderConnection, inputs: Sequence[TaskInput], afters: Sequence[StreamId], read: Mapping[str, StreamId]
) -> tuple[int, list[InputStatus]]:
    """The server's time, and what there is of each input after an ID.

    read: by topic, the ID of an entry that was read before. InputsLostError where it is not there, and was neither
    evicted nor deleted, so that the stream is another one; or where entries after the other ID were evicted. OSError,
    ReplyError.
    """
    asked: list[calls.Call[Any]] = [strings.server_time()]
    for one, after in zip(inputs, afters, strict=True):
        known = read.get(one.topic.name, after)
        asked += (calls.tcount(one.key, known, known), calls.tcount(one.key, f"({after}"), calls.tinfo(one.key))
    now, *found = servers.ask(*asked)
    looks = []
    for one, start, *replies in zip(inputs, afters, found[::3], found[1::3], found[2::3], strict=True):
        there, number, info = (_named(one, reply) for reply in replies)
        seen = read.get(one.topic.name)
        if seen is not None and not there and (info is None or not info.may_lack(seen)):
            raise InputsLostError(
                f"{one.key!r} is not the stream that was read before: the entry {seen} was read, is not there, and was"
                " neither evicted nor deleted. The stream was made anew, or the server restored from an older backup:"
                " reset the job"
            )
        gone = one.lost(start, info)
        if gone is not None:
            raise gone
        looks.append(InputStatus(number, info))
    (ms,) = checked([now])
    return ms, looks


def _named(one: TaskInput, reply: Any) -> Any:
    """A reply about an input; None where there is no such stream. ReplyError."""
    if not isinstance(reply, ReplyError):
        return reply
    if str(reply).startswith(NO_KEY):
        return None
    raise ReplyError(f"{reply} (stream {one.key!r})")
