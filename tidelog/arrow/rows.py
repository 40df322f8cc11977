"""``to_arrow``: the rows of a stream or a topic in Arrow batches.

Rule 1: each iteration reads the entries that exist when it begins. Later entries are not included, so that an iteration
        ends.
Rule 2: an iteration returns every entry of its range exactly once, or raises an error. If entries that it has not read
        are evicted while it waits for a lost connection, it raises EvictedError.
Rule 3: the partitions of a topic follow one another. Rows are not sorted by time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from tidelog.arrow.columns import BATCH_ROWS, CORRUPT, Columns
from tidelog.arrow.direct import history_pages, piece_of
from tidelog.arrow.inference import OWN_COLUMNS, SAMPLE, named_type, sampled_fields, schema_of, topic_fields
from tidelog.arrow.pages import header
from tidelog.arrow.reading import read_pages
from tidelog.client import calls
from tidelog.client.calls import IdLike
from tidelog.client.entries import Entry, StreamId
from tidelog.client.steps import drive_over, existing
from tidelog.history import choice
from tidelog.history.errors import HistoryError
from tidelog.topics.reconcile import known
from tidelog.topics.settings import TopicSettings
from tidelog.transport.access import Access
from tidelog.transport.connection import BlockingConnection
from tidelog.transport.errors import ReplyError
from tidelog.transport.leader import LeaderConnection

if TYPE_CHECKING:
    import pandas
    import polars

NAME: Final = "tidelog-arrow"  # of the connections
SAMPLED: Final = 16  # partitions of a topic from which the columns are inferred
ZERO: Final = StreamId(0, 0)
#: Columns by name: Arrow types, or their names.
Schema: TypeAlias = pa.Schema | Mapping[str, pa.DataType | str]


class NoSuchStreamError(ValueError):
    """There is no stream and no topic of this name."""


class EvictedError(Exception):
    """Entries were evicted before they could be read."""


@dataclass(frozen=True)
class Table:
    """A stream or a topic, with the columns of a read."""

    name: str
    keys: tuple[str, ...]  # the streams: the partitions of a topic
    topic: bool
    schema: pa.Schema


class ArrowRows:
    """The rows of a stream or topic. They are read by each iteration, so the object can be used repeatedly.

    It supports the Arrow PyCapsule interface, so that duckdb, polars, and others read it directly.
    """

    def __init__(
        self, access: Access, table: Table, start: IdLike, end: IdLike, schema: pa.Schema, mode: str,
        history: str = choice.AUTO,
    ) -> None:  # fmt: skip
        self.table = table
        self.schema = schema
        self._access = access
        self._start, self._end = calls.id_text(start), calls.id_text(end)
        self._history = choice.check(history)
        self._columns = Columns(schema, mode, table.topic, remedy=_remedy)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield batches of at most 10,000 rows.

        Raises OSError if no server answers, MalformedError if a value does not have the type of its column, and
        EvictedError.
        """
        return self.batches()

    def batches(self, wanted: Callable[[str], bool] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield batches of the streams whose key is wanted, as ``__iter__`` does."""
        with closing(LeaderConnection(self._access, NAME)) as servers:
            keys = [key for key in self.table.keys if wanted is None or wanted(key)]
            infos = servers.ask(*map(calls.tinfo, keys))
            for key, reply in zip(keys, infos, strict=True):
                info = existing(key, reply)
                if info is not None and info.first is not None:
                    yield from self._stream(servers, key, info.last)

    def reader(self) -> pa.RecordBatchReader:
        """Return a reader of the batches."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def to_table(self) -> pa.Table:
        """Return all rows as a table in memory."""
        return self.reader().read_all()

    def to_pandas(self) -> pandas.DataFrame:
        """Return all rows as a DataFrame of pandas. Raises ImportError if pandas is not installed."""
        return self.to_table().to_pandas()

    def to_polars(self) -> polars.DataFrame:
        """Return all rows as a DataFrame of polars. Raises ImportError if polars is not installed."""
        import polars

        return polars.DataFrame(self.to_table())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any:
        return self.reader().__arrow_c_stream__(requested_schema)

    def _stream(self, servers: LeaderConnection, key: str, last: StreamId) -> Iterator[pa.RecordBatch]:
        end = last if self._end in ("+", b"+") else self._end
        read = ZERO  # the last entry that was read
        piece, whole = piece_of(servers, key, _text(self._start), _text(self._end), last, self._history)
        if piece is not None:
            read = piece.after
            try:
                for page in history_pages(piece, self._columns.wanted, BATCH_ROWS):
                    yield self._columns.batch(key, page)
                    read = StreamId.parse(page.last)
                read = piece.end
                if whole:
                    return
            except HistoryError as error:
                choice.report(error, self._history)

        def ask(wire: BlockingConnection, after: StreamId) -> tuple[int, bytes]:
            if after == ZERO or (piece is not None and after == piece.after):  # nothing was read
                wire.send(calls.trange(key, self._start, end).args)
                return header(wire, key)
            (reply,) = wire.run(calls.tinfo(key))
            info = existing(key, reply)
            if info is None or info.evicted_to > after:
                raise EvictedError(f"stream {key!r}: the entries after {after} were evicted while they were read")
            wire.send(calls.trange(key, f"({after}", end).args)
            return header(wire, key)

        for page in read_pages(servers, read, ask, self._columns.wanted, BATCH_ROWS, key=key):
            yield self._columns.batch(key, page)


def to_arrow(
    where: str | Access, name: str, start: IdLike = "-", end: IdLike = "+", schema: Schema | None = None,
    *, history: str = choice.AUTO,
) -> ArrowRows:
    """Return the rows of a stream or a topic between two IDs or times, both included.

    >>> to_arrow("redis://localhost", "weather").to_pandas()
    >>> to_arrow(url, "orders", start=datetime(2026, 1, 1, tzinfo=UTC), schema={"amount": "decimal(9,2)"})

    Columns are ``_key``, ``_id``, ``_ts``, for a topic ``_partition``, and fields. A topic has the fields of its
    settings, a stream those of its first and last entries (``tidelog.arrow.inference``). ``schema`` is either a mapping
    from fields to types, which replaces these types and adds fields, or a pyarrow.Schema, which is used as it is.
    ``history``: where entries that were copied to an object store are read (``tidelog.history.choice``).

    Raises NoSuchStreamError, ValueError for an invalid type, OSError if no server answers, and ReplyError if the server
    refuses a command.
    """
    access = Access.of(where) if isinstance(where, str) else where
    table = open_table(access, name)
    wanted = schema if isinstance(schema, pa.Schema) else changed(table, schema or {})
    # With a column for invalid entries, they are not an error.
    mode = "permissive" if CORRUPT in wanted.names else "failfast"
    return ArrowRows(access, table, start, end, wanted, mode, history)


def changed(table: Table, types: Mapping[str, pa.DataType | str]) -> pa.Schema:
    """Return the schema of a table with other types of some fields, and more fields. Raises ValueError."""
    own = dict(OWN_COLUMNS)
    fields = {field.name: field.type for field in table.schema}
    for name, kind in types.items():
        if name in own:
            raise ValueError(f"schema: {name} always is {own[name]}")
        fields[name] = named_type(kind) if isinstance(kind, str) else kind
    return pa.schema(list(fields.items()))


def open_table(access: Access, name: str) -> Table:
    """Return the topic or the stream of this name. Raises as ``to_arrow`` does."""
    with closing(LeaderConnection(access, NAME)) as servers:
        settings = _settings(servers, name)
        if settings is not None:
            keys = tuple(f"{name}:{at}" for at in range(settings.partitions or 0))
            fields = topic_fields(settings) or sampled_fields(_sample(servers, keys[:SAMPLED]))
            return Table(name, keys, True, schema_of(fields, topic=True))
        (reply,) = servers.ask(calls.tinfo(name))
        if existing(name, reply) is None:
            raise NoSuchStreamError(f"there is no stream and no topic {name!r}")
        return Table(name, (name,), False, schema_of(sampled_fields(_sample(servers, (name,))), topic=False))


def _settings(servers: LeaderConnection, name: str) -> TopicSettings | None:
    """Return the settings of a topic; None if there is none, or the user may not read it."""
    try:
        return drive_over(servers.ask, known(name))
    except ReplyError as error:
        if error.code == "NOPERM":
            return None
        raise


def _sample(servers: LeaderConnection, keys: tuple[str, ...]) -> Iterator[Entry]:
    """Yield the newest and the oldest entries of some streams."""
    for key in keys:
        both = servers.ask(calls.trevrange(key, "+", "-", SAMPLE), calls.trange(key, "-", "+", SAMPLE))
        for reply in both:
            yield from existing(key, reply) or ()


def _text(bound: str | bytes) -> str:
    return bound if isinstance(bound, str) else bound.decode("latin-1")


def _remedy(field: str) -> str:
    return f"pass a type that all values have: schema={{{field!r}: 'string'}}"
