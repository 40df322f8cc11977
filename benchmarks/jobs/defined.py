"""The jobs that are measured: the same work as Spark's own ways in ``keyed`` and ``peers``.

In a module of their own because Spark's Python workers import it. Rows of a batch, and how often there is a snapshot,
stand in the environment: that is where engine and workers have it from.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.jobs.loads import CHEAP, DEAR, cheap, clicks, dear, totals
from tidelog.jobs import MicroBatch, job
from tidelog.topics import Topic

if TYPE_CHECKING:
    from tidelog.jobs.state import State

MOST: Final = "BENCH_MAX_ROWS"  # of a partition, in a batch
SNAPSHOT: Final = "BENCH_SNAPSHOT_EPOCHS"
_most: Final = int(os.environ.get(MOST, "100000"))
_epochs: Final = int(os.environ.get(SNAPSHOT, "1000000000"))


@job(inputs=[clicks], outputs=[totals], state=int, max_rows=_most, snapshot_every=1e9, snapshot_epochs=_epochs)
def count(batch: MicroBatch, state: State[int]) -> dict[Topic[Any], pa.Table]:
    """A running count: a row for each key in the batch."""
    found = pc.value_counts(batch.table["key"])
    keys, added = found.field("values"), found.field("counts").to_pylist()
    now = [(before or 0) + more for before, more in zip(state.get_many(keys), added, strict=True)]
    state.put_many(keys, now)
    return {totals: pa.table({"key": keys, "count": pa.array(now, pa.int64())})}


@job(inputs=[clicks], outputs=[cheap, dear], max_rows=_most)
def split(batch: MicroBatch) -> dict[Topic[Any], pa.Table]:
    """A filter with two outputs."""
    price = batch.table["price"]
    return {
        cheap: batch.table.filter(pc.less(price, CHEAP)),
        dear: batch.table.filter(pc.greater_equal(price, DEAR)),
    }
