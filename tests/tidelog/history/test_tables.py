"""``to_arrow``, ``tidelog sql``, and ``tidelog export`` over history objects: the same rows as from the server."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[arrow]')")

import msgspec

from tests.tidelog.history.kit import copy_all, tiered
from tests.wire.rawclient import Raw
from tidelog import Client
from tidelog.arrow.rows import EvictedError, to_arrow
from tidelog.exporting.export import ExportOptions, export_table
from tidelog.exporting.target import ExportTarget
from tidelog.history import choice
from tidelog.history.errors import HistoryError
from tidelog.testing import Server, running_server
from tidelog.topics import Topic
from tidelog.transport.access import Access

FIRST = 1_700_000_000_000


class Order(msgspec.Struct):
    n: int


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with tiered(tmp_path_factory.mktemp("target")) as running:
        yield running


def fill(server: Server, key: str, numbers: range) -> None:
    with Raw(server.port) as client:
        client.pipeline(*[("XADD", key, f"{FIRST + n}-{n % 2}", "n", str(n)) for n in numbers])
    copy_all(server)


def reads(server: Server) -> int:
    """Return how many TRANGE the server has executed."""
    with Raw(server.port) as client:
        lines = client("INFO", "commandstats").decode().splitlines()
    (found,) = [line for line in lines if line.startswith("cmdstat_trange:")]
    return int(found.partition("calls=")[2].partition(",")[0])


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("-", "+"),
        (FIRST + 5, FIRST + 20),
        (f"{FIRST + 5}.1", f"{FIRST + 20}.0"),
        (f"({FIRST + 5}.1", f"{FIRST + 50}"),
        (f"({FIRST + 5}.1", f"({FIRST + 20}.0"),
        (FIRST + 43, "+"),
        (FIRST + 30, FIRST + 30),
        ("9", "5"),
        (0, FIRST + 2),
    ],
)
def test_ranges(server: Server, start: int | str, end: int | str) -> None:
    with Raw(server.port) as client:
        if not client("EXISTS", "ranges"):
            fill(server, "ranges", range(1, 20))
            fill(server, "ranges", range(20, 46))
            client("XDEL", "ranges", f"{FIRST + 7}-1")
            client("XTRIM", "ranges", "MINID", f"{FIRST + 3}")
    expected = to_arrow(server.url, "ranges", start, end, history="server").to_table()
    assert to_arrow(server.url, "ranges", start, end, history="direct").to_table() == expected
    assert to_arrow(server.url, "ranges", start, end).to_table() == expected


def test_auto_reads_objects_and_continues_at_the_server(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(server, "auto", range(1, 20))
    fill(server, "auto", range(20, 41))
    monkeypatch.setattr(choice, "FEWEST", 1)
    with Client(server.url) as client:
        rows = client.to_arrow("auto", history="server")
        expected = rows.to_table()
        direct = client.to_arrow("auto")
        before = reads(server)
        assert direct.to_table() == expected
        assert reads(server) - before == 2, "the last copied entry, and the rest"
        objects = Path(str(server.config["tier-url"])) / "objects"
        newest = max(objects.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        content = newest.read_bytes()
        newest.write_bytes(content[:30] + b"#" + content[31:])
        with caplog.at_level(logging.WARNING):
            assert direct.to_table() == expected
        assert f"{newest} is damaged" in caplog.text
        with pytest.raises(HistoryError, match=r"is damaged.*\. history=server reads from the server instead"):
            client.to_arrow("auto", history="direct").to_table()
        with pytest.raises(ValueError, match="history must be one of auto, direct, server: 'objects'"):
            client.to_arrow("auto", history="objects")
        newest.write_bytes(content)


def test_entries_that_are_evicted_during_a_read(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(server, "evicted", range(1, 50))
    monkeypatch.setattr("tidelog.arrow.rows.BATCH_ROWS", 10)
    batches = iter(to_arrow(server.url, "evicted", history="direct"))
    assert next(batches).num_rows == 10
    with Raw(server.port) as client:
        client("XTRIM", "evicted", "MAXLEN", 2)
    with pytest.raises(EvictedError, match=rf"the entries after {FIRST + 40}\.0 were evicted"):
        list(batches)


def test_a_topic_and_sql_and_export(server: Server, tmp_path: Path) -> None:
    topic = Topic[Order]("orders", Order, partition_by="n", partitions=2, url=server.url)
    topic.sync.send_many(Order(number) for number in range(60))
    topic.sync.close()
    copy_all(server)
    expected = to_arrow(server.url, "orders", history="server").to_table()
    assert expected.num_rows == 60
    assert to_arrow(server.url, "orders", history="direct").to_table() == expected
    access = Access.of(server.url)
    for history in ("server", "direct"):
        options = ExportOptions({}, history=history)
        results = list(export_table(access, "orders", ExportTarget(str(tmp_path / history)), options))
        assert sum(each.rows for each in results) == 60
    names = [sorted(path.name for path in (tmp_path / each).rglob("*.parquet")) for each in ("server", "direct")]
    assert names[0] == names[1]
    duckdb = pytest.importorskip("duckdb", reason="no duckdb here (pip install 'tidelog[sql]')")
    assert duckdb
    query = "select sum(n)::int as total from orders where _ts > now() - interval 1 hour"
    command = [sys.executable, "-m", "tidelog.cli", "sql", query, "--url", server.url, "--json", "--history", "direct"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert json.loads(done.stdout) == {"total": sum(range(60))}
    with running_server() as plain:
        with Client(plain.url) as client:
            client.tappend("orders", {"n": 1})
        failed = subprocess.run(
            [*command[:4], "select * from orders", "--url", plain.url, "--history", "direct"], capture_output=True,
            text=True, check=False, timeout=100,
        )  # fmt: skip
        assert failed.returncode == 1
        assert failed.stderr == (
            "Error: the server copies no history: its tier-url is empty. history=server reads from the server instead\n"
        )
