"""XGROUP: with T commands, keyspace events, and streams without entries and groups.

``test_differential_groups`` has the rest.
"""

from __future__ import annotations

from collections.abc import Callable

from respserver.testing import RunningServer
from tests.wire.rawclient import Raw
from tests.wire.test_tread import blocked

Connect = Callable[..., Raw]


def test_one_group_for_both_kinds_of_commands(c: Raw) -> None:
    c("XGROUP", "CREATE", "s", "g", 0, "MKSTREAM", "ENTRIESREAD", 0)
    c.pipeline(*[("XADD", "s", f"{number}-0", "f", "v") for number in (1, 2, 3)])
    assert c("TREAD", "s", "", 1, "GROUP", "g", 0) == [[b"1.0", b"f", b"v"]]
    reply = c("XREADGROUP", "GROUP", "g", "c", "COUNT", 1, "STREAMS", "s", ">")
    assert reply == [[b"s", [[b"2-0", [b"f", b"v"]]]]]
    assert c("XINFO", "GROUPS", "s")[0][-5:] == [b"2-0", b"entries-read", 2, b"lag", 1]
    (group,) = c("TGROUP", "LIST", "s")
    assert group[:8] == [b"name", b"g", b"offset", b"2.0", b"ttl", 0, b"pending", 1]
    assert c("TGROUP", "SETID", "s", "g", 0) == b"OK"
    assert len(c("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")[0][1]) == 3
    assert c("TGROUP", "DESTROY", "s", "g") == 1
    assert c("XGROUP", "DESTROY", "s", "g") == 0
    c("TREAD", "s", 0, 0, "GROUP", "g", 60_000)
    assert c("XGROUP", "CREATE", "s", "g", 0) == "BUSYGROUP Consumer Group name already exists"
    assert c("XGROUP", "CREATECONSUMER", "s", "g", "c") == 1
    assert c("XGROUP", "DESTROY", "s", "g") == 1


def test_consumers_are_signs_of_life(c: Raw, hand: RunningServer) -> None:
    c("XADD", "s", "1-0", "f", "v")
    c("TREAD", "s", 0, 0, "GROUP", "g", 1000)
    for call in (
        ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">"), ("XACK", "s", "g", "9-9"),
        ("XGROUP", "CREATECONSUMER", "s", "g", "d"), ("XGROUP", "SETID", "s", "g", 0),
        ("XCLAIM", "s", "g", "c", 0, "9-9"), ("XAUTOCLAIM", "s", "g", "c", 0, 0),
        ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", 0), ("XNACK", "s", "g", "FAIL", "IDS", 1, "9-9"),
    ):  # fmt: skip
        hand.advance(900)
        c(*call)
        assert len(c("TGROUP", "LIST", "s")) == 1, call
    hand.advance(900)
    c("XPENDING", "s", "g")
    c("XINFO", "CONSUMERS", "s", "g")
    hand.advance(200)
    assert c("TGROUP", "LIST", "s") == []


def test_a_stream_made_by_mkstream_lives_alone(c: Raw) -> None:
    c("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    c("XGROUP", "DESTROY", "s", "g")
    for how in ("LOADAOF", "RELOAD"):
        assert c("EXISTS", "s") == 1
        assert c("XINFO", "GROUPS", "s") == []
        c("DEBUG", how)
    c("TREAD", "t", "", 0, "GROUP", "g", 0)
    c("XGROUP", "DESTROY", "t", "g")
    assert c("EXISTS", "t") == 0  # TREAD made it for its group only [14]


def test_a_stream_whose_last_id_is_set_to_none_lives_on(c: Raw) -> None:
    c("XADD", "s", "1-0", "f", "v")
    c("XTRIM", "s", "MAXLEN", 0)
    c("XSETID", "s", "0-0")
    c("XGROUP", "CREATE", "s", "g", 0)
    assert c("XGROUP", "DESTROY", "s", "g") == 1
    assert c("EXISTS", "s") == 1


def test_a_consumer_without_a_name_or_with_any_bytes(c: Raw) -> None:
    c("XADD", "s", "1-0", "f", "v")
    name = bytes(range(256))
    c("XGROUP", "CREATE", "s", name, 0)
    c("XREADGROUP", "GROUP", name, name, "STREAMS", "s", ">")
    c("XGROUP", "CREATECONSUMER", "s", name, "")
    for how in ("LOADAOF", "RELOAD"):
        assert c("XPENDING", "s", name) == [1, b"1-0", b"1-0", [[name, b"1"]]]
        assert [row[1] for row in c("XINFO", "CONSUMERS", "s", name)] == [b"", name]
        c("DEBUG", how)


def test_setid_wakes(connect: Connect, hand: RunningServer) -> None:
    reader, c = connect(), connect()
    c("XADD", "s", "1-0", "f", "v")
    c("XGROUP", "CREATE", "s", "g", "$")
    reader.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", ">")
    blocked(hand, 1)
    c("XGROUP", "SETID", "s", "g", 0)
    assert reader.read() == [[b"s", [[b"1-0", [b"f", b"v"]]]]]


def test_keyspace_events(connect: Connect) -> None:
    c, listener = connect(), connect()
    c("CONFIG", "SET", "notify-keyspace-events", "Et")
    listener("PSUBSCRIBE", "__keyevent@0__:*")
    c("XGROUP", "CREATE", "s", "g", 0, "MKSTREAM")
    c("XGROUP", "CREATECONSUMER", "s", "g", "a")
    c("XGROUP", "CREATECONSUMER", "s", "g", "a")
    c("XREADGROUP", "GROUP", "g", "b", "STREAMS", "s", ">")
    c("XCLAIM", "s", "g", "d", 0, "1-0")
    c("XAUTOCLAIM", "s", "g", "e", 0, "1-0")
    c("XGROUP", "SETID", "s", "g", "$")
    c("XGROUP", "DELCONSUMER", "s", "g", "a")
    c("XGROUP", "DELCONSUMER", "s", "g", "a")
    c("XGROUP", "DESTROY", "s", "g")
    c("XGROUP", "DESTROY", "s", "g")
    made = ["xgroup-create", *["xgroup-createconsumer"] * 4, "xgroup-setid", "xgroup-delconsumer", "xgroup-destroy"]
    found = [listener.read() for _ in made]
    assert [row[2:] for row in found] == [[f"__keyevent@0__:{event}".encode(), b"s"] for event in made]
