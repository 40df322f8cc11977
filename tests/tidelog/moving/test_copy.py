"""Copies from one redis-server to another: everything arrives as it is."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.tidelog.moving.movekit import STREAMS, Peer, delivered, fill, moved, state, tidelog
from tidelog.client.entries import StreamId
from tidelog.moving import descriptions, entries, pages
from tidelog.moving.endpoints import Endpoint
from tidelog.moving.groups import SLACK


def test_everything_arrives_as_it_is(source: Peer, target: Peer) -> None:
    fill(source.client)
    before = {key: state(source.client, key) for key in STREAMS}
    report = moved(source.url, target.url)
    assert report["verdict"] == "same"
    assert {each["key"]: each["verdict"] for each in report["streams"]} == dict.fromkeys(STREAMS, "same")
    assert sum(each["pending_gone"] for each in report["streams"]) == 0
    assert report["strings"] == {"copied": 3, "differences": []}
    for key in STREAMS:
        assert state(target.client, key) == before[key], key
        assert state(source.client, key) == before[key], key
    mine, its = delivered(source.client, "orders"), delivered(target.client, "orders")
    assert len(mine) == 13
    assert its == {name: pytest.approx(time, abs=SLACK) for name, time in mine.items()}
    assert target.client.get("lock") == b"\x00\xff"
    assert target.client.pexpiretime("lock") == 4_000_000_000_123
    assert target.client.pexpiretime("counter") == -1


def test_groups_that_have_read_more_than_was_added(source: Peer, target: Peer) -> None:
    """In Redis up to 8.2 there are such groups; a target that bounds what they have read is no difference."""
    source.client.xadd("s", {"f": "v"})
    source.client.execute_command("XGROUP", "CREATE", "s", "g", "$", "ENTRIESREAD", 100)
    assert source.client.xinfo_groups("s")[0]["entries-read"] == 100
    assert moved(source.url, target.url)["verdict"] == "same"
    assert target.client.xinfo_groups("s")[0]["entries-read"] == 1


@pytest.mark.parametrize("page", [1, 2, 7])
def test_small_pages(source: Peer, target: Peer, page: int) -> None:
    fill(source.client)
    moved(source.url, target.url, "--page", page)
    for key in STREAMS:
        assert state(target.client, key) == state(source.client, key)


def test_a_copy_is_refused_where_keys_are_and_nothing_changes(source: Peer, target: Peer) -> None:
    fill(source.client)
    target.client.set("counter", "mine")
    output = tidelog("import", source.url, "--url", target.url, code=1).output
    assert "the target already has 1 key: counter. Nothing was changed" in output
    assert "--resume" in output
    assert target.client.keys() == [b"counter"]
    assert target.client.get("counter") == b"mine"


def test_replaced_keys_are_deleted_first(source: Peer, target: Peer) -> None:
    fill(source.client)
    target.client.hset("orders", "a", "b")
    target.client.xadd("trimmed", {"a": "b"}, id="999999-0")
    target.client.lpush("counter", "a")
    target.client.set("apart", "stays")
    moved(source.url, target.url, "--replace")
    for key in STREAMS:
        assert state(target.client, key) == state(source.client, key)
    assert target.client.get("counter") == b"41"
    assert target.client.get("apart") == b"stays"


def test_a_second_time_with_resume_changes_nothing(source: Peer, target: Peer) -> None:
    fill(source.client)
    moved(source.url, target.url)
    report = moved(source.url, target.url, "--resume")
    assert report["verdict"] == "same"
    assert sum(each["copied"] for each in report["streams"]) == 0


def test_what_can_not_be_moved_is_listed(source: Peer, target: Peer) -> None:
    source.client.xadd("s", {"a": "1"})
    source.client.hset("h", "a", "1")
    source.client.rpush("l1", "a")
    source.client.rpush("l2", "a")
    source.client.zadd("z", {"a": 1})
    report = moved(source.url, target.url)
    assert {kind: sorted(each["named"]) for kind, each in report["not_moved"].items()} == {
        "hash": ["h"], "list": ["l1", "l2"], "zset": ["z"],
    }  # fmt: skip
    output = tidelog("import", source.url, "--url", target.url, "--replace").output
    assert "not copied: 1 of type hash (h)" in output
    assert "not copied: 2 of type list (l" in output
    assert target.client.keys() == [b"s"]


def test_a_pattern_and_a_database(source: Peer, target: Peer) -> None:
    source.client.execute_command("SELECT", 0)
    for key in ("orders:1", "orders:2", "bills"):
        source.client.xadd(key, {"a": "1"})
    moved(source.url, f"{target.url}/3", "--match", "orders:*")
    assert target.client.keys() == []
    assert sorted(json.loads(json.dumps(tidelog_keys(target, 3)))) == ["orders:1", "orders:2"]


def tidelog_keys(peer: Peer, db: int) -> list[str]:
    end = Endpoint("target", f"{peer.url}/{db}")
    try:
        return [key.decode() for key in end.ask("KEYS", "*")]
    finally:
        end.close()


def test_pending_messages_whose_entries_are_gone_are_counted(source: Peer, target: Peer) -> None:
    client = source.client
    for n in range(1, 11):
        client.xadd("s", {"a": n}, id=f"{n}-0")
    client.xgroup_create("s", "g", "0")
    client.xreadgroup("g", "ann", {"s": ">"}, count=6)
    client.xdel("s", "5-0")
    client.xtrim("s", minid="3-0", approximate=False)
    (report,) = moved(source.url, target.url)["streams"]
    assert (report["verdict"], report["pending"], report["pending_gone"]) == ("same", 6, 3)
    rows = target.client.xpending_range("s", "g", "-", "+", 10)
    assert [row["message_id"] for row in rows] == [b"3-0", b"4-0", b"6-0"]
    output = tidelog("import", source.url, "--url", target.url, "--resume").output
    assert "could not move 3 pending messages" in output


def test_a_consumer_without_a_name(source: Peer, target: Peer) -> None:
    source.client.xadd("s", {"a": "1"}, id="1-0")
    source.client.xgroup_create("s", "g", "0")
    source.client.xreadgroup("g", "", {"s": ">"})
    moved(source.url, target.url)
    assert state(target.client, "s") == state(source.client, "s")


def test_many_pending_messages_and_consumers(source: Peer, target: Peer) -> None:
    pipeline = source.client.pipeline()
    for n in range(1, 5001):
        pipeline.xadd("s", {"n": n}, id=f"{n}-0")
    pipeline.xgroup_create("s", "g", "0")
    for n in range(40):
        pipeline.xreadgroup("g", f"c{n}", {"s": ">"}, count=100)
    pipeline.execute()
    source.client.xack("s", "g", *(f"{n}-0" for n in range(1, 4001, 7)))
    for n in range(3, 4001, 5):
        source.client.xclaim("s", "g", "thief", 0, [f"{n}-0"], time=1_600_000_000_000 + n, retrycount=n, force=False)
    moved(source.url, target.url)
    assert state(target.client, "s") == state(source.client, "s")


def test_what_was_deleted_since_is_deleted_by_a_second_copy(source: Peer, target: Peer) -> None:
    fill(source.client)
    moved(source.url, target.url)
    source.client.xdel("orders", "10-1", "11-2")
    source.client.xtrim("orders", minid="3-0", approximate=False)
    source.client.xgroup_destroy("orders", "others")
    source.client.xgroup_delconsumer("orders", "workers", "cid")
    source.client.xadd("orders", {"n": "31"}, id="31-0")
    moved(source.url, target.url, "--resume")
    assert state(target.client, "orders") == state(source.client, "orders")


def test_a_line_for_each_stream_and_a_table(source: Peer, target: Peer) -> None:
    fill(source.client)
    output = tidelog("import", source.url, "--url", target.url).output
    assert "orders: 28 entries, 3 groups, 4 consumers, 13 pending\n" in output
    assert "\nstream " in output
    assert "\n3 strings\n" in output
    assert output.rstrip().endswith("the same at both ends")


def test_an_older_source_tells_less(source: Peer, target: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis 6 has no PEXPIRETIME, and tells neither entries-added nor max-deleted-entry-id nor entries-read."""
    fill(source.client)
    plain_pairs, plain_examine = descriptions.pairs, Endpoint._examine

    def pairs(row: list[Any]) -> dict[str, Any]:
        told = plain_pairs(row)
        return {name: told[name] for name in told.keys() - {"entries-added", "max-deleted-entry-id", "entries-read"}}

    def examine(self: Endpoint) -> None:
        plain_examine(self)
        if self.side == "source":
            self.version = (6, 2)

    monkeypatch.setattr(descriptions, "pairs", pairs)
    monkeypatch.setattr(Endpoint, "_examine", examine)
    assert moved(source.url, target.url)["verdict"] == "same"
    assert target.client.xrange("orders") == source.client.xrange("orders")
    assert target.client.xinfo_stream("trimmed")["last-generated-id"] == b"900-9"
    assert abs(target.client.pexpiretime("trimmed") - 4_000_000_000_000) <= 1000
    assert target.client.pexpiretime("lock") == pytest.approx(4_000_000_000_123, abs=1000)


