"""Reads of history objects: the same rows as from the server.

Most tests call the readers as Spark does, without Spark.
"""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")

from pyspark.sql.types import IntegerType, StringType, StructType

from tests.tidelog.history.kit import copy_all, tiered
from tests.tidelog.history.stopped import hanging
from tests.tidelog.jobs.s3kit import s3_bucket
from tests.tidelog.spark.sparkkit import ended
from tests.wire.rawclient import Raw
from tidelog.history import choice
from tidelog.history.errors import HistoryError
from tidelog.history.planning import HistoryPiece
from tidelog.spark.offsets import DataLossError
from tidelog.spark.options import for_source
from tidelog.spark.optionvalues import BATCH, STREAM, OptionValues
from tidelog.spark.ranges import Ranges
from tidelog.spark.source import TidelogReader, TidelogStreamReader
from tidelog.testing import Server, running_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = StructType().add("_id", StringType()).add("n", IntegerType())
FIRST_MS = 1_700_000_000_000

Row = tuple[str, int]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with tiered(tmp_path_factory.mktemp("target")) as running:
        yield running


def fill(server: Server, key: str, count: int, first: int = 1, step: int = 1000) -> None:
    """Append entries with n = first, first + 1, ... and copy them. ``step``: entries of an object."""
    for start in range(first, first + count, step):
        numbers = range(start, min(start + step, first + count))
        with Raw(server.port) as client:
            client.pipeline(*[("XADD", key, id_of(number), "n", str(number)) for number in numbers])
        copy_all(server)


def id_of(number: int) -> str:
    return f"{FIRST_MS + number}-{number % 3}"


def reader_of(server: Server, key: str, **options: Any) -> TidelogReader:
    given = {"url": server.url, "subscribe": key, **options}
    return TidelogReader(for_source(OptionValues({name: str(value) for name, value in given.items()}), BATCH), SCHEMA)


def rows(server: Server, key: str, **options: Any) -> list[Row]:
    """Return the rows of a batch read, in the order of its tasks."""
    reader = reader_of(server, key, **options)
    return [row for partition in reader.partitions() for row in rows_of(reader, partition)]


def rows_of(reader: Any, partition: Any) -> list[Row]:
    return [(row["_id"], row["n"]) for batch in reader.read(partition) for row in batch.to_pylist()]


def numbers(found: list[Row]) -> list[int]:
    return [number for _, number in found]


def calls_of(server: Server, name: str) -> int:
    """Return how often a command was called."""
    with Raw(server.port) as client:
        lines = client("INFO", "commandstats").decode().splitlines()
    found = [line for line in lines if line.startswith(f"cmdstat_{name}:")]
    return int(found[0].partition("calls=")[2].partition(",")[0]) if found else 0


def test_rows_and_tasks(server: Server) -> None:
    fill(server, "a", 95, step=19)
    with Raw(server.port) as client:
        client("XDEL", "a", id_of(5), id_of(6), id_of(40))
        client("XTRIM", "a", "MINID", id_of(3))
    expected = rows(server, "a", history="server")
    assert numbers(expected) == [number for number in range(3, 96) if number not in (5, 6, 40)]
    before = calls_of(server, "trange")
    assert rows(server, "a", history="direct") == expected
    assert calls_of(server, "trange") - before == 3, "the first entry, the last copied one, and those not in objects"
    partitions = reader_of(server, "a", history="direct", maxBytesPerPartition=1).partitions()
    assert len(partitions) >= 5
    for options in (
        {"maxBytesPerPartition": 1}, {"minPartitions": 4}, {"maxRecordsPerPartition": 7}, {"maxPartitions": 1},
        {"readFrom": "replica"},
    ):  # fmt: skip
        assert rows(server, "a", history="direct", **options) == expected, options
    bounds = {
        "startingOffsets": f'{{"a": "{id_of(7).replace("-", ".")}"}}',
        "endingOffsets": f'{{"a": "{id_of(60).replace("-", ".")}"}}',
    }  # fmt: skip
    assert numbers(rows(server, "a", history="direct", **bounds)) == [n for n in range(7, 60) if n != 40]


