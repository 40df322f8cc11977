"""A job that counts by user, whose state depends on where its calls end; and what tests of tasks with state share.

Needs pyarrow.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pyarrow as pa

from tests.tidelog.jobs.taskkit import Bench, texts
from tidelog.jobs import MicroBatch, job
from tidelog.jobs.state import State
from tidelog.topics import Topic


class Click(msgspec.Struct):
    user: str
    n: int


class Total(msgspec.Struct):
    user: str
    count: int


clicks: Topic[Click] = Topic("clicks", Click, partition_by="user", partitions=1)
others: Topic[Click] = Topic("others", Click, partition_by="user", partitions=1)
totals: Topic[Total] = Topic("totals", Total, partition_by="user", partitions=1)
calls: list[tuple[str, int]] = []  # topic and rows of each call


def fresh() -> None:
    """Forget what the topics know of a server, and the calls."""
    calls.clear()
    for topic in (clicks, others, totals):
        topic.forget_settings()


@job(inputs=[clicks, others], outputs=[totals], state=int)
def count(batch: MicroBatch, state: State[int]) -> Any:
    assert batch.topic is not None
    calls.append((batch.topic.name, len(batch)))
    users = batch.table["user"].to_pylist()
    mine = Counter(users)
    if "poison" in mine:
        raise ValueError(f"poison among {len(batch)}")
    names = list(mine)
    before = state.get_many(names)
    after = [(old or 0) + mine[name] for name, old in zip(names, before, strict=True)]
    state.put_many([*names, "calls", "last"], [*after, len(calls_of(state)), len(batch)])
    return {totals: pa.table({"user": names, "count": after})}


def calls_of(state: State[int]) -> range:
    """One more than there were: so the state depends on where calls end."""
    (number,) = state.get_many(["calls"])
    return range((number or 0) + 1)


def send(bench: Bench, *users: str, to: Topic[Click] = clicks) -> None:
    to.sync.send_many([Click(user, n) for n, user in enumerate(users)])


def counted(bench: Bench) -> dict[str, int]:
    """The totals that were published last, by user."""
    return {row["user"]: int(row["count"]) for row in texts(bench.client, totals)[0]}