def test_a_target_that_refuses_for_a_while_leaves_no_hole(source: Peer, target: Peer) -> None:
    for n in range(1, 2001):
        source.client.xadd("s", {"n": n, "text": "x" * 1000}, id=f"{n}-0")
    target.client.config_set("maxmemory", target.client.info()["used_memory"] + (1 << 19))
    try:
        output = tidelog("import", source.url, "--url", target.url, code=1).output
        assert "refuses XADD: OOM" in output
        assert "--resume" in output
    finally:
        target.client.config_set("maxmemory", 0)
    there = [at for at, _ in target.client.xrange("s")]
    assert there == [f"{n}-0".encode() for n in range(1, len(there) + 1)]
    assert 0 < len(there) < 2000
    assert moved(source.url, target.url, "--resume")["verdict"] == "same"


def test_nothing_to_move(source: Peer, target: Peer) -> None:
    assert "there was nothing to move" in tidelog("import", source.url, "--url", target.url).output


def test_replies_stay_small_where_entries_are_large(source: Peer) -> None:
    pipeline = source.client.pipeline()
    for n in range(1, 101):
        pipeline.xadd("s", {"a": b"x" * (1 << 18)}, id=f"{n}-0")
    for n in range(101, 2101):
        pipeline.xadd("s", {"a": b"x"}, id=f"{n}-0")
    pipeline.execute()
    end = Endpoint("source", source.url)
    replies: list[int] = []
    plain = end.elements

    def counted(*command: object) -> object:
        total = 0
        for element in plain(*command):  # type: ignore[arg-type]
            total += len(element[1][1])
            yield element
        replies.append(total)

    end.elements = counted  # type: ignore[method-assign, assignment]
    try:
        first = [int(at.partition(b"-")[0]) for at, _ in pages.entries(
            end, b"s", StreamId(0), StreamId(9999), 1000, 1 << 18)]  # fmt: skip
    finally:
        end.close()
    assert first == list(range(1, 2101))
    assert max(replies) <= 8 << 20
    assert len(replies) < 40


