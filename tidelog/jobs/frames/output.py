"""Checks what a frame job's function returns, and combines all outputs into the rows of one query.

Rule 1: Output that can't be written raises JobError before the query starts. The error names job, topic, column and
        remedy.
Rule 2: Input columns that are not fields (``_id``, ``_ts``, ``_partition``, ``_key``) are dropped from an output unless
        it has such a field. The column ``_key`` contains the keys if a function determines the topic's keys.
Rule 3: Each output has its own plan. Input that several outputs depend on is read and computed once for each output,
        from the same entries. An output must therefore depend only on its input, and not on rand(), for example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from tidelog.jobs.declare import Job
from tidelog.jobs.errors import FunctionError, JobError
from tidelog.spark.options import TopicOptions, TopicRoute, for_sink
from tidelog.spark.optionvalues import STREAM, OptionError, OptionValues
from tidelog.spark.routes import OUT, column
from tidelog.spark.topics import target_of
from tidelog.topics import Topic, TopicError
from tidelog.topics.settings import FUNCTION

KEY: Final = "_key"
OWN: Final = ("_id", "_ts", "_partition", KEY)
ROWS: Final = "tidelog_rows"  # name of the observed metric: the number of rows of each output

Output = tuple[Topic[Any], DataFrame]


def outputs_of(job: Job, result: object) -> list[Output]:
    """Return the function's result in the order of the job's outputs. Raises FunctionError for an invalid result."""
    said = f"job {job.name!r}: its function returned"
    if isinstance(result, DataFrame):
        if len(job.outputs) > 1:
            names = ", ".join(topic.name for topic in job.outputs)
            raise FunctionError(f"{said} one DataFrame, and the outputs are {names}: return {{topic: DataFrame}}")
        result = {job.outputs[0]: result}
    if not isinstance(result, Mapping) or not result:
        raise FunctionError(f"{said} {type(result).__name__}: return a DataFrame, or {{topic: DataFrame}}")
    for topic, frame in result.items():
        if topic not in job.outputs:
            raise FunctionError(f"{said} a frame for {_shown(topic)}, which is not an output: add it to outputs=")
        if not isinstance(frame, DataFrame):
            raise FunctionError(f"{said} {type(frame).__name__} for topic {topic.name!r}: return a DataFrame")
        if not frame.isStreaming:
            raise FunctionError(f"{said} for topic {topic.name!r} a frame that depends on no input")
    return [(topic, _fields_of(job, topic, result[topic])) for topic in job.outputs if topic in result]


def _shown(topic: object) -> str:
    return f"topic {topic.name!r}" if isinstance(topic, Topic) else repr(topic)


def _fields_of(job: Job, topic: Topic[Any], frame: DataFrame) -> DataFrame:
    """Return the columns to write. Raises JobError if a column is not a field, or a field has no column."""
    shape = topic.codec.shape
    known = {field.name for field in shape.fields}
    if len(set(frame.columns)) < len(frame.columns):
        raise JobError(f"job {job.name!r}, topic {topic.name!r}: two columns have the same name: {frame.columns}")
    keyed = topic.declared.partition_by == FUNCTION
    dropped = [name for name in OWN if name not in known and not (name == KEY and keyed)]
    names = [name for name in frame.columns if name not in dropped]
    for name in names if known else ():
        if name not in known and name != KEY:
            raise JobError(
                f"job {job.name!r}, topic {topic.name!r}: column {name} is not a field of {shape.title}: drop it, "
                "rename it, or add the field"
            )
    for field in shape.fields:
        if field.required and field.name not in names:
            raise JobError(
                f"job {job.name!r}, topic {topic.name!r}: column {field.name}, which {shape.title} requires, is "
                "missing: add it, or give the field a default"
            )
    if keyed and KEY not in names:
        raise JobError(
            f"job {job.name!r}, topic {topic.name!r}: a function determines its keys, so the frame needs a column "
            f"{KEY} with the key of each row"
        )
    return frame.select(*[_quoted(name) for name in names])


def route_of(topic: Topic[Any], frame: DataFrame) -> TopicRoute:
    """Return how the rows of an output are written."""
    keyed = topic.declared.partition_by == FUNCTION
    needed = [field.name for field in topic.codec.shape.fields if not field.nullable and field.name in frame.columns]
    return TopicRoute(topic.name, KEY if keyed else None, tuple(needed))


def check_types(job: Job, outputs: Sequence[Output], options: Mapping[str, str]) -> None:
    """Raise JobError if the types of columns do not fit the settings of their topics on the server.

    options: the options of the sink, without ``topic``.
    """
    for topic, frame in outputs:
        route = route_of(topic, frame)
        try:
            sink = for_sink(OptionValues(options), STREAM)
            target_of(sink, TopicOptions(topic.name, route.partition_by, None, None), frame.schema)
        except (OptionError, TopicError) as error:
            raise JobError(
                f"job {job.name!r}, topic {topic.name!r}: {error} (in the frame that the function returns: cast the "
                "column to the type of the field)"
            ) from None


def tagged(outputs: Sequence[Output]) -> DataFrame:
    """Return the rows of all outputs, each with the number of its output; see tidelog.spark.routes."""
    kinds = [frame.schema for _, frame in outputs]
    frames = [_tagged(frame, number, kinds) for number, (_, frame) in enumerate(outputs)]
    rows: DataFrame = reduce(DataFrame.union, frames)
    counts = [f.count(f.when(f.col(OUT) == number, 1)).alias(topic.name) for number, (topic, _) in enumerate(outputs)]
    return rows.observe(ROWS, *counts)


def _tagged(frame: DataFrame, number: int, kinds: Sequence[StructType]) -> DataFrame:
    columns = [
        f.struct(*map(_quoted, frame.columns)) if at == number else f.lit(None).cast(kind)
        for at, kind in enumerate(kinds)
    ]
    named = [each.alias(column(at)) for at, each in enumerate(columns)]
    return frame.select(f.lit(number).alias(OUT), *named)


def _quoted(name: str) -> Any:
    return f.col("`" + name.replace("`", "``") + "`")
