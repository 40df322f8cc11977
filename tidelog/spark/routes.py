"""Writes one batch to several topics. Each row names its topic, and has its columns in a struct.

    _out int    o0 struct<id long, item string>    o1 struct<day date, total long>
    0           {1, tea}                           null                               to the first topic
    1           null                               {2026-01-31, 5}                    to the second

tidelog.jobs builds such rows from the frames that a job returns, so that one query and one publish write all of them.
The option that names the topics is internal (``options.Routes``).

Rule 1: the rows of a topic's partition keep their order.
Rule 2: a null in a column that the topic needs is a RowError, because the entry would not be a record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from tidelog.client.publish import StagedRows
from tidelog.spark.commands import RowError
from tidelog.spark.options import TopicOptions, TopicRoute, TopicRoutes, WriteOptions
from tidelog.spark.optionvalues import OptionError
from tidelog.spark.partitioning import TopicEntries
from tidelog.spark.topics import TargetTopic, target_of

OUT: Final = "_out"


def column(number: int) -> str:
    """Return the name of the column with the rows of a topic."""
    return f"o{number}"


class RoutedEntries:
    """Builds StagedRows from rows for several topics. ``routes[n]`` and ``entries[n]`` belong to ``column(n)``."""

    def __init__(self, routes: Sequence[TopicRoute], entries: Sequence[TopicEntries]) -> None:
        self.routes = routes
        self.entries = entries

    def parts(self, batch: pa.RecordBatch) -> Iterator[StagedRows]:
        """Yield the rows of a batch by topic and partition, in order.

        Raises RowError for a row with a null that its topic cannot have, without a key, or without any value.
        """
        out = batch.column(OUT)
        for number, (route, entries) in enumerate(zip(self.routes, self.entries, strict=True)):
            rows = batch.column(column(number)).filter(pc.equal(out, number))
            if not len(rows):
                continue
            fields = pa.RecordBatch.from_struct_array(rows)
            for name in route.needed:
                if fields.column(name).null_count:
                    raise RowError(
                        f"topic {route.topic!r}: a row's {name} is null, and records must have it: filter such rows, "
                        "use coalesce, or let the record's type have None"
                    )
            yield from entries.parts(fields)


def routed(
    sink: WriteOptions, routes: TopicRoutes, schema: StructType
) -> tuple[tuple[TargetTopic, ...], RoutedEntries]:
    """Return the topics and the builders of their entries. Raises as ``target_of``; OptionError for other columns."""
    names = [column(number) for number in range(len(routes.topics))]
    if schema.fieldNames() != [OUT, *names]:
        raise OptionError(f"rows with routes have the columns {', '.join([OUT, *names])}")
    made = []
    for name, route in zip(names, routes.topics, strict=True):
        kind = schema[name].dataType
        if not isinstance(kind, StructType):
            raise OptionError(f"column {name} must be a struct")
        made.append(target_of(sink, TopicOptions(route.topic, route.partition_by, None, None), kind))
    return tuple(target for target, _ in made), RoutedEntries(routes.topics, [entries for _, entries in made])
