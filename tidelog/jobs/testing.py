"""Runs a batch job's function on tables in memory, with state, without Spark or a server.

    test = JobTest(count)
    out = test.feed({clicks: [Click("ann", "Oslo"), Click("bob", "Rome")]})
    assert out[totals].to_pylist() == [{"user": "ann", "count": 1}, {"user": "bob", "count": 1}]
    assert test.state.get("ann") == 1

Rule 1: Entries are assigned to partitions by key, and the code of a Spark task makes the calls: the same batches, in
        the same order, with the same savepoints, for as many epochs as are needed to read all entries. Here
        ``max_bytes`` is exact to one entry; a task would also use the rest of a server's reply.
Rule 2: An epoch in which a call fails has no effect in any partition, on outputs or state. Its entries remain unread,
        as on an engine, where the job stops.
Rule 3: Time is that of the entries' IDs, and only ``feed`` and ``advance`` change it. No clock is read.
Rule 4: Records are encoded with the codec of their topic, so feeding a record that can't be sent raises CodecError.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, NamedTuple, TypeVar

import pyarrow as pa

from tidelog.client.entries import Entry, StreamId
from tidelog.jobs.declare import Job
from tidelog.jobs.errors import JobError
from tidelog.jobs.state import State
from tidelog.jobs.store import MemoryStore, StateChanges
from tidelog.jobs.task.calls import CallContext, FunctionCalls, SkippedRow
from tidelog.jobs.task.fieldtypes import DATA, FIELDS, ColumnField, as_json, fields_of
from tidelog.jobs.task.results import TaskOutput, tables
from tidelog.jobs.task.rows import InputRows, bounded, shares, split_calls
from tidelog.topics import Topic
from tidelog.topics.partition import partition_of
from tidelog.topics.sending import PLAIN

V = TypeVar("V")
W = TypeVar("W")
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)  # the default time at the start of a test

FedInputs = Mapping[Topic[Any], Iterable[Any] | pa.Table]


class DeadLetterRow(NamedTuple):
    """An entry that the job skipped, and that an engine would write to the dead-letter queue."""

    topic: Topic[Any]
    partition: int  # of the job
    id: str
    row: dict[str, Any]
    error: BaseException


class JobTest:
    """A batch job under test.

    partitions: their number; None: as the inputs declare, by default 1. Inputs declared with one partition are read
    completely by every partition. now: the time at the start, with its zone.

    ``dead_letters``: the entries skipped so far. ``epoch``: the number of epochs. Raises JobError for a frame job.
    """

    def __init__(self, job: Job, partitions: int | None = None, now: datetime = NOW) -> None:
        if job.kind != "batch":
            raise JobError(f"job {job.name!r} is a frame job: call its function with DataFrames of a Spark session")
        self.job = job
        self.partitions = _partitions(job, partitions)
        self.epoch = 0
        self.dead_letters: list[DeadLetterRow] = []
        self._now_ms = _ms(job, now)
        self._seq = -1  # sequence number of the last ID at that time
        self._outputs = {topic.name: TaskOutput.of(topic, topic.declared) for topic in job.outputs}
        self._written: list[tuple[TaskOutput, pa.RecordBatch]] = []
        self._streams = {
            topic: [_Stream(topic) for _ in range(1 if topic.declared.partitions == 1 else self.partitions)]
            for topic in job.inputs
        }
        self._parts = [_Part(MemoryStore(), dict.fromkeys(job.inputs, 0)) for _ in range(self.partitions)]

    # -- time -------------------------------------------------------------------------------------------------
    @property
    def now(self) -> datetime:
        """The time of the last ID."""
        return datetime.fromtimestamp(self._now_ms / 1000, UTC)

    def advance(self, by: timedelta | float) -> None:
        """Advance the time, in seconds. Raises JobError for less than 1 ms."""
        ms = round((by.total_seconds() if isinstance(by, timedelta) else by) * 1000)
        if ms < 1:
            raise JobError(f"job {self.job.name!r}: the time must advance by 1 ms or more: {by!r}")
        self._now_ms, self._seq = self._now_ms + ms, -1

    # -- entries in, tables out -------------------------------------------------------------------------------
    def feed(
        self, inputs: FedInputs | None = None, *, partition: int | None = None, at: datetime | None = None,
        ids: Mapping[Topic[Any], Sequence[str]] | None = None,
    ) -> dict[Topic[Any], pa.Table]:  # fmt: skip
        """Append entries to inputs, and run epochs until all are read; return their outputs, by output topic.

        inputs: records of the topic's type, dicts of their fields, or a table. partition: that of the topic; None:
        determined by the key of each entry. at: the time of the entries; None: 1 ms after the last. ids: their IDs,
        ``ms.seq``, for topics with given IDs, which must increase in each partition.

        A job without inputs is called once in each partition, ``every`` seconds after the last time.

        The tables have the columns of the topic and the rows of all calls in order, partition by partition.

        Raises FunctionError, JobError for invalid arguments, and CodecError for records that can't be sent.
        """
        if at is not None and _ms(self.job, at) < self._now_ms:
            raise JobError(f"job {self.job.name!r}: time cannot go back: {at} is before {self.now}")
        records_of = {topic: list(self._records(topic, rows)) for topic, rows in (inputs or {}).items()}
        if at is None:
            self.advance(self.job.every or 0.001)
        elif _ms(self.job, at) > self._now_ms:
            self._now_ms, self._seq = _ms(self.job, at), -1
        for topic, records in records_of.items():
            self._append(topic, records, partition, (ids or {}).get(topic))
        first = len(self._written)
        if self.job.is_source:
            self._run_epoch()
        while any(self._left(at, topic) for at in range(self.partitions) for topic in self.job.inputs):
            self._run_epoch()
        return self._tables(self._written[first:])

    @property
    def outputs(self) -> dict[Topic[Any], pa.Table]:
        """All outputs so far, by output topic."""
        return self._tables(self._written)

    @property
    def state(self) -> PartitionedState[Any]:
        """The current state of the job. Raises JobError if it has no state."""
        if self.job.state is None:
            raise JobError(f"job {self.job.name!r} has no state: declare it with @job(state=...)")
        changes = [part.store.begin(self._now_ms) for part in self._parts]
        return PartitionedState([State(each, self.job.state, job=self.job.name) for each in changes], self.job.name)

    # -- appending --------------------------------------------------------------------------------------------
    def _records(self, topic: Topic[Any], rows: Iterable[Any] | pa.Table) -> Iterator[Any]:
        """Records of the topic's type."""
        if topic not in self._streams:
            listed = ", ".join(repr(each.name) for each in self.job.inputs) or "none"
            raise JobError(f"job {self.job.name!r} does not read {topic!r}; its inputs are {listed}")
        shape = topic.codec.shape
        for row in rows.to_pylist(maps_as_pydicts="strict") if isinstance(rows, pa.Table) else rows:
            if isinstance(row, dict) and shape.fields:
                yield shape.made({name: value for name, value in row.items() if value is not None})
            else:
                yield row

    def _append(
        self, topic: Topic[Any], records: Sequence[Any], partition: int | None, ids: Sequence[str] | None
    ) -> None:  # fmt: skip
        streams = self._streams[topic]
        if partition is not None and not 0 <= partition < len(streams):
            raise JobError(f"job {self.job.name!r}: topic {topic.name!r} has no partition {partition} in this test")
        if ids is not None and len(ids) != len(records):
            raise JobError(f"job {self.job.name!r}: {len(records)} entries of {topic.name!r}, but {len(ids)} IDs")
        for number, record in enumerate(records):
            at = self._partition_of(topic, record, number) if partition is None else partition
            streams[at].append(record, self._next_id() if ids is None else StreamId.parse(ids[number]))
        if ids:
            latest = max(map(StreamId.parse, ids))
            if latest.ms >= self._now_ms:
                self._seq = max(self._seq, latest.seq) if latest.ms == self._now_ms else latest.seq
                self._now_ms = latest.ms

    def _partition_of(self, topic: Topic[Any], record: Any, number: int) -> int:
        """Return the partition of a record by its key; without keys, round-robin."""
        count = len(self._streams[topic])
        key = topic.key(record)
        return number % count if key is None else partition_of(key, count)

    def _next_id(self) -> StreamId:
        self._seq += 1
        return StreamId(self._now_ms, self._seq)

    # -- epochs -----------------------------------------------------------------------------------------------
    def _stream(self, partition: int, topic: Topic[Any]) -> _Stream:
        streams = self._streams[topic]
        return streams[partition if len(streams) > 1 else 0]

    def _left(self, partition: int, topic: Topic[Any]) -> int:
        return len(self._stream(partition, topic)) - self._parts[partition].read[topic]

    def _run_epoch(self) -> None:
        """Run one epoch in all partitions, or in none (Rule 2)."""
        done = [self._run(at) for at in range(self.partitions)]
        for part, result in zip(self._parts, done, strict=True):
            if result.changes is not None:
                part.store.commit(result.changes)
            for topic, number in result.rows.items():
                part.read[topic] += number
            part.now_ms = result.now_ms
            self._written += result.taken
            self.dead_letters += result.dead
        self.epoch += 1

    def _run(self, partition: int) -> _Result:
        """Make the calls of one partition, like a task."""
        job, part = self.job, self._parts[partition]
        rows, now_ms = self._read(partition)
        place = CallContext(job, partition, self.epoch + 1, now_ms, _ranges(rows))
        changes = None if job.state is None else part.store.begin(now_ms)
        taken: list[tuple[TaskOutput, pa.RecordBatch]] = []

        def take(returned: Any) -> None:
            taken.extend(tables(place, self._outputs, returned))

        calls = FunctionCalls(place, take, changes, job.dead_letter is not None)
        if job.is_source:
            calls.run_empty()
        else:
            calls.run(rows, split_calls(rows, job.merge, job.max_rows))
        dead = [_dead(skipped, partition, rows) for skipped in calls.skipped]
        return _Result(changes, {one.topic: len(one) for one in rows}, now_ms, taken, dead)

    def _read(self, partition: int) -> tuple[list[InputRows], int]:
        """Return the input of an epoch, and its time."""
        job, part = self.job, self._parts[partition]
        if job.is_source:
            return [], self._now_ms
        left = [self._left(partition, topic) for topic in job.inputs]
        wanted = shares(left, job.max_rows)
        most = max(1, job.max_bytes // (sum(map(bool, wanted)) or 1))
        wanted = [
            self._stream(partition, topic).within(most, part.read[topic], number)
            for topic, number in zip(job.inputs, wanted, strict=True)
        ]
        rows = [
            self._stream(partition, topic).rows(part.read[topic], number)
            for topic, number in zip(job.inputs, wanted, strict=True)
        ]
        if job.merge == "time" and len(rows) > 1:
            more = [number < all_ for number, all_ in zip(wanted, left, strict=True)]
            rows = bounded(rows, more, self._now_ms + 1)
        return rows, max([part.now_ms, *(one.last.ms for one in rows if one.last is not None)])

    def _tables(self, batches: Sequence[tuple[TaskOutput, pa.RecordBatch]]) -> dict[Topic[Any], pa.Table]:
        found: dict[Topic[Any], pa.Table] = {}
        for output in self._outputs.values():
            schema = pa.schema([(field.name, field.type) for field in output.fields])
            some = [pa.Table.from_batches([batch]) for of, batch in batches if of is output]
            if output.fields:
                some = [_with_all(table, schema) for table in some]
                found[output.topic] = pa.concat_tables(some) if some else schema.empty_table()
            else:
                found[output.topic] = pa.concat_tables(some, promote_options="permissive") if some else pa.table({})
        return found


class PartitionedState(Generic[V]):
    """The state of a job, for reading: all partitions together."""

    def __init__(self, partitions: Sequence[State[V]], name: str) -> None:
        self._partitions = partitions
        self._name = name

    def of(self, partition: int) -> State[V]:
        """Return the state of one partition. Writes to it are discarded."""
        return self._partitions[partition]

    def get(self, key: Any) -> V | None:
        """Return the value of a key, or None. Raises JobError if several partitions have one; see ``of``."""
        found = [value for each in self._partitions for value in each.get_many([key]) if value is not None]
        if len(found) > 1:
            raise JobError(f"job {self._name!r}: {len(found)} partitions have a value for key {key!r}: use state.of(0)")
        return found[0] if found else None

    def get_many(self, keys: Iterable[Any]) -> list[V | None]:
        """Return the value of each key, like ``get``."""
        return [self.get(key) for key in keys]

    def scan(self, prefix: bytes | str = b"") -> Iterator[tuple[bytes, V]]:
        """Iterate over keys and values in the order of the keys; a key occurs once for each partition that has it."""
        return iter(sorted((pair for each in self._partitions for pair in each.scan(prefix)), key=lambda pair: pair[0]))

    def space(self, name: str, type: type[W] = bytes) -> PartitionedState[W]:  # type: ignore[assignment]  # noqa: A002
        """Return a name space, like State.space."""
        return PartitionedState([each.space(name, type) for each in self._partitions], self._name)


# -- partitions --------------------------------------------------------------------------------------
class _Stream:
    """The entries of an input's partition, as columns."""

    def __init__(self, topic: Topic[Any]) -> None:
        self.topic = topic
        self._fields = fields_of(topic, topic.declared)
        self._records: list[Any] = []
        self._ids: list[StreamId] = []
        self._sizes: list[int] = []  # approximate size of each in Arrow, in bytes

    def __len__(self) -> int:
        return len(self._ids)

    def append(self, record: Any, at: StreamId) -> None:
        if self._ids and at <= self._ids[-1]:
            raise JobError(f"topic {self.topic.name!r}: IDs must ascend: {at} is not after {self._ids[-1]}")
        names, values = self.topic.codec.encode(record)
        pairs = [part for pair in zip(names, values, strict=True) for part in map(_bytes, pair)]
        entry = Entry(at, tuple(pairs))
        self._records.append(entry if not self._fields else self.topic.codec.decode(entry, b"test"))
        self._ids.append(at)
        self._sizes.append(sum(len(part) + 4 for part in pairs[1::2]))

    def within(self, most: int, first: int, number: int) -> int:
        """Return how many of these entries to read, at least one: the one that reaches ``most`` bytes is the last."""
        size = 0
        for taken, each in enumerate(self._sizes[first : first + number], start=1):
            size += each
            if size >= most:
                return taken
        return number

    def rows(self, first: int, number: int) -> InputRows:
        """Return entries as a task reads them."""
        ids = pa.array([str(at) for at in self._ids[first : first + number]], pa.string())
        return InputRows(self.topic, self._table(self._records[first : first + number]), ids)

    def _table(self, records: list[Any]) -> pa.Table:
        shape = self.topic.codec.shape
        if not self._fields:
            if self.topic.codec.name == PLAIN:
                maps = pa.array([list(entry.pairs) for entry in records], pa.map_(pa.string(), pa.binary()))
                return pa.table({FIELDS: maps})
            texts = [self.topic.codec.decode(entry, b"test") for entry in records]
            return pa.table({DATA: ColumnField(DATA, "json", pa.string(), is_json=True, fix=as_json).array(texts)})
        if shape.mapping:
            columns = [[record.get(field.name) for record in records] for field in self._fields]
        else:
            get = shape.getter()
            columns = [list(column) for column in zip(*map(get, records), strict=True)] or [[] for _ in self._fields]
        arrays = [field.array(column) for field, column in zip(self._fields, columns, strict=True)]
        return pa.table(arrays, names=[field.name for field in self._fields])


@dataclass
class _Part:
    """A partition of the job: its state, its position in each input, and its time."""

    store: MemoryStore
    read: dict[Topic[Any], int]
    now_ms: int = 0


@dataclass(frozen=True)
class _Result:
    """The result of an epoch in one partition."""

    changes: StateChanges | None
    rows: dict[Topic[Any], int]
    now_ms: int
    taken: list[tuple[TaskOutput, pa.RecordBatch]]
    dead: list[DeadLetterRow]


def _partitions(job: Job, requested: int | None) -> int:
    """Return the number of partitions of the job. Raises JobError if its inputs are not co-partitioned."""
    if requested is not None and requested < 1:
        raise JobError(f"job {job.name!r}: {requested} partitions")
    if requested is not None or job.is_source:
        return requested or job.partitions or 1
    declared = {topic.declared.partitions or 1 for topic in job.inputs} - {1}
    if len(declared) > 1:
        raise JobError(f"job {job.name!r}: its inputs are declared with {sorted(declared)} partitions: they must agree")
    return max(declared, default=1)


def _ms(job: Job, at: datetime) -> int:
    if at.tzinfo is None:
        raise JobError(f"job {job.name!r}: a time needs a zone: {at!r}")
    return round(at.timestamp() * 1000)


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _ranges(rows: Sequence[InputRows]) -> str:
    return "\n".join(f"  {one.topic.name}: up to {one.last}, {len(one)} entries" for one in rows if len(one))


def _dead(skipped: SkippedRow, partition: int, rows: Sequence[InputRows]) -> DeadLetterRow:
    read = next(one for one in rows if one.topic is skipped.topic)
    row = read.table.slice(read.ids.index(skipped.id).as_py(), 1).to_pylist()[0]
    return DeadLetterRow(skipped.topic, partition, skipped.id, row, skipped.error)


def _with_all(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Add missing columns of the topic, in its order."""
    columns = [
        table.column(field.name).cast(field.type) if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]  # fmt: skip
    return pa.table(columns, schema=schema)
