"""``tidelog export NAME --to TARGET``: files by day, each entry once, after kills, with new fields, and to S3."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

pq = pytest.importorskip("pyarrow.parquet", reason="no pyarrow here (pip install 'tidelog[arrow]')")

import pyarrow as pa  # noqa: E402 - after the skip

from tests.waiting import eventually  # noqa: E402
from tidelog import Client, StreamId  # noqa: E402
from tidelog.cli.program import main  # noqa: E402
from tidelog.exporting import parquet  # noqa: E402
from tidelog.exporting.export import ExportOptions, export_table  # noqa: E402
from tidelog.exporting.layout import ExportedFile, ExportError  # noqa: E402
from tidelog.exporting.target import ExportTarget  # noqa: E402
from tidelog.testing import Server  # noqa: E402
from tidelog.topics import Topic  # noqa: E402
from tidelog.transport.access import Access  # noqa: E402

pytestmark = pytest.mark.quick

DAY = 86_400_000
FIRST = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def export(server: Server, name: str, target: Path | str, *more: str, code: int = 0) -> str:
    done: Result = CliRunner().invoke(main, ["export", name, "--to", str(target), "--url", server.url, *more])
    assert done.exit_code == code, done.output
    return done.output


def add(client: Client, key: str, times: range, **fields: Any) -> None:
    pipeline = client.redis.pipeline(transaction=False)
    for time in times:
        pipeline.execute_command("XADD", key, f"{time}-0", "n", time, *chain(*fields.items()))
    pipeline.execute()


def names(lake: Path) -> list[str]:
    return sorted(path.relative_to(lake).as_posix() for path in lake.glob("ts_day=*/*"))


def rows(lake: Path) -> list[dict[str, Any]]:
    """The rows of all files, in the order of the files' names."""
    return [row for name in names(lake) for row in pq.read_table(lake / name, partitioning=None).to_pylist()]


