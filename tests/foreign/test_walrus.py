"""walrus: streams as Python containers, consumer groups over several keys, time series."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.foreign.servers import Target

pytest.importorskip("walrus", reason="no walrus here (pip install 'tidelog[foreign]')")

from walrus import Database


@pytest.fixture
def db(target: Target) -> Iterator[Any]:
    database = Database(port=target.port, script_dir=False)
    yield database
    database.close()


def test_a_stream_is_a_container(db: Any) -> None:
    stream = db.Stream("s")
    ids = [stream.add({"n": number}, id=f"{number}-1") for number in range(1, 6)]
    assert ids == [b"1-1", b"2-1", b"3-1", b"4-1", b"5-1"]
    assert len(stream) == 5
    assert stream[b"3-1"] == (b"3-1", {b"n": b"3"})
    assert stream.get(b"9-9") is None
    assert [at for at, _ in stream[b"2-1":b"4-1"]] == [b"2-1", b"3-1", b"4-1"]
    assert [at for at, _ in stream[::2]] == ids[:2]  # its step is a count
    assert [at for at, _ in stream.revrange(count=2)] == [b"5-1", b"4-1"]
    assert [at for at, _ in stream] == ids
    del stream[b"2-1"]
    del stream[b"3-1", b"4-1"]
    assert [at for at, _ in stream] == [b"1-1", b"5-1"]
    assert stream.trim(1, approximate=False) == 1
    assert [at for at, _ in stream.read(last_id="0")] == [b"5-1"]
    facts = stream.info()
    assert (facts["length"], facts["last-generated-id"], facts["entries-added"]) == (1, b"5-1", 5)
    stream.set_id("7-0")
    assert stream.info()["last-generated-id"] == b"7-0"
    assert stream.add({"n": 8}, id="7-1") == b"7-1"


def test_a_group_over_several_keys(db: Any) -> None:
    group = db.consumer_group("g", ["a", "b"], consumer="one")
    assert group.create() == {"a": True, "b": True}  # adds an entry to keys that are not there, and deletes it
    assert group.create() == {"a": False, "b": False}
    assert (db.xlen("a"), db.exists("a"), db.xinfo_stream("a")["max-deleted-entry-id"]) == (0, 1, b"0-1")
    for key in ("a", "b"):
        for number in range(1, 4):
            db.xadd(key, {"n": number}, id=f"{number}-0")
    got = group.read(count=2)
    assert [(key, [at for at, _ in entries]) for key, entries in got] == [
        (b"a", [b"1-0", b"2-0"]), (b"b", [b"1-0", b"2-0"]),
    ]  # fmt: skip
    assert group.a.ack("1-0", "2-0") == 2
    other = group.consumer("two")
    assert [at for at, _ in other.a.read()] == [b"3-0"]
    assert [at for at, _ in group.b.read(last_id="0")] == [b"1-0", b"2-0"]
    assert [row["message_id"] for row in group.b.pending()] == [b"1-0", b"2-0"]
    assert [at for at, _ in other.b.claim("1-0")] == [b"1-0"]
    assert other.b.autoclaim("two", 0, justid=True) == [b"1-0", b"2-0"]
    assert [(row["name"], row["pending"]) for row in group.b.consumers_info()] == [(b"one", 0), (b"two", 2)]
    assert other.b.delete_consumer() == 2
    assert group.set_id("0-0") == {"a": True, "b": True}
    assert [len(entries) for _, entries in group.read()] == [3, 3]
    assert {key: facts["groups"] for key, facts in group.stream_info().items()} == {"a": 1, "b": 1}
    assert group.destroy() == {"a": True, "b": True}


def test_a_time_series(db: Any) -> None:
    series = db.time_series("g", ["cpu", "disk"])
    series.create()
    begin = datetime(2024, 5, 1, 12, tzinfo=UTC).replace(tzinfo=None)
    for minute in range(10):
        series.cpu.add({"n": minute}, id=begin + timedelta(minutes=minute))
        series.disk.add({"n": minute}, id=begin + timedelta(minutes=minute, seconds=30))
    some = series.cpu.range(begin + timedelta(minutes=3), begin + timedelta(minutes=5))
    assert [(message.data["n"], message.timestamp.minute) for message in some] == [("3", 3), ("4", 4), ("5", 5)]
    messages = series.read(count=2)
    assert [(message.stream, message.data["n"]) for message in messages] == [
        ("cpu", "0"), ("disk", "0"), ("cpu", "1"), ("disk", "1"),
    ]  # fmt: skip
    assert series.cpu.ack(*[message for message in messages if message.stream == "cpu"]) == 2
    assert len(series.cpu.pending()) == 0
    assert len(series.disk.pending()) == 2
    assert series.disk.delete(messages[1]) == 1
    assert len(series.disk) == 9
