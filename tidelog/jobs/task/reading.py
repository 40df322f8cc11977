"""Reads the entries of an input into Arrow tables: those of a range, or the next ones.

    inspect_inputs   TIME, and TCOUNT and TINFO of each input: one round trip to see what is unread
    read             TRANGE of one input, then TINFO
    reread           TRANGE of a range that was read before, for a replay

Entries that are in history objects are read from there (``direct``).

Rule 1: No entry is missed. ``evicted_to`` of TINFO never decreases: if it is not after the range's start once the range
        has been received, nothing of the range was evicted before. ``reread`` counts instead: the marker contains the
        number of entries. Otherwise InputsLostError is raised.
Rule 2: A value that is not of its field's type is not replaced by null: its row is in ``bad``, with the error.
Rule 3: ``inspect_inputs`` reads the server's time first. Entries that arrive later have IDs from that time on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa
from zstandard import ZstdError

from tidelog.arrow import values
from tidelog.arrow.pages import Page, PageContent, gather, header
from tidelog.client import calls, strings
from tidelog.client.entries import Entry, Info, StreamId
from tidelog.client.steps import checked, existing
from tidelog.codecs import UndecodableError
from tidelog.codecs.packed import FIELD, Packed
from tidelog.history import choice
from tidelog.jobs.errors import InputsLostError
from tidelog.jobs.replaylog.marker import InputSpan
from tidelog.jobs.task.direct import InputHistory
from tidelog.jobs.task.fieldtypes import DATA, FIELDS, ColumnField, as_json, fields_of
from tidelog.jobs.task.rows import InputRows
from tidelog.topics import Topic, TopicSettings
from tidelog.topics.sending import PLAIN
from tidelog.transport.leader import LeaderConnection

ZERO: Final = StreamId(0, 0)
PAGE: Final = 50_000  # rows
FIRST: Final = 1000  # rows of the first request, whose size is unknown


@dataclass(frozen=True)
class InputStatus:
    """The unread entries of one input."""

    count: int  # unread entries
    info: Info | None  # None: the stream does not exist


class TaskInput:
    """A stream that a partition of a job reads."""

    def __init__(
        self, topic: Topic[Any], facts: TopicSettings, partition: int, history: str = choice.AUTO
    ) -> None:
        """``history``: see ``tidelog.history.choice``."""
        self.topic = topic
        self.shared = facts.partitions == 1  # every partition of the job reads it completely
        self.partition = 0 if self.shared else partition  # of the topic
        self.key = topic.stream(self.partition)
        self.plain = facts.codec == PLAIN
        self.fields = fields_of(topic, facts)
        names = [field.name.encode() for field in self.fields] if self.plain else [FIELD.encode()]
        self._wanted = PageContent(tuple(names), ids=True, fields=self.plain and not self.fields)
        self._history = InputHistory(self.key, history, self._wanted)
        self._row_bytes = 0.0  # average size of the last rows

    # -- reading ---------------------------------------------------------------------------------------------
    def read(
        self, servers: LeaderConnection, after: StreamId, status: InputStatus, most: int, most_bytes: int
    ) -> tuple[InputRows, bool]:
        """Return the next rows after an ID, and whether there are more: at most ``most`` rows, about ``most_bytes`` of
        Arrow.

        Raises InputsLostError, OSError or ReplyError.
        """
        if status.info is None or not status.count:
            return self._rows([]), False
        wanted = min(status.count, most)
        pages: list[Page] = []
        rows, size = 0, 0
        for page, info in self._history.read(servers, after, status.info.last, status.count, wanted):
            if (gone := self.lost(after, info)) is not None:
                raise gone
            pages.append(page)
            rows, size = rows + len(page), size + self._size(page)
            if size >= most_bytes:
                break
        if pages:
            self._row_bytes = max(1.0, size / rows)
            return self._rows(pages), rows < status.count
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
        """Return the rows of a range that was read before. ``lost`` creates the error if some do not exist any more."""
        if not span.rows:
            return self._rows([])
        pages = [page for page, _ in self._history.read(servers, span.after, span.end, span.rows)]
        if sum(map(len, pages)) == span.rows:
            return self._rows(pages)

        def once() -> list[Page]:
            wire = servers.leader(self.key)
            wire.send(calls.trange(self.key, f"({span.after}", span.end).args)
            number, first = header(wire, self.key)
            if number != span.rows:
                servers.close()
                raise lost(f"{span.rows - number} of {span.rows} entries of {self.key!r} after {span.after} up to"
                           f" {span.end}")  # fmt: skip
            return list(wire.pages(number, first, gather(self._wanted), PAGE))

        return self._rows(servers.attempts(once, self.key))

    def entry(self, servers: LeaderConnection, at: str) -> Entry:
        """Return the entry with this ID, with all fields. Raises InputsLostError if it was evicted."""
        (entries,) = checked(servers.ask(calls.trange(self.key, at, at)))
        if not entries:
            raise InputsLostError(f"the entry {at} of {self.key!r} was evicted before it was written as a dead letter")
        found: Entry = entries[0]
        return found

    def lost(self, after: StreamId, info: Info | None) -> InputsLostError | None:
        """Return an error if entries after ``after`` were evicted."""
        if info is None or info.evicted_to <= after:
            return None
        return InputsLostError(
            f"entries of {self.key!r} after {after} were evicted, up to {info.evicted_to}, before the job read"
            f" them. Its retention must protect unread entries: overflow='protect' for topic"
            f" {self.topic.name!r}. To continue with the existing entries, reset the job with --to earliest"
        )

    def _attempt(
        self, servers: LeaderConnection, after: StreamId, end: StreamId, number: int, most_bytes: int
    ) -> list[Page]:  # fmt: skip
        """Return up to ``number`` rows of (after, end], fewer if they are large. Raises InputsLostError by Rule 1."""

        def once() -> list[Page]:
            wire = servers.leader(self.key)
            wire.send(calls.trange(self.key, f"({after}", end, number).args)
            there, first = header(wire, self.key)
            pages: list[Page] = []
            left, size = there, 0
            for page in wire.pages(there, first, gather(self._wanted), PAGE):
                pages.append(page)
                left -= len(page)
                size += self._size(page)
                if left and size > 2 * most_bytes:  # larger than expected: the rest is not read
                    servers.close()
                    break
            (info,) = checked(servers.ask(calls.tinfo(self.key)))
            if (gone := self.lost(after, info)) is not None:
                raise gone
            return pages

        return servers.attempts(once, self.key)

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
        """The schema of the tables."""
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
                what = f"the field {column.name!r} is {raw[at].as_py()!r}, which is not of type {column.kind}"
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
        self, contents: list[bytes | None], ids: pa.Array, base: int, bad: dict[int, UndecodableError]
    ) -> list[Any]:  # fmt: skip
        """Return the records of entries, None for an invalid one."""
        codec = self.topic.codec
        made: list[Any] = []
        if isinstance(codec, Packed) and None not in contents:
            with suppress(ValueError, TypeError, RecursionError, ZstdError):  # the loop below finds the invalid one
                return [codec.record(data) for data in contents if data is not None]
        for at, data in enumerate(contents):
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
        """Return a column. A value that doesn't fit its Arrow type, such as a 65-bit int, adds its row to ``bad``."""
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
    """Return the server's time, and the unread entries of each input after an ID.

    read: by topic, the ID of an entry that was read before. Raises InputsLostError if it does not exist and was neither
    evicted nor deleted, so that this is a different stream, or if entries after the other ID were evicted. Raises
    OSError or ReplyError.
    """
    requests: list[calls.Call[Any]] = [strings.server_time()]
    for one, after in zip(inputs, afters, strict=True):
        known = read.get(one.topic.name, after)
        requests += (calls.tcount(one.key, known, known), calls.tcount(one.key, f"({after}"), calls.tinfo(one.key))
    now, *found = servers.ask(*requests)
    statuses = []
    for one, start, *replies in zip(inputs, afters, found[::3], found[1::3], found[2::3], strict=True):
        there, number, info = (existing(one.key, reply) for reply in replies)
        seen = read.get(one.topic.name)
        if seen is not None and not there and (info is None or not info.may_lack(seen)):
            raise InputsLostError(
                f"{one.key!r} is not the stream that was read: the entry {seen} was read and does not exist, but was"
                " neither evicted nor deleted. The stream was recreated, or the server restored from an older backup:"
                " reset the job"
            )
        gone = one.lost(start, info)
        if gone is not None:
            raise gone
        statuses.append(InputStatus(number, info))
    (ms,) = checked([now])
    return ms, statuses