def test_files_by_day_and_each_entry_once(client: Client, tidelog_server: Server, lake: Path) -> None:
    add(client, "s:1", range(FIRST, FIRST + 3 * DAY, DAY // 4))
    assert "12 rows in 3 new files" in export(tidelog_server, "s:1", lake)
    assert names(lake)[0] == f"ts_day=2026-11-01/s%3A1.{FIRST}-0.{FIRST + DAY - DAY // 4}-0.parquet"
    assert "0 rows in 0 new files" in export(tidelog_server, "s:1", lake)

    add(client, "s:1", range(FIRST + 3 * DAY - 1, FIRST + 3 * DAY + 2))
    assert "3 rows in 2 new files" in export(tidelog_server, "s:1", lake)
    found = rows(lake)
    assert sorted(row["n"] for row in found) == [entry.id.ms for entry in client.trange("s:1")]
    assert [row["_ts"].timestamp() * 1000 for row in found] == [row["n"] for row in found]
    facts = pq.read_metadata(lake / names(lake)[-1]).metadata
    assert facts[b"tidelog.last"] == f"{FIRST + 3 * DAY + 1}.0".encode()


def test_duckdb_reads_the_files_as_a_table(client: Client, tidelog_server: Server, lake: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="no duckdb here (pip install 'tidelog[sql]')")
    add(client, "s", range(FIRST, FIRST + 3 * DAY, DAY // 4))
    export(tidelog_server, "s", lake)
    found = duckdb.sql(f"select ts_day, count(*) from '{lake}/*/*.parquet' group by 1 order by 1").fetchall()
    assert [(str(day), count) for day, count in found] == [(f"2026-11-0{at}", 4) for at in (1, 2, 3)]


def test_a_topic_with_types(client: Client, tidelog_server: Server, lake: Path) -> None:
    topic = Topic[dict[str, str]]("orders", dict[str, str], partition_by="no", partitions=3, url=tidelog_server.url)
    topic.sync.send_many({"no": str(number), "amount": "2.50"} for number in range(100))
    topic.sync.close()
    output = export(tidelog_server, "orders", lake, "--type", "amount=decimal(9,2)", "--json")
    assert sum(each["rows"] for each in json.loads(output)) == 100
    found = rows(lake)
    assert {row["_partition"] for row in found} == {0, 1, 2}
    assert {str(row["amount"]) for row in found} == {"2.50"}
    assert sorted(int(row["no"]) for row in found) == list(range(100))


def test_new_fields_and_types_that_stay(client: Client, tidelog_server: Server, lake: Path) -> None:
    add(client, "s", range(FIRST, FIRST + 10))
    export(tidelog_server, "s", lake)
    add(client, "s", range(FIRST + 10, FIRST + 20), new="x")
    export(tidelog_server, "s", lake, "--all-fields")
    assert pq.read_schema(lake / names(lake)[1]).names == ["_key", "_id", "_ts", "n", "new", "fields"]
    assert rows(lake)[-1]["fields"] == [("n", str(FIRST + 19).encode()), ("new", b"x")]

    client.redis.xadd("s", {"n": "many"})
    assert "use --type FIELD=string" in export(tidelog_server, "s", lake, code=1)
    assert "field 'n' is int64 in the files of" in export(tidelog_server, "s", lake, "--type", "n=string", code=1)
    assert len(names(lake)) == 2


def test_large_streams_have_several_files(
    client: Client, tidelog_server: Server, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "GROUP", 1 << 18)
    monkeypatch.setattr(parquet, "FULL", 1 << 16)
    add(client, "s", range(FIRST, FIRST + 30_000), text="some text")
    assert "30,000 rows in 3 new files" in export(tidelog_server, "s", lake)
    assert [row["n"] for row in rows(lake)] == list(range(FIRST, FIRST + 30_000))


def test_an_entry_after_the_year_9999(client: Client, tidelog_server: Server, lake: Path) -> None:
    add(client, "s", range(FIRST, FIRST + 1))
    for ms in (400_000_000_000_000, 1 << 63):
        client.redis.xadd("s", {"n": ms}, id=f"{ms}-0")
    assert "3 rows in 3 new files" in export(tidelog_server, "s", lake)
    assert [name.split("/")[0] for name in names(lake)].count("ts_day=__HIVE_DEFAULT_PARTITION__") == 2


def test_evicted_entries_are_an_error(client: Client, tidelog_server: Server, lake: Path) -> None:
    add(client, "s", range(FIRST, FIRST + 10))
    export(tidelog_server, "s", lake)
    client.redis.xtrim("s", minid=f"{FIRST + 5}-0", approximate=False)
    assert "0 rows" in export(tidelog_server, "s", lake)  # evicted after they were exported
    add(client, "s", range(FIRST + 10, FIRST + 20))
    client.redis.xtrim("s", minid=f"{FIRST + 15}-0", approximate=False)
    assert "were evicted before they were exported. --allow-gaps" in export(tidelog_server, "s", lake, code=1)
    assert "5 rows in 1 new file" in export(tidelog_server, "s", lake, "--allow-gaps")

    client.redis.delete("s")
    client.tappend("s", {"n": 1})
    add(client, "t", range(1, 5))
    assert "files of 's': export 't' to another directory" in export(tidelog_server, "t", lake, code=1)


def test_a_stream_that_was_created_again(client: Client, tidelog_server: Server, lake: Path) -> None:
    add(client, "s", range(FIRST, FIRST + 10))
    export(tidelog_server, "s", lake)
    client.redis.delete("s")
    add(client, "s", range(FIRST - 10, FIRST - 5))
    assert "it was deleted or restored. Export it to another directory" in export(tidelog_server, "s", lake, code=1)


def test_a_killed_export_continues(client: Client, tidelog_server: Server, lake: Path) -> None:
    for at in range(40):
        add(client, "s", range(FIRST + at * DAY, FIRST + at * DAY + 500))
    command = [sys.executable, "-m", "tidelog.cli", "export", "s", "--to", str(lake), "--url", tidelog_server.url]
    for kills in range(3):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        eventually(lambda: process.poll() is not None or len(list(lake.glob("*/*.parquet"))) > 8 * (kills + 1))  # noqa: B023
        process.send_signal(signal.SIGKILL)
        process.wait()
    export(tidelog_server, "s", lake)
    assert [row["n"] for row in rows(lake)] == [FIRST + at * DAY + number for at in range(40) for number in range(500)]


def test_two_exports_at_the_same_time(client: Client, tidelog_server: Server, lake: Path) -> None:
    for at in range(20):
        add(client, "s", range(FIRST + at * DAY, FIRST + at * DAY + 100))
    access, failures = Access.of(tidelog_server.url), []

    def run() -> None:
        try:
            list(export_table(access, "s", ExportTarget(str(lake)), ExportOptions({})))
        except ExportError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    run()
    assert all("another export writes to" in each for each in failures), failures
    assert [row["n"] for row in rows(lake)] == [FIRST + at * DAY + n for at in range(20) for n in range(100)]


def test_a_file_that_another_export_has_written_meanwhile(tmp_path: Path) -> None:
    target = ExportTarget(str(tmp_path))
    one, other = (ExportedFile("s", StreamId(FIRST), StreamId(FIRST + last)) for last in (5, 9))
    for file in (one, other):
        with target.scratch() as path:
            path.write_bytes(b"rows")
            if file is one:
                target.add(path, file)
            else:
                with pytest.raises(ExportError, match="another export writes to"):
                    target.add(path, file)
    assert target.files() == [one]
    (tmp_path / other.name).write_bytes(b"rows")
    (tmp_path / "ts_day=2026-11-01" / "notes.txt").write_text("not a file of an export")
    assert target.files() == [one, other]


def test_files_with_the_same_entries_are_named(client: Client, tidelog_server: Server, lake: Path) -> None:
    add(client, "s", range(FIRST, FIRST + 10))
    export(tidelog_server, "s", lake)
    (name,) = names(lake)
    (lake / name).with_name(f"s.{FIRST}-0.{FIRST + 3}-0.parquet").write_bytes((lake / name).read_bytes())
    assert "two files with the same entries" in export(tidelog_server, "s", lake, code=1)


def test_the_target_can_not_be_written(client: Client, tidelog_server: Server, tmp_path: Path) -> None:
    client.tappend("s", {"n": 1})
    (tmp_path / "file").write_text("")
    assert f"can't write {tmp_path}/file/lake: Not a directory" in export(
        tidelog_server, "s", tmp_path / "file" / "lake", code=1
    )
    assert "can't use nothing://x" in export(tidelog_server, "s", "nothing://x", code=1)


def test_s3(client: Client, tidelog_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs", reason="no s3fs here (pip install s3fs moto[server])")
    server = pytest.importorskip("moto.server", reason="no moto here (pip install s3fs moto[server])")
    import s3fs

    store = server.ThreadedMotoServer(port=0, verbose=False)
    store.start()
    try:
        url = "http://{}:{}".format(*store.get_host_and_port())
        for name, value in (("ENDPOINT_URL", url), ("ACCESS_KEY_ID", "id"), ("SECRET_ACCESS_KEY", "secret")):
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        files = s3fs.S3FileSystem(skip_instance_cache=True)
        files.mkdir("bucket")
        add(client, "s", range(FIRST, FIRST + 3 * DAY, DAY // 4))
        assert "12 rows in 3 new files" in export(tidelog_server, "s", "s3://bucket/lake")
        assert "0 rows in 0 new files" in export(tidelog_server, "s", "s3://bucket/lake")
        add(client, "s", range(FIRST + 4 * DAY, FIRST + 4 * DAY + 1), new=1)
        assert "1 row in 1 new file" in export(tidelog_server, "s", "s3://bucket/lake")
        files.invalidate_cache()
        found = [pa.parquet.read_table(files.open(name)) for name in files.find("bucket/lake")]
        assert [table.num_rows for table in found] == [4, 4, 4, 1]
        assert found[-1].schema.names[-1] == "new"
    finally:
        store.stop()


def test_options_that_do_not_fit() -> None:
    for words, said in {
        ("orders",): "'orders' is not a URL. To write files of a stream or a topic, add --to DIR",
        ("redis://h", "--to", "d"): "--to is for files of a stream or a topic: name it instead of redis://h",
        ("redis://h", "--all-fields"): "--all-fields is for files",
        ("orders", "--to", "d", "--follow"): "--follow is for a copy to a Redis server",
        ("orders", "--to", "d", "--format", "orc"): "'orc' is not 'parquet'",
    }.items():
        done = CliRunner().invoke(main, ["export", *words])
        assert done.exit_code == 2
        assert said in done.output, (words, done.output)


def test_names_of_files() -> None:
    for key in ("s", "shop:orders:3", "a.b/c d", "日本", "x.1-0.2-0"):
        file = ExportedFile(key, StreamId(FIRST), StreamId(FIRST + 1, 1 << 63))
        assert ExportedFile.parse(file.name) == file
    day = "ts_day=1970-01-01"
    for name in ("s.parquet", "ts_day=2026-11-01/s.1-0.2-0.parquet", f"{day}/s.1-0.2-0.csv", f"{day}/s.1-0.2.parquet"):
        assert ExportedFile.parse(name) is None


