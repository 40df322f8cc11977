"""A job with state, as a user would write it: how often each user has clicked."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.jobs import MicroBatch, State, job
from tidelog.topics import Topic


class Click(msgspec.Struct):
    user: str
    at: int


class Total(msgspec.Struct):
    user: str
    clicks: int


clicks: Topic[Click] = Topic("clicks", Click, partition_by="user", partitions=2)
totals: Topic[Total] = Topic("totals", Total, partition_by="user", partitions=3)


@job(inputs=[clicks], outputs=[totals], state=int, max_rows=50)
def count(batch: MicroBatch, state: State[int]) -> dict[Topic[Total], pa.Table]:
    """For each user of the batch, the clicks until now."""
    found = pc.value_counts(batch.table["user"]).to_pylist()
    users = [each["values"] for each in found]
    now = [(old or 0) + each["counts"] for old, each in zip(state.get_many(users), found, strict=True)]
    state.put_many(users, now)
    return {totals: pa.table({"user": users, "clicks": now})}
