"""Direct reads of a topic whose partitions are in several groups, before and after a move."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[arrow]')")
pytest.importorskip("duckdb", reason="no duckdb here (pip install 'tidelog[sql]')")

import msgspec

from commands.slots import slot_of
from tests.replication.cluster import cluster
from tests.replication.clusters import Groups
from tests.tidelog.history.kit import copy_all
from tests.wire.rawclient import Raw
from tidelog.arrow.rows import to_arrow
from tidelog.exporting.export import ExportOptions, export_table
from tidelog.exporting.target import ExportTarget
from tidelog.topics import Topic
from tidelog.transport.access import Access

ROWS = 200


class Order(msgspec.Struct):
    n: int
    text: str


def test_a_topic_in_two_groups(tmp_path: Path) -> None:
    with cluster() as servers:
        groups = Groups(servers, groups=0, divide=False)
        for name in "12":
            (tmp_path / name).mkdir()
            groups.add(
                tier_url=str(tmp_path / name), tier_after=0, tier_interval=0, tier_free="yes",
                stream_node_max_entries=10, node_cache_size=0, move_pause=5000,
            )  # fmt: skip
        groups.divide()
        url = "redis://" + ",".join(f"127.0.0.1:{node.port}" for node in groups.nodes)
        topic = Topic[Order]("orders", Order, partition_by="n", partitions=4, url=url)
        topic.sync.send_many(Order(number, f"{number * 7919 % 1000003:0100}") for number in range(ROWS))
        topic.sync.close()
        compare(groups, url, tmp_path / "before")
        keys = [f"orders:{partition}" for partition in range(4)]
        found = {key: groups.owner(key) for key in keys if exists(groups, key)}
        assert set(found.values()) == {"1", "2"}, found
        key = next(key for key, owner in found.items() if owner == "2")
        groups.move(str(slot_of(key.encode())), to="1", at=2)
        compare(groups, url, tmp_path / "after")


def exists(groups: Groups, key: str) -> bool:
    return bool(groups.leader(groups.owner(key)).say("EXISTS", key))


def compare(groups: Groups, url: str, target: Path) -> None:
    """Compare all programs that read objects with the server."""
    for number in (1, 2):
        copy_all(groups.leader(number))
    expected = to_arrow(url, "orders", history="server").to_table()
    assert expected.num_rows == ROWS
    before = reads(groups)
    assert to_arrow(url, "orders", history="direct").to_table() == expected
    assert reads(groups) - before <= 8, "the last copied entry, and the rest, of each partition"
    options = ExportOptions({}, history="direct")
    results = list(export_table(Access.of(url), "orders", ExportTarget(str(target)), options))
    assert sum(each.rows for each in results) == ROWS
    query = "select sum(n)::int as total from orders"
    command = [sys.executable, "-m", "tidelog.cli", "sql", query, "--url", url, "--json", "--history", "direct"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert json.loads(done.stdout) == {"total": sum(range(ROWS))}


def reads(groups: Groups) -> int:
    """Return how many TRANGE the servers have executed."""
    count = 0
    for node in groups.nodes:
        with Raw(node.port) as client:
            lines = client("INFO", "commandstats").decode().splitlines()
        count += sum(int(line.partition("calls=")[2].partition(",")[0]) for line in lines if "cmdstat_trange:" in line)
    return count
