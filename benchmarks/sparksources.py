"""What the Spark source is measured against: a source that makes its rows up, itself by hiredis, one with redis-py.

In a module of their own because Spark's workers import it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidelog.arrow.pages import SWITCH, native
from tidelog.spark.options import for_source
from tidelog.spark.optionvalues import BATCH as READ_ONCE
from tidelog.spark.source import TidelogDataSource, TidelogReader

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


class ByHiredis(TidelogDataSource):
    """tidelog's own source, as it reads where nothing could be compiled."""

    @classmethod
    def name(cls) -> str:
        return "tidelog_by_hiredis"

    def reader(self, schema: StructType) -> TidelogReader:
        return ByHiredisReader(for_source(self.given, READ_ONCE), schema)


class ByHiredisReader(TidelogReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        os.environ[SWITCH] = "0"  # of this worker, which reads for others too
        try:
            yield from super().read(partition)
        finally:
            del os.environ[SWITCH]


class Compiled(TidelogDataSource):
    """The same, compiled: fails where it isn't, so that no figure is of something else."""

    @classmethod
    def name(cls) -> str:
        return "tidelog_compiled"

    def reader(self, schema: StructType) -> TidelogReader:
        return CompiledReader(for_source(self.given, READ_ONCE), schema)


class CompiledReader(TidelogReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not native():
            raise AssertionError("tidelog.arrow._rows is not built here")
        return super().read(partition)


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
