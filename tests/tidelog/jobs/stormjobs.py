"""The chain of jobs that stands in a storm, and what it must put out.

    clicks -> count -> totals -> alarm -> alarms -> tally -> tallies

``count`` and ``tally`` have a state. A row of ``totals`` or ``tallies`` depends on all rows before it: if one is lost,
duplicated or out of its order, all that follow are others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

PARTITIONS: Final = {"count": 2, "alarm": 2, "tally": 3}
KEPT: Final = 3  # snapshots

#: The module, as engines find it.
SOURCE: Final = f"""
import msgspec, pyarrow as pa
from tidelog.jobs import MicroBatch, State, job
from tidelog.topics import Topic

class Click(msgspec.Struct):
    number: int
    user: str

class Total(msgspec.Struct):
    user: str
    number: int
    count: int

class Alarm(msgspec.Struct):
    level: str
    user: str
    count: int

class Tally(msgspec.Struct):
    level: str
    user: str
    count: int
    total: int

clicks = Topic("clicks", Click, partition_by="user", partitions={PARTITIONS["count"]})
totals = Topic("totals", Total, partition_by="user", partitions={PARTITIONS["alarm"]})
alarms = Topic("alarms", Alarm, partition_by="level", partitions={PARTITIONS["tally"]})
tallies = Topic("tallies", Tally, partition_by="level", partitions=2)

def counted(names, state):
    known = list(dict.fromkeys(names))
    now = {{name: value or 0 for name, value in zip(known, state.get_many(known))}}
    out = []
    for name in names:
        now[name] += 1
        out.append(now[name])
    state.put_many(known, list(now.values()))
    return out

@job(inputs=[clicks], outputs=[totals], state=int, max_rows=300, snapshot_epochs=4, keep={KEPT})
def count(batch: MicroBatch, state: State[int]):
    users = batch.table["user"].to_pylist()
    return {{totals: pa.table({{"user": users, "number": batch.table["number"], "count": counted(users, state)}})}}

@job(inputs=[totals], outputs=[alarms])
def alarm(batch: MicroBatch):
    rows = [row for row in batch.table.select(["user", "count"]).to_pylist() if row["count"] % 3 == 0]
    levels = [f"l{{row['count'] % 7}}" for row in rows]
    return {{alarms: pa.table({{"level": pa.array(levels, pa.string()),
                               "user": pa.array([row["user"] for row in rows], pa.string()),
                               "count": pa.array([row["count"] for row in rows], pa.int64())}})}}

@job(inputs=[alarms], outputs=[tallies], state=int, max_rows=300, snapshot_epochs=3, keep={KEPT})
def tally(batch: MicroBatch, state: State[int]):
    return {{tallies: batch.table.select(["level", "user", "count"]).append_column(
        "total", pa.array(counted(batch.table["level"].to_pylist(), state), pa.int64()))}}
"""


def model(clicks: Sequence[Sequence[dict[str, str]]]) -> Iterator[list[tuple[str, str, int]]]:
    """What ``count`` makes of the entries of each partition: user, number, count, in order."""
    for partition in clicks:
        now: dict[str, int] = {}
        rows = []
        for row in partition:
            now[row["user"]] = now.get(row["user"], 0) + 1
            rows.append((row["user"], row["number"], now[row["user"]]))
        yield rows
