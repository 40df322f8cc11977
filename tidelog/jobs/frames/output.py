"""What a frame job's function returns, checked, and made into the rows of one query for all outputs.

Rule 1: what can't be written is a JobError before the query starts. It names job, topic, column and remedy.
Rule 2: columns of inputs that are no fields (``_id``, ``_ts``, ``_partition``, ``_key``) are left out of an output that
        has no such field. The column ``_key`` has the keys where the topic makes them by a function.
Rule 3: each output is a plan of its own: what several depend on is read and computed once for each, from the same
        entries. So it must not depend on more than its input, such as rand().
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
ROWS: Final = "tidelog_rows"  # the name of what is observed: the rows of each output

Output = tuple[Topic[Any], DataFrame]


def outputs_of(job: Job, result: object) -> list[Output]:
    """What the function returned, in the order of the job's outputs. FunctionError if it is something else."""
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
            raise FunctionError(f"{said} a frame for {_shown(topic)}, none of its outputs: name it in outputs=")
        if not isinstance(frame, DataFrame):
            raise FunctionError(f"{said} {type(frame).__name__} for topic {topic.name!r}: return a DataFrame")
        if not frame.isStreaming:
            raise FunctionError(f"{said} for topic {topic.name!r} a frame that does not depend on any input")
    return [(topic, _fields_of(job, topic, result[topic])) for topic in job.outputs if topic in result]


def _shown(topic: object) -> str:
    return f"topic {topic.name!r}" if isinstance(topic, Topic) else repr(topic)


def _fields_of(job: Job, topic: Topic[Any], frame: DataFrame) -> DataFrame:
    """The columns that are written. JobError for those that are no fields, or lack."""
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
                f"job {job.name!r}, topic {topic.name!r}: column {name} is no field of {shape.title}: drop it, rename "
                "it, or add the field"
            )
    for field in shape.fields:
        if field.required and field.name not in names:
            raise JobError(
                f"job {job.name!r}, topic {topic.name!r}: there is no column {field.name}, which {shape.title} must "
                "have: add it, or give the field a default"
            )
    if keyed and KEY not in names:
        raise JobError(
            f"job {job.name!r}, topic {topic.name!r}: its keys are made by a function, so the frame needs a column "
            f"{KEY} with the key of each row"
        )
    return frame.select(*[_quoted(name) for name in names])


def route_of(topic: Topic[Any], frame: DataFrame) -> TopicRoute:
    """How the rows of an output are written."""
    keyed = topic.declared.partition_by == FUNCTION
    needed = [field.name for field in topic.codec.shape.fields if not field.nullable and field.name in frame.columns]
    return TopicRoute(topic.name, KEY if keyed else None, tuple(needed))


def check_types(job: Job, outputs: Sequence[Output], options: Mapping[str, str]) -> None:
    """JobError for columns whose types don't fit their topics as they stand on the server.

    options: of the sink, without ``topic``.
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
    """The rows of all outputs, each with the number of its output: see tidelog.spark.routes."""
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
