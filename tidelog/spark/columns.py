"""The columns of a read for Spark's schemas. ``tidelog.arrow.columns`` converts pages to batches of them.

default row:        _key string, _id string, _ts timestamp, fields map<string, binary>
of a topic:         _partition int, too, before fields
with .schema(...):  columns of these names and types, _corrupt string, and fields of entries
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidelog.arrow.columns import Columns, ColumnTypeError
from tidelog.spark.optionvalues import OptionError

DEFAULT_SCHEMA: Final = "_key string, _id string, _ts timestamp, fields map<string, binary>"
TOPIC_SCHEMA: Final = "_key string, _id string, _ts timestamp, _partition int, fields map<string, binary>"


def columns_of(schema: StructType, mode: str, topic: bool = False) -> Columns:
    """Return the columns for a schema of Spark. Raises OptionError for a column type that a field cannot have."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    types = {column.name: column.dataType.simpleString() for column in schema.fields}
    try:
        return Columns(arrow, mode, topic, types)
    except ColumnTypeError as error:
        raise OptionError(f"schema: {error}") from None
