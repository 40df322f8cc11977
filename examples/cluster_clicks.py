"""A job and workers that read a topic of 8 partitions, which the groups of a cluster share.

    tidelog cluster up --dir ./cluster --groups 2 &
    export TIDELOG_URL=redis://localhost:7000,localhost:7001
    tidelog jobs add examples.cluster_clicks:tally_cities
    tidelog jobs engine --master 'local[2]' --state-dir ./state &
    tidelog worker examples.cluster_clicks:app --workers 2 &
    python examples/cluster_clicks.py                         # sends a year of clicks, once

``scripts/demo --cluster`` runs all of this, and moves slots meanwhile. The clicks are those of ``jobs_clicks``.

Nothing here depends on the number of groups. ``tally_cities`` publishes the number of clicks of each user and city,
exactly once. ``visit`` runs at least once for each click, and has an effect once: it appends to a stream of the user,
with the ID of the click. All clicks of a user are in one partition, so their IDs increase. The server refuses an ID
that is not greater than the last one, which is how a repetition is detected.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import redis

sys.path.append(str(Path(__file__).parent.parent))

from examples.jobs_clicks import Click, Total, real_clicks
from tidelog import AsyncClient
from tidelog.jobs import MicroBatch, State, job
from tidelog.topics import Topic
from tidelog.workers import App, Event

URL: Final = os.environ.get("TIDELOG_URL", "redis://localhost:7000,localhost:7001")
PARTITIONS: Final = 8
REPEATED: Final = "equal or smaller than the target stream top item"  # a part of the server's error

app = App("visits", url=URL)
clicks = app.topic("all-clicks", Click, partition_by="user", partitions=PARTITIONS)
totals: Topic[Total] = Topic("all-totals", Total, partition_by="user", partitions=PARTITIONS, url=URL)


@job(inputs=[clicks], outputs=[totals], state=int)
def tally_cities(batch: MicroBatch, state: State[int]) -> dict[Topic[Any], pa.Table]:
    """Add to the counts of each user and city. Write a row for each changed count."""
    added = batch.table.group_by(["user", "city"], use_threads=False).aggregate([([], "count_all")])
    names = [f"{user}/{city}" for user, city in zip(added["user"], added["city"], strict=True)]
    more = added["count_all"].to_pylist()
    now = [(before or 0) + number for before, number in zip(state.get_many(names), more, strict=True)]
    state.put_many(names, now)
    return {totals: added.select(["user", "city"]).append_column("clicks", pa.array(now, pa.int64()))}


@cache
def client() -> AsyncClient:
    return AsyncClient(URL)


@app.each(clicks, ordering="key", concurrency=50)
async def visit(event: Event[Click]) -> None:
    """Append a click to the stream of its user. The clicks of a user stay in order."""
    click = event.record
    fields: dict[Any, Any] = {"city": click.city, "at": click.at.isoformat()}
    try:
        await client().redis.xadd(f"visits:{click.user}", fields, id=str(event.id))
    except redis.ResponseError as error:
        if REPEATED not in str(error):
            raise


def main() -> None:
    rows = list(real_clicks())
    sent = clicks.sync.producer("a-year").send_many(rows, 1)
    clicks.close_sync()
    print(f"{len(rows):,} clicks sent" if sent.now else "the clicks were sent before")  # noqa: T201 - for the terminal


if __name__ == "__main__":
    main()
