"""Reads of history objects before and after a move that links them below the prefix of the new owner."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import IntegerType, StringType, StructType

from tests.replication.cluster import cluster
from tests.replication.clusters import Groups
from tests.replication.test_tiered_moves import wait_until_freed
from tests.tidelog.history.kit import copy_all
from tests.tidelog.jobs.s3kit import s3_bucket
from tests.wire.rawclient import Raw
from tidelog.spark.options import for_source
from tidelog.spark.optionvalues import BATCH, OptionValues
from tidelog.spark.source import TidelogReader

SCHEMA = StructType().add("_id", StringType()).add("n", IntegerType())
KEY = "{a}x"  # slot 15495
COUNT = 205

Row = tuple[str, int]


@pytest.fixture(params=["directory", "s3"])
def groups(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Groups]:
    """Two groups. The second one owns {a}. Objects are kept, as with the default of ``tier-grace``."""
    with ExitStack() as stack:
        top = str(tmp_path)
        if request.param == "s3":
            top = f"{stack.enter_context(s3_bucket())}/{tmp_path.name}"
        made = Groups(stack.enter_context(cluster()), groups=0, divide=False)
        for name in "12":
            if request.param == "directory":
                (tmp_path / name).mkdir()
            made.add(
                tier_url=f"{top}/{name}", tier_after=0, tier_interval=0, tier_free="yes", stream_node_max_entries=10,
                node_cache_size=0, save="", move_pause=5000,
            )  # fmt: skip
        made.divide()
        yield made


def reader(groups: Groups, history: str) -> TidelogReader:
    url = "redis://" + ",".join(f"127.0.0.1:{node.port}" for node in groups.nodes)
    options = {"url": url, "subscribe": KEY, "history": history, "minPartitions": "3"}
    return TidelogReader(for_source(OptionValues(options), BATCH), SCHEMA)


def rows(groups: Groups, history: str) -> list[Row]:
    made = reader(groups, history)
    return [row for partition in made.partitions() for row in read(made, partition)]


def read(made: TidelogReader, partition: InputPartition) -> list[Row]:
    return [(row["_id"], row["n"]) for batch in made.read(partition) for row in batch.to_pylist()]


def commands(groups: Groups) -> int:
    """Return how many TRANGE the leaders have executed."""
    return sum(
        int(node.redis.info("commandstats").get("cmdstat_trange", {"calls": 0})["calls"]) for node in groups.nodes
    )


def pad(n: int) -> str:
    """Return text that can't be compressed much: small nodes do not leave the store."""
    return random.Random(n).randbytes(60).hex()


def add(groups: Groups, owner: str, first: int, end: int) -> None:
    with Raw(groups.leader(owner).port) as client:
        client.pipeline(*[("XADD", KEY, f"{n}-1", "n", str(n), "pad", pad(n)) for n in range(first, end)])
    copy_all(groups.leader(owner))


def test_the_same_rows_before_and_after_a_move(groups: Groups) -> None:
    add(groups, "2", 1, 101)
    add(groups, "2", 101, COUNT)
    two = groups.leader(2)
    with Raw(two.port) as client:
        assert client("XDEL", KEY, "55-1", "56-1") == 2
        assert client("XTRIM", KEY, "MINID", "13-1") == 12
    wait_until_freed(two, 15)
    before = rows(groups, "direct")
    assert [n for _, n in before] == [n for n in range(13, COUNT) if n not in (55, 56)]
    planned = reader(groups, "direct")
    partitions = planned.partitions()
    groups.move("15495", to="1", at=2)
    assert two.logged("2 of 2 history objects of the moving slots are linked")
    assert [row for partition in partitions for row in read(planned, partition)] == before, "planned before the move"
    assert rows(groups, "server") == before
    add(groups, "1", COUNT, COUNT + 50)
    executed = commands(groups)
    after = rows(groups, "direct")
    assert commands(groups) - executed <= 6, "the first entry, and those after the last copied one"
    assert after[: len(before)] == before
    assert [n for _, n in after[len(before) :]] == list(range(COUNT, COUNT + 50))
    assert rows(groups, "server") == after
    with Raw(groups.leader(1).port) as client:
        assert client("TMANIFEST", KEY)[1].endswith(b"/1"), "the prefix of the new owner"
