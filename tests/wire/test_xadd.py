"""XADD: what a redis-server can't be asked in ``test_differential_streams``: the clock, pipelines, T commands."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from respserver.testing import RunningServer
from tests.wire.rawclient import Raw, pack

Connect = Callable[..., Raw]
BELOW = "ERR The ID specified in XADD is equal or smaller than the target stream top item"


def test_ids_follow_the_clock_and_never_go_back(c: Raw, hand: RunningServer) -> None:
    assert c("XADD", "s", "*", "f", "v") == b"1700000000000-0"
    assert c("XADD", "s", "*", "f", "v") == b"1700000000000-1"
    hand.advance(5)
    assert c("XADD", "s", "*", "f", "v") == b"1700000000005-0"
    assert c("XADD", "s", "1700000000009-3", "f", "v") == b"1700000000009-3"
    assert c("XADD", "s", "*", "f", "v") == b"1700000000009-4"
    assert c("XADD", "s", "MAXLEN", 2, "*", "f", "v") == b"1700000000009-5"
    assert c("XLEN", "s") == 2
    assert c("XADD", "s", "1700000000010-18446744073709551615", "f", "v") == b"1700000000010-18446744073709551615"
    assert c("XADD", "s", "1700000000010-*", "f", "v") == BELOW
    assert c("XADD", "s", "*", "f", "v") == b"1700000000011-0"


def test_one_stream_for_both_kinds_of_commands(c: Raw) -> None:
    assert c("XADD", "s", "5.1", "a", "1") == b"5-1"
    assert c("XADD", "s", "5.*", "a", "2") == b"5-2"
    ours = c("TAPPEND", "s", "b", "3")
    assert c("TRANGE", "s", "-", "+") == [[b"5.1", b"a", b"1"], [b"5.2", b"a", b"2"], [ours, b"b", b"3"]]
    theirs = ours.replace(b".", b"-")
    assert c("XRANGE", "s", "5.2", "+") == [[b"5-2", [b"a", b"2"]], [theirs, [b"b", b"3"]]]
    assert c("XREAD", "STREAMS", "s", "5.2") == [[b"s", [[theirs, [b"b", b"3"]]]]]


@pytest.mark.parametrize("chunk", [1 << 20, 97, 1])
def test_a_pipeline_adds_what_single_calls_would(c: Raw, chunk: int) -> None:
    """However the bytes are cut, and whatever comes between the calls or is in their values."""
    values: list[list[bytes | str]] = [["f", b"a\r\nb"], ["f", b""], ["f", b"x" * 300], ["f", b"*6\r\n"], ["*", b"1.5"]]
    calls: list[list[bytes | str]] = []
    for word in ("XADD", "xadd"):
        for key in ("s", "a longer key\r\n"):
            calls += [[word, key, "*", *pair] for pair in values * 3]
            calls += [[word, key, "*", *pair, *pair, b"g", key] for pair in values]
            calls += [["PING"], [word, key, "*", "f", "v"], [word, key, "*", "odd"], [word, key, "*", "a", "b", "odd"]]
            calls += [[word, key, "*", "f", "v"], [word, key, "1-1", "f", "v"], [word, key, "*", "f", "w"]]
            calls += [[word, key, "1-1", "f", "v"], [word, key, "*", "f", "w"]]
            calls += [[word, key, "NOMKSTREAM", "*", "a", "b"]]
            calls += [[word, key, "NOMKSTREAM", "*", "c", "d"], [word, key, "*", "c", "d", "e", "f"]]
    data = b"".join(pack(*call) for call in calls)
    for at in range(0, len(data), chunk):
        c.sock.sendall(data[at : at + chunk])
    replies = [c.read() for _ in calls]
    for key in ("s", "a longer key\r\n"):
        expected: list[tuple[bytes, list[bytes]]] = []
        for call, reply in zip(calls, replies, strict=True):
            if call[1:2] == [key] and isinstance(reply, bytes):
                given = call[call.index("*") + 1 :]
                expected.append((reply, [v if isinstance(v, bytes) else v.encode() for v in given]))
        assert len(expected) == 2 * 27
        assert c("XRANGE", key, "-", "+") == [list(entry) for entry in expected]
        ids = [(int(ms), int(seq)) for ms, seq in [entry[0].split(b"-") for entry in expected]]
        assert ids == sorted(set(ids))
    assert sum(isinstance(reply, str) and reply != "PONG" for reply in replies) == 4 * 4


def test_a_batch_is_logged_like_single_calls(c: Raw, hand: RunningServer) -> None:
    c.pipeline(*[("XADD", "s", "*", "f", number) for number in range(500)])
    before = c("XRANGE", "s", "-", "+")
    assert len(before) == 500
    assert c("DEBUG", "RELOAD") == b"OK"
    assert c("XRANGE", "s", "-", "+") == before


def test_options_survive_a_reload(c: Raw) -> None:
    for number in range(1, 8):
        c("XADD", "s", "MAXLEN", 4, f"{number}-*", "f", number)
    c("XSETID", "s", "20-5", "ENTRIESADDED", 100, "MAXDELETEDID", "6-0")
    before = c("XRANGE", "s", "-", "+")
    assert [entry[0] for entry in before] == [b"4-0", b"5-0", b"6-0", b"7-0"]
    assert c("DEBUG", "RELOAD") == b"OK"
    assert c("XRANGE", "s", "-", "+") == before
    assert c("XADD", "s", "20-5", "f", "v") == BELOW
    assert c("XADD", "s", "20-*", "f", "v") == b"20-6"


def test_nomkstream(connect: Connect) -> None:
    assert connect(2)("XADD", "s", "NOMKSTREAM", "*", "f", "v") is None
    three = connect(3)
    three.send("XADD", "s", "NOMKSTREAM", "*", "f", "v")
    assert three.sock.recv(100) == b"_\r\n"
    assert three("EXISTS", "s") == 0


def test_trimming_by_whole_nodes_stops_at_a_hundred_of_them(c: Raw) -> None:
    c("CONFIG", "SET", "stream-node-max-entries", 1)
    c.pipeline(*[("XADD", "s", "*", "f", "v") for _ in range(150)])
    assert c("XTRIM", "s", "MAXLEN", "~", 1) == 100
    assert c("XTRIM", "s", "MAXLEN", "~", 1, "LIMIT", 0) == 49
    assert c("XLEN", "s") == 1
