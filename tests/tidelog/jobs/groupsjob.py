"""Jobs whose topics and replay logs are on both groups of a cluster. Engines import this module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.tidelog.jobs.groupskit import PARTITIONS, Click, Total, counted
from tidelog.jobs import MicroBatch, State, job
from tidelog.topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

clicks: Topic[Click] = Topic("both-clicks", Click, partition_by="user", partitions=PARTITIONS)
copies: Topic[Click] = Topic("both-copies", Click, partition_by="user", partitions=PARTITIONS)
totals: Topic[Total] = Topic("both-totals", Total, partition_by="user", partitions=PARTITIONS)


@job(inputs=[clicks], outputs=[copies, totals], state=int, max_rows=50, timeout=60)
def both(batch: MicroBatch, state: State[int]) -> dict[Topic[Any], pa.Table]:
    return {copies: batch.table, totals: counted(batch, state)}


framed: Topic[Click] = Topic("both-framed", Click, partition_by="user", partitions=PARTITIONS)
halves: Topic[Click] = Topic("both-halves", Click, partition_by="n", partitions=PARTITIONS)
tallies: Topic[Total] = Topic("both-tallies", Total, partition_by="user", partitions=PARTITIONS)


@job(inputs=[clicks], outputs=[framed, halves], max_rows=50)
def framing(clicks: DataFrame) -> dict[Topic[Any], DataFrame]:
    return {framed: clicks, halves: clicks.where("n % 2 = 0")}


@job(inputs=[clicks], outputs=[tallies], max_rows=50, options={"outputMode": "update"})
def tallying(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("user").count().withColumnRenamed("count", "clicks")