@pytest.mark.parametrize("seed", range(3))
def test_random_streams(server: Server, seed: int) -> None:
    rng, key = random.Random(seed), f"random:{seed}"
    with Raw(server.port) as client:
        client("XGROUP", "CREATE", key, "group", "0", "MKSTREAM")
        for start in range(1, 300, 50):
            fill(server, key, 50, start)
            client("XREADGROUP", "GROUP", "group", "one", "COUNT", 20, "STREAMS", key, ">")
            gone = rng.sample(range(max(1, start - 100), start + 50), 12)
            client("XDEL", key, *map(id_of, gone[:6]))
            client("XACKDEL", key, "group", "IDS", 6, *map(id_of, gone[6:]))
            if rng.random() < 0.4:
                client("XTRIM", key, "MINID", id_of(start - rng.randrange(start)))
    expected = rows(server, key, history="server")
    assert rows(server, key, history="direct") == expected
    for _ in range(10):
        low, high = sorted(rng.choices(range(300), k=2))
        bounds = {"startingTimestamp": FIRST_MS + low, "endingTimestamp": FIRST_MS + high}
        found = {history: rows(server, key, history=history, **bounds) for history in ("server", "direct")}
        assert found["server"] == found["direct"]


def test_auto(server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    fill(server, "auto", 45)
    assert not any(map(_is_direct, reader_of(server, "auto").partitions())), "it is too short"
    monkeypatch.setattr("tidelog.history.choice.FEWEST", 45)
    assert list(map(_is_direct, reader_of(server, "auto").partitions())) == [True], "the last five are in the same task"
    separate = reader_of(server, "auto", maxRecordsPerPartition=100).partitions()
    assert list(map(_is_direct, separate)) == [True, False]
    reader = reader_of(server, "auto")
    partitions = reader.partitions()
    expected = rows(server, "auto", history="server")
    with MovedFolder(server, "objects"), caplog.at_level(logging.WARNING):
        # a task that can't read the objects, as on a machine without credentials
        assert [row for partition in partitions for row in rows_of(reader, partition)] == expected
        assert "does not exist" in caplog.text
        caplog.clear()
        assert rows(server, "auto") == expected
        assert "does not exist" in caplog.text
    with MovedFolder(server, "streams"):
        assert rows(server, "auto") == expected
    with running_server() as plain:
        with Raw(plain.port) as client:
            client.pipeline(*[("XADD", "auto", id_of(number), "n", str(number)) for number in range(1, 46)])
        assert rows(plain, "auto") == expected
        with pytest.raises(HistoryError, match=r"tier-url is empty\. history=server reads from the server instead"):
            rows(plain, "auto", history="direct")


def _is_direct(partition: Any) -> bool:
    return any(isinstance(piece, HistoryPiece) for piece in partition.ranges)


class MovedFolder:
    """A folder of the target is elsewhere meanwhile."""

    def __init__(self, server: Server, name: str) -> None:
        self._path = Path(str(server.config["tier-url"])) / name

    def __enter__(self) -> None:
        shutil.move(self._path, self._path.with_suffix(".away"))

    def __exit__(self, *_: object) -> None:
        if self._path.exists():  # the server has copied more
            shutil.copytree(self._path, self._path.with_suffix(".away"), dirs_exist_ok=True)
            shutil.rmtree(self._path)
        shutil.move(self._path.with_suffix(".away"), self._path)


def test_a_damaged_object_in_the_middle(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(server, "damaged", 95, step=19)
    expected = rows(server, "damaged", history="server")
    reader = reader_of(server, "damaged", history="direct")
    partitions = reader.partitions()
    (piece,) = [piece for partition in partitions for piece in partition.ranges if isinstance(piece, HistoryPiece)]  # type: ignore[attr-defined]
    path = Path(piece.url) / "objects" / piece.parts[2].name
    content = path.read_bytes()
    path.write_bytes(content[:50] + b"#" + content[51:])
    with pytest.raises(HistoryError, match=rf"{path} is damaged: .* should contain the entries .* of stream 'damaged'"):
        rows_of(reader, partitions[0])
    path.unlink()
    with pytest.raises(HistoryError, match=rf"{path} does not exist\. If .* history=server reads from the server"):
        rows_of(reader, partitions[0])
    monkeypatch.setattr("tidelog.history.choice.FEWEST", 1)
    assert rows(server, "damaged") == expected
    with Raw(server.port) as client:
        client("XTRIM", "damaged", "MINID", id_of(60))
    automatic = reader_of(server, "damaged")
    with pytest.raises(DataLossError, match="were evicted"):
        rows_of(automatic, partitions[0])


def test_entries_that_are_evicted_after_the_plan_was_made(server: Server) -> None:
    fill(server, "late", 45)
    reader = reader_of(server, "late", history="direct", maxRecordsPerPartition=100)
    partitions = reader.partitions()
    expected = rows(server, "late", history="server")[:40]
    with Raw(server.port) as client:
        client("DEL", "late")
    assert rows_of(reader, partitions[0]) == expected, "the objects still have them"


def test_a_stream_reader_reads_more_as_the_history_grows(server: Server) -> None:
    fill(server, "s", 25)
    options = OptionValues({
        "url": server.url, "subscribe": "s", "startingOffsets": "earliest", "history": "direct",
        "maxOffsetsPerTrigger": "20",
    })  # fmt: skip
    reader = TidelogStreamReader(for_source(options, STREAM), SCHEMA)
    found: list[Row] = []
    kinds: list[bool] = []
    start = reader.initialOffset()
    try:
        for first in (26, 51):
            fill(server, "s", 25, first)
            while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
                partitions = reader.partitions(start, end)
                again = reader.partitions(start, end)
                batch = [row for partition in partitions for row in rows_of(reader, partition)]
                assert batch == [row for partition in again for row in rows_of(reader, partition)]
                assert len(batch) <= 20
                kinds += map(_is_direct, partitions)
                found += batch
                start = end
    finally:
        reader.stop()
    assert found == rows(server, "s", history="server")
    assert (len(found), kinds.count(True)) >= (75, 3)


def test_s3_and_missing_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with s3_bucket() as bucket, tiered(f"{bucket}/{tmp_path.name}") as server:
        fill(server, "a", 95, step=40)
        expected = rows(server, "a", history="server")
        reader = reader_of(server, "a", history="direct")
        partitions = reader.partitions()
        assert [row for partition in partitions for row in rows_of(reader, partition)] == expected
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("HOME", str(tmp_path))
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()
        with pytest.raises(HistoryError, match=r"(?i)objects/.* can't be read: .*credentials.*history=server"):
            rows_of(reader, partitions[0])
        automatic = reader_of(server, "a")
        assert rows_of(automatic, partitions[0]) == expected
        assert "the entries are read from the server" in caplog.text


def test_in_spark(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    fill(server, "spark", 60, step=30)
    schema = "_id string, _ts timestamp, n int"
    given = {"url": server.url, "subscribe": "spark", "startingOffsets": "earliest", "history": "direct"}
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("tidelog").schema(schema).options(**given).load()
        frame = frame.where(f"_id >= '{FIRST_MS + 20}.0' and _ts < timestamp_millis({FIRST_MS + 41})")
        assert [row.n for row in frame.collect()] == list(range(20, 41))
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    stream = spark.readStream.format("tidelog").schema(schema).options(**given).load()
    target = str(tmp_path / "rows")
    query = (
        stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True).start(target)
    )  # fmt: skip
    ended(query)
    assert sorted(row.n for row in spark.read.parquet(target).collect()) == list(range(1, 61))


def test_an_object_store_that_hangs(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """With a limit, tasks and plans end. ``direct`` fails, and ``auto`` reads from the server."""
    fill(server, "hangs", 60)
    target = Path(str(server.config["tier-url"]))
    path = max((target / "objects").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    (manifest,) = (target / "streams" / "hangs").iterdir()
    expected = rows(server, "hangs", history="server")
    direct: dict[str, Any] = {"history": "direct", "historyTimeout": "300ms"}
    reader = reader_of(server, "hangs", history="direct", historyTimeout="1m")
    (partition,) = reader.partitions()
    assert isinstance(partition, Ranges)
    limited = reader_of(server, "hangs", **direct)
    first = partition.ranges[0]
    assert isinstance(first, HistoryPiece)
    partition = replace(partition, ranges=(replace(first, seconds=0.3),))
    text = r"the object store has not answered within 0\.3 s \(the limit is the option historyTimeout of Spark"
    with hanging(path), pytest.raises(HistoryError, match=rf"{path} can't be read: {text}"):
        rows_of(reader, partition)
    with hanging(manifest), pytest.raises(HistoryError, match=text):
        limited.partitions()
    with hanging(manifest), caplog.at_level(logging.WARNING), pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "FEWEST", 1)
        assert rows(server, "hangs", history="auto", historyTimeout="300ms") == expected
    assert "historyTimeout of Spark" in caplog.text
