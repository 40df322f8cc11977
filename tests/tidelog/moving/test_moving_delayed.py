"""Delayed entries from one tidelog-server to another: each joins the stream of the target once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.tidelog.moving.movekit import Peer, moved, raw
from tests.tidelog.moving.test_follow import following
from tests.tidelog.moving.test_tidelog import Tide
from tests.waiting import eventually
from tidelog.client.entries import StreamId
from tidelog.moving.delayed import DelayedLists, cancel, unchanged
from tidelog.moving.endpoints import Endpoint
from tidelog.testing import Server, running_server

HOUR = 3_600_000


@pytest.fixture
def here(tidelog_server: Server) -> Iterator[Tide]:
    peer = Tide(tidelog_server)
    yield peer
    peer.client.close()


@pytest.fixture(scope="module")
def _other() -> Iterator[Server]:
    with running_server() as server:
        yield server


@pytest.fixture
def there(_other: Server) -> Iterator[Tide]:
    peer = Tide(_other)
    peer.client.flushall()
    yield peer
    peer.client.close()


def delay(peer: Peer, key: str, ms: int, n: object, token: str = "") -> bytes:
    """Add an entry that is due in ``ms``, and return its token."""
    words = ("ID", token) if token else ()
    found: bytes = raw(peer.client, "TDELAY", key, "IN", ms, *words, "n", n)
    return found


def listed(peer: Peer, key: str) -> list[list[Any]]:
    found, cursor = [], b"0"
    while True:
        cursor, rows = raw(peer.client, "TDELAY", key, "LIST", cursor, "COUNT", 1000)
        found += rows
        if cursor == b"0":
            return found


def alike(one: Peer, other: Peer, key: str) -> bool:
    """Whether the delayed entries are equal. The time of an IN entry moves if the server stops serving."""
    mine, its = listed(one, key), listed(other, key)
    return [(row[0], row[2:]) for row in mine] == [(row[0], row[2:]) for row in its] and all(
        abs(a[1] - b[1]) < 1000 for a, b in zip(mine, its, strict=True)
    )


def values(peer: Peer, key: str) -> list[bytes]:
    return [fields[b"n"] for _, fields in peer.client.xrange(key)]


def test_they_are_copied_with_times_and_tokens(here: Tide, there: Tide) -> None:
    here.client.xadd("s", {"n": "first"})
    delay(here, "s", HOUR, b"\xff\x00\r\n")
    delay(here, "s", 2 * HOUR, "chosen", token="ID")
    raw(here.client, "TDELAY", "s", "AT", 4_000_000_000_000, "ID", "far", "ID", "1", "n", "2", "n", "3")
    delay(here, "only", HOUR, 1)
    report = moved(here.url, there.url)
    assert (report["verdict"], report["notes"]) == ("same", [])
    assert {each["key"]: each["delayed"] for each in report["streams"]} == {"s": 3, "only": 1}
    assert alike(here, there, "s")
    assert alike(here, there, "only")
    assert len(listed(there, "s")) == 3
    assert listed(there, "s")[2] == [b"far", 4_000_000_000_000, b"ID", b"1", b"n", b"2", b"n", b"3"]
    there.server.kill()
    there.server.start()
    assert alike(here, there, "s")


def test_many_pages(here: Tide, there: Tide) -> None:
    pipeline = here.client.pipeline(transaction=False)
    for n in range(2500):
        pipeline.execute_command("TDELAY", "s", "AT", 4_000_000_000_000 + n * 37 % 50, "n", n)
    pipeline.execute()
    (row,) = moved(here.url, there.url)["streams"]
    assert row["delayed"] == 2500
    assert listed(there, "s") == listed(here, "s")


def test_an_entry_that_is_due_soon_joins_both_streams_once(here: Tide, there: Tide) -> None:
    here.client.xadd("s", {"n": "first"})
    delay(here, "s", 1500, "soon")
    assert moved(here.url, there.url)["verdict"] == "same"
    eventually(lambda: [peer.client.xlen("s") for peer in (here, there)] == [2, 2])
    for peer in (here, there):
        assert values(peer, "s") == [b"first", b"soon"]
        assert listed(peer, "s") == []


def test_following_copies_them_at_the_end(here: Tide, there: Tide) -> None:
    here.client.xadd("s", {"n": "first"})
    gone = delay(here, "s", HOUR, "cancelled")
    delay(here, "s", HOUR, "kept")
    with following(here, there) as move:
        delay(here, "s", 50, "joins")
        eventually(lambda: values(there, "s") == [b"first", b"joins"])
        assert raw(here.client, "TDELAY", "s", "CANCEL", gone) == 1
        delay(here, "s", HOUR, "later")
        assert listed(there, "s") == []
        outcome = move.end()
    assert (outcome.verdict, outcome.notes) == ("same", [])
    assert values(there, "s") == [b"first", b"joins"]
    assert [row[3] for row in listed(there, "s")] == [b"kept", b"later"]
    assert alike(here, there, "s")


def test_entries_that_become_due_at_the_end_join_once(here: Tide, there: Tide) -> None:
    """One becomes due every few ms around the end. Each is in the copied stream, or in the list, and not in both."""
    here.client.xgroup_create("s", "g", "0", mkstream=True)
    with following(here, there) as move:
        for n in range(10):
            delay(here, "s", 100 + 80 * n, n)
        eventually(lambda: there.client.xlen("s"))
        outcome = move.end()
    eventually(lambda: here.client.xlen("s") == 10)
    if outcome.verdict == "same":
        eventually(lambda: not listed(there, "s"))
    else:
        assert outcome.verdict == "source changed"
        assert listed(there, "s") == []
        assert moved(here.url, there.url, "--resume")["verdict"] == "same"
    assert values(there, "s") == [b"%d" % n for n in range(10)]


def test_resume_removes_what_the_source_has_cancelled(here: Tide, there: Tide) -> None:
    gone = delay(here, "s", HOUR, "cancelled")
    delay(here, "s", HOUR, "old", token="t")
    moved(here.url, there.url)
    for token in (gone, "t"):
        raw(here.client, "TDELAY", "s", "CANCEL", token)
    delay(here, "s", HOUR, "new", token="t")
    report = moved(here.url, there.url, "--resume")
    assert report["verdict"] == "same"
    assert [row[3] for row in listed(there, "s")] == [b"new"]


def test_a_first_copy_without_them(here: Tide, there: Tide) -> None:
    delay(here, "s", HOUR, 1)
    (note,) = moved(here.url, there.url, "--no-delayed")["notes"]
    assert note.startswith("not copied: 1 delayed entry of the source (--no-delayed)")
    assert listed(there, "s") == []
    assert moved(here.url, there.url, "--resume")["notes"] == []
    assert alike(here, there, "s")


def test_a_target_that_refuses_them(here: Tide, there: Tide) -> None:
    delay(here, "s", HOUR, 1)
    there.client.execute_command("ACL", "SETUSER", "in", "on", ">secret", "~*", "+@all", "-tdelay")
    report = moved(here.url, there.url.replace("redis://", "redis://in:secret@"), code=1)
    assert report["verdict"] == "different"
    (difference,) = report["streams"][0]["differences"]
    assert difference.startswith("the delayed entries were not copied completely: ")
    assert "TDELAY: NOPERM" in difference
    assert moved(here.url, there.url, "--resume")["verdict"] == "same"
    assert alike(here, there, "s")


@pytest.fixture
def ends(here: Tide, there: Tide) -> Iterator[tuple[Endpoint, Endpoint]]:
    source, target = Endpoint("source", here.url), Endpoint("target", there.url)
    yield source, target
    source.close()
    target.close()


def test_a_list_belongs_to_one_last_id(here: Tide, ends: tuple[Endpoint, Endpoint]) -> None:
    at = StreamId.parse(here.client.xadd("s", {"n": 1}))
    delay(here, "s", HOUR, "kept")
    delay(here, "s", 1, "joins")
    eventually(lambda: here.client.xlen("s") == 2)
    with DelayedLists() as lists:
        assert not lists.take(ends[0], b"s", at)
        assert not lists.take(ends[0], b"nothing", at)
        assert lists.lists == []
        assert lists.take(ends[0], b"s", StreamId.parse(here.client.xinfo_stream("s")["last-generated-id"]))
        assert [each.number for each in lists.lists] == [1]


def test_an_entry_that_the_source_delivers_after_the_list(
    here: Tide, there: Tide, ends: tuple[Endpoint, Endpoint]
) -> None:
    """The target delivers it as well, once. For the source, this is not a change."""
    source, target = ends
    delay(here, "s", 700, "soon")
    with DelayedLists() as lists:
        assert lists.take(source, b"s", StreamId(0, 0))
        eventually(lambda: here.client.xlen("s") == 1)
        (each,) = lists.lists
        assert unchanged(source, each)
        there.client.xgroup_create("s", "g", "0", mkstream=True)
        lists.send(target, each)
        eventually(lambda: there.client.xlen("s") == 1)
        assert list(lists.differences(target, each, True)) == []
        here.client.xadd("s", {"n": "a program's"})
        assert not unchanged(source, each)
    assert values(there, "s") == [b"soon"]


def test_a_difference_is_found(here: Tide, there: Tide, ends: tuple[Endpoint, Endpoint]) -> None:
    for n in range(3):
        raw(here.client, "TDELAY", "s", "AT", 4_000_000_000_000, "ID", f"t{n}", "n", n)
    source, target = ends
    with DelayedLists() as lists:
        assert lists.take(source, b"s", StreamId(0, 0))
        (each,) = lists.lists
        there.client.xgroup_create("s", "g", "0", mkstream=True)
        assert list(lists.differences(target, each, True)) == ["delayed entries are 3, at the target 0"]
        lists.send(target, each)
        lists.send(target, each)  # the tokens are the same
        assert list(lists.differences(target, each, True)) == []
        raw(there.client, "TDELAY", "s", "CANCEL", "t1")
        raw(there.client, "TDELAY", "s", "AT", 4_000_000_000_000, "ID", "t1", "n", "another")
        assert list(lists.differences(target, each, False)) == []
        assert list(lists.differences(target, each, True)) == [
            "the delayed entries have other tokens, times, fields, or values"
        ]
        cancel(target, b"s")
        assert listed(there, "s") == []
