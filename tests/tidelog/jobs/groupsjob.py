"""A stateful job whose topics and replay logs are on both groups of a cluster. Engines import this module."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tests.tidelog.jobs.groupskit import PARTITIONS, Click, Total, counted
from tidelog.jobs import MicroBatch, State, job
from tidelog.topics import Topic

clicks: Topic[Click] = Topic("both-clicks", Click, partition_by="user", partitions=PARTITIONS)
copies: Topic[Click] = Topic("both-copies", Click, partition_by="user", partitions=PARTITIONS)
totals: Topic[Total] = Topic("both-totals", Total, partition_by="user", partitions=PARTITIONS)


@job(inputs=[clicks], outputs=[copies, totals], state=int, max_rows=50, timeout=60)
def both(batch: MicroBatch, state: State[int]) -> dict[Topic[Any], pa.Table]:
    return {copies: batch.table, totals: counted(batch, state)}
