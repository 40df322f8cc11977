"""Checks what a batch job's function returns: nothing, or a table for each output.

    None, {}                    nothing
    {topic: pa.Table, ...}      rows for outputs of the job
    pa.Table                    the same, for a job with one output

Rule 1: An error in every row, such as a column that the topic lacks, is a FunctionError that names job, topic, column
        and remedy. An error in one row, such as a null where none is allowed, is an OutputRowError (``calls``).
Rule 2: If a topic defines its fields, a table may have no others, and must have those that readers require.
Rule 3: Columns are converted to types that can be written: dictionaries are decoded, large and view types become plain
        ones, and times of day and finer timestamps become the types of entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from tidelog.arrow.values import kind_of
from tidelog.jobs.errors import FunctionError
from tidelog.jobs.task.calls import CallContext, OutputRowError
from tidelog.jobs.task.fieldtypes import FIELDS, ColumnField, fields_of
from tidelog.topics import Topic, TopicSettings
from tidelog.topics.sending import PLAIN
from tidelog.topics.settings import FUNCTION

#: Kinds of columns that a field of a kind accepts in addition to its own.
_TAKES: Final[Mapping[str, tuple[str, ...]]] = {
    "float": ("int",), "time": ("str",), "timedelta": ("str",), "uuid": ("str",), "decimal": ("str", "int"),
    "enum": ("str", "int"), "literal": ("str", "int"),
}  # fmt: skip
_ADVICE: Final = "cast it, such as table['column'].cast(pa.{})"


@dataclass(frozen=True)
class TaskOutput:
    """An output topic of a job."""

    topic: Topic[Any]
    facts: TopicSettings
    fields: tuple[ColumnField, ...]
    key: str | None  # the column that determines the partition
    computed_key: bool  # a function computes keys from records

    @classmethod
    def of(cls, topic: Topic[Any], facts: TopicSettings) -> TaskOutput:
        by = facts.partition_by
        if by is not None and by != FUNCTION:
            names = {field.attribute: field.name for field in topic.codec.shape.fields}
            by = names.get(by, by)
        return cls(topic, facts, fields_of(topic, facts), None if by == FUNCTION else by, by == FUNCTION)

    @property
    def plain(self) -> bool:
        return self.facts.codec == PLAIN


def tables(
    context: CallContext, outputs: Mapping[str, TaskOutput], returned: Any
) -> list[tuple[TaskOutput, pa.RecordBatch]]:
    """Return the checked tables by output, in the order of the result; tables without rows are omitted.

    Raises FunctionError or OutputRowError.
    """
    if returned is None:
        return []
    if isinstance(returned, pa.Table | pa.RecordBatch):
        if len(outputs) != 1:
            listed = ", ".join(map(repr, outputs)) or "none"
            raise FunctionError(
                f"{context}: the function returned a table, but the job has {len(outputs)} outputs ({listed}):"
                " return {topic: table}"
            )
        returned = {next(iter(outputs.values())).topic: returned}
    if not isinstance(returned, Mapping):
        raise FunctionError(
            f"{context}: the function returned {_article(returned)}: return {{topic: pa.Table}}, a pa.Table if the job"
            " has one output, or None"
        )
    return [
        (output, batch)
        for topic, table in returned.items()
        for output, batch in _checked(context, outputs, topic, table)
    ]


def _checked(
    context: CallContext, outputs: Mapping[str, TaskOutput], topic: Any, table: Any
) -> list[tuple[TaskOutput, pa.RecordBatch]]:  # fmt: skip
    output = outputs.get(topic.name) if isinstance(topic, Topic) else None
    if output is None:
        what = f"topic {topic.name!r}" if isinstance(topic, Topic) else f"{topic!r}, which is not a topic"
        listed = ", ".join(map(repr, outputs)) or "none"
        raise FunctionError(
            f"{context}: the function returned a table for {what}; outputs of the job are {listed}. Name it in"
            " @job(outputs=[...]), and use the Topic itself as key"
        )
    if not isinstance(table, pa.Table | pa.RecordBatch):
        raise FunctionError(
            f"{context}: the function returned {_article(table)} for topic {output.topic.name!r}: a pa.Table is needed"
            " (pa.table({...}), pa.Table.from_pandas, .to_arrow())"
        )
    if not table.num_rows:
        return []
    whole = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    made = _fitting(context, output, whole)
    return [(output, batch) for batch in made.combine_chunks().to_batches()]


def _fitting(context: CallContext, output: TaskOutput, table: pa.Table) -> pa.Table:
    names = table.column_names
    what = f"{context}: the table for topic {output.topic.name!r}"
    if len(set(names)) < len(names):
        raise FunctionError(f"{what} has two columns with the same name: {', '.join(names)}")
    known = {field.name: field for field in output.fields}
    unknown = [name for name in names if known and name not in known]
    if unknown:
        raise FunctionError(
            f"{what} has a column {unknown[0]!r}, which is not a field of the topic: {', '.join(known)}. Drop it"
            " (table.drop_columns), or add the field to the type of the topic"
        )
    needed = [field.name for field in output.fields if field.required and not field.nullable]
    missing = [name for name in needed if name not in names]
    if output.key is not None and output.key not in names:
        missing.insert(0, output.key)
    if missing:
        raise FunctionError(f"{what} has no column {missing[0]!r}, which every entry requires")
    columns = {}
    for name in names:
        column = _column(f"{what}: column {name!r}", output, known.get(name), name, table.column(name))
        if column is not None:
            columns[name] = column
    if not columns:
        raise FunctionError(f"{what} has rows, but no column with values")
    for name in needed:
        if name not in columns or columns[name].null_count:
            raise OutputRowError(f"topic {output.topic.name!r}: {name} is null in a row, but every entry requires it")
    if output.key in columns and kind_of(columns[output.key].type) not in ("str", "int", "bytes"):
        raise FunctionError(
            f"{what}: column {output.key!r} is {columns[output.key].type}, but the partition of a row depends on it: it"
            " must be a string, an integer or binary"
        )
    if output.key is not None and (output.key not in columns or columns[output.key].null_count):
        raise OutputRowError(
            f"topic {output.topic.name!r}: {output.key} is null in a row, but its partition depends on it"
        )
    return pa.table(columns)


def _column(what: str, output: TaskOutput, field: ColumnField | None, name: str, column: pa.ChunkedArray) -> Any:
    """Return a column of a type that can be written; None for one that has only nulls and no type."""
    try:
        column = _simple(column)
        kind = kind_of(column.type)
        if kind == "null":
            return None
        if output.plain and name == FIELDS and field is None and pa.types.is_map(column.type):
            return column.cast(pa.map_(pa.string(), pa.binary()))
        if not kind or (output.plain and kind == "json"):
            raise FunctionError(
                f"{what} is {column.type}, which the codec {output.facts.codec!r} does not support: cast it to"
                " string, or declare the topic with codec='json'"
            )
        if field is None or (field.kind == "json" and field.is_json):
            return column
        if field.kind == "json":
            return column.cast(field.type)
        if kind != field.kind and kind not in _TAKES.get(field.kind, ()):
            raise FunctionError(
                f"{what} is {column.type}, but the field is {field.kind}: {_ADVICE.format(_call(field.type))}"
            )
    except (pa.ArrowException, NotImplementedError) as error:
        wanted = f", but the field is {field.kind}, in Arrow {field.type}" if field is not None else ""
        raise FunctionError(f"{what} is {column.type}{wanted}: {error}") from None
    return column


def _simple(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert a column to one of the types that can be written (Rule 3)."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _simple(column.cast(kind.value_type))
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return column.cast(pa.string())
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return column.cast(pa.binary())
    if pa.types.is_time(kind):
        return column.cast(pa.string())
    if pa.types.is_date64(kind):
        return column.cast(pa.date32())
    if pa.types.is_timestamp(kind) and kind.unit != "us":
        return column.cast(pa.timestamp("us", kind.tz), safe=False)
    return column


def _call(kind: pa.DataType) -> str:
    """Return a type in the syntax of Python."""
    return "timestamp('us', 'UTC')" if pa.types.is_timestamp(kind) else f"{kind}()"


def _article(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text[:60] + '...' if len(text) > 60 else text}"