def test_batches_are_sent_by_size(source: Peer, target: Peer) -> None:
    sent: list[int] = []
    copied: list[int] = []
    one, other = Endpoint("source", source.url), Endpoint("target", target.url)
    plain = other.send_raw
    other.send_raw = lambda data: (sent.append(len(data)), plain(data))[1]  # type: ignore[method-assign, func-returns-value]
    source.client.xadd("s", {"a": b"x" * (3 << 20)}, id="1-0")
    for n in range(2, 20):
        source.client.xadd("s", {"a": b"x" * 100_000}, id=f"{n}-0")
    try:
        appender = entries.Appender(other, b"s", copied.append)
        for at, flat in pages.entries(one, b"s", StreamId(0), StreamId(99), 1000):
            appender.add(at, flat)
        appender.end()
    finally:
        one.close()
        other.close()
    assert sum(copied) == 19
    assert max(sent[1:]) < 2 * entries.BATCH_BYTES


def test_a_bar_on_a_terminal(source: Peer, target: Peer) -> None:
    fill(source.client)
    main, side = pty.openpty()
    command = [sys.executable, "-m", "tidelog.cli", "import", source.url, "--url", target.url]
    with (
        os.fdopen(main, "rb", 0) as terminal,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=side) as process,
    ):
        os.close(side)
        shown = b""
        try:
            while data := terminal.read(1000):
                shown += data
        except OSError:
            pass  # Linux says so that the other side was closed
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    text = shown.decode()
    assert re.search(r"\d+% [█░]+  (\w|verifying )+ \d+", text)
    assert text.endswith("\r\x1b[K")
    assert b"28 entries" not in output
    assert output.rstrip().endswith(b"the same at both ends")
