"""What the Spark source is measured against: a source that makes its rows up, and one that reads with redis-py.

In a module of their own because Spark's workers import it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

SCHEMA = "n long, s string"
BATCH = 10_000


class Synthetic(DataSource):
    """The ceiling: the same Arrow batch again and again, so what is measured is Spark."""

    @classmethod
    def name(cls) -> str:
        return "synthetic"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return SyntheticReader(int(self.options["rows"]), schema)


class SyntheticReader(DataSourceReader):
    def __init__(self, rows: int, schema: StructType) -> None:
        self.rows = rows
        self.schema = schema

    def read(self, _: InputPartition) -> Iterator[Any]:
        columns = [pa.array(range(BATCH), pa.int64()), pa.array([f"text {n}" for n in range(BATCH)])]
        batch = pa.RecordBatch.from_arrays(columns, schema=to_arrow_schema(self.schema, timezone="UTC"))
        for _number in range(self.rows // BATCH):
            yield batch


class WithRedisPy(DataSource):
    """What one would write with redis-py: pages by TRANGE, a tuple a row."""

    @classmethod
    def name(cls) -> str:
        return "with_redis_py"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - passed by name
        return WithRedisPyReader(self.options["url"], self.options["subscribe"])


class WithRedisPyReader(DataSourceReader):
    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self.key = key

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(None)]

    def read(self, _: InputPartition) -> Iterator[tuple[int, str]]:
        import redis

        client = redis.Redis.from_url(self.url)
        start = "-"
        while page := client.execute_command("TRANGE", self.key, start, "+", "COUNT", BATCH):
            for row in page:
                yield int(row[2]), row[4].decode()
            start = f"({page[-1][0].decode()}"


def append_with_redis_py(url: str, key: str, rows: Iterator[Any]) -> None:
    """A partition's rows by TAPPEND, a thousand in a pipeline: what one would call in foreachBatch."""
    import redis

    client = redis.Redis.from_url(url)
    pipe = client.pipeline(transaction=False)
    for number, row in enumerate(rows, 1):
        pipe.execute_command("TAPPEND", key, "n", row[0], "s", row[1])
        if number % 1000 == 0:
            pipe.execute()
    pipe.execute()
