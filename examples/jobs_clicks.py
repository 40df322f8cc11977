"""Three jobs on clicks: running counts and alarms with state, the most frequent user of each city, and totals per day.

    tidelog-server --port 6379 &
    export TIDELOG_URL=redis://localhost:6379
    python examples/jobs_clicks.py                            # sends a year of clicks, once
    tidelog jobs add --all examples.jobs_clicks
    tidelog jobs engine --master 'local[2]' --state-dir ./state

The clicks are clicks on a page with the weather. City, hour, and temperature were measured in San Francisco and
Seattle, hourly for a year (vega_datasets). The users are generated from a fixed seed.

``count`` and ``lead`` form a chain: ``count`` writes its totals by city, so each partition of ``lead`` has whole
cities.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec
import pyarrow as pa

from tidelog.jobs import MicroBatch, job
from tidelog.topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidelog.jobs.state import State

URL: Final = os.environ.get("TIDELOG_URL", "redis://localhost:6379")
USERS: Final = 32
LIMIT: Final = 4  # clicks of a user per day; more raise an alarm
WEEK: Final = 7 * 86400.0  # seconds for which the clicks of a day are stored


class Click(msgspec.Struct):
    user: str
    city: str
    at: datetime  # in UTC
    temp: float  # degrees Fahrenheit, as shown on the page


class Total(msgspec.Struct):
    """The current number of clicks of a user on a city."""

    user: str
    city: str
    clicks: int


class Alarm(msgspec.Struct):
    """A user had more than LIMIT clicks in a day."""

    user: str
    day: str


class Leader(msgspec.Struct):
    """The user with the most clicks on a city, from now on."""

    city: str
    user: str
    clicks: int


class Day(msgspec.Struct):
    city: str
    day: str
    clicks: int
    temp: float  # mean


clicks: Topic[Click] = Topic("clicks", Click, partition_by="user", partitions=4, url=URL)
totals: Topic[Total] = Topic("city-totals", Total, partition_by="city", partitions=4, url=URL)
alarms: Topic[Alarm] = Topic("alarms", Alarm, partition_by="user", partitions=4, url=URL)
leaders: Topic[Leader] = Topic("leaders", Leader, partition_by="city", partitions=4, url=URL)
daily: Topic[Day] = Topic("daily", Day, partition_by="city", partitions=4, url=URL)


@job(inputs=[clicks], outputs=[totals, alarms], state=int)
def count(batch: MicroBatch, state: State[int]) -> dict[Topic[Any], pa.Table]:
    """Add to the counts of each user and city. Write a row for each changed count, and one alarm per user and day."""
    table = batch.table.select(["user", "city"])
    added = table.group_by(["user", "city"], use_threads=False).aggregate([([], "count_all")])
    names = [f"{user}/{city}" for user, city in zip(*_lists(added, "user", "city"), strict=True)]
    now = _add(state, names, added["count_all"].to_pylist())

    days = pa.table({"user": batch.table["user"], "day": batch.table["at"].cast(pa.date32()).cast(pa.string())})
    by_day = days.group_by(["user", "day"], use_threads=False).aggregate([([], "count_all")])
    users, dates, more = _lists(by_day, "user", "day", "count_all")
    after = _add(state.space("days", int), [f"{u}/{d}" for u, d in zip(users, dates, strict=True)], more, ttl=WEEK)
    passed = [a - m <= LIMIT < a for a, m in zip(after, more, strict=True)]
    return {
        totals: added.select(["user", "city"]).append_column("clicks", pa.array(now, pa.int64())),
        alarms: by_day.select(["user", "day"]).filter(pa.array(passed)),
    }


@job(inputs=[totals], outputs=[leaders], state=Leader)
def lead(batch: MicroBatch, state: State[Leader]) -> dict[Topic[Any], pa.Table]:
    """Write a row when another user has the most clicks on a city."""
    cities = batch.table["city"].unique().to_pylist()
    first = dict(zip(cities, state.get_many(cities), strict=True))
    changed: list[Leader] = []
    for city, user, number in zip(*_lists(batch.table, "city", "user", "clicks"), strict=True):
        best = first[city]
        if best is None or number > best.clicks:
            first[city] = Leader(city, user, number)
            if best is None or best.user != user:
                changed.append(Leader(city, user, number))
    state.put_many(cities, [first[city] for city in cities])
    columns = {name: [getattr(each, name) for each in changed] for name in Leader.__struct_fields__}
    kinds = pa.schema({"city": pa.string(), "user": pa.string(), "clicks": pa.int64()})
    return {leaders: pa.table(columns, schema=kinds)}


@job(inputs=[clicks], outputs=[daily])
def per_day(frame: DataFrame) -> DataFrame:
    """Return clicks and mean temperature of each city and day when the day is over. Clicks may be up to two days late.
    """
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    days = frame.withWatermark("at", "2 days").groupBy("city", F.window("at", "1 day"))
    return days.agg(F.count("*").alias("clicks"), F.round(F.avg("temp"), 2).alias("temp")).select(
        "city", F.date_format("window.start", "yyyy-MM-dd").alias("day"), "clicks", "temp"
    )


def _lists(table: pa.Table, *columns: str) -> list[list[Any]]:
    return [table[column].to_pylist() for column in columns]


def _add(state: State[int], names: list[str], more: list[int], ttl: float | None = None) -> list[int]:
    """Add to counts, and return the new counts."""
    now = [(before or 0) + add for before, add in zip(state.get_many(names), more, strict=True)]
    state.put_many(names, now, ttl=ttl)
    return now


def real_clicks() -> Iterator[Click]:
    """Yield a year of clicks, ordered by time."""
    from vega_datasets import local_data

    rows: list[tuple[datetime, str, float]] = []
    for city, source in (("San Francisco", local_data.sf_temps), ("Seattle", local_data.seattle_temps)):
        with open(source.filepath, newline="") as file:
            for row in csv.DictReader(file):
                at = datetime.strptime(row["date"][:16], "%Y/%m/%d %H:%M").replace(tzinfo=UTC)
                rows.append((at, city, float(row["temp"])))
    for at, city, temp in sorted(rows):
        chance = crc32(f"{city} {at:%Y-%m-%d %H}".encode())
        number = min(chance % USERS, chance // USERS % USERS)  # some users click more than others
        yield Click(f"user-{number}", city, at, temp)


def main() -> None:
    for topic in (clicks, totals, alarms, leaders, daily):
        topic.sync.send_many([])  # creates the topic
    if not sum(clicks.client.tlen(clicks.stream(each)) for each in range(clicks.partitions)):
        sent = clicks.sync.send_many(real_clicks())
        print(f"{sent:,} clicks sent")  # noqa: T201 - a program for the terminal
    for topic in (clicks, totals, alarms, leaders, daily):
        topic.close_sync()


if __name__ == "__main__":
    main()
