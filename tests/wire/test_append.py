"""TAPPEND, TAPPEV, TMAPPEND, TRANGE and what reads the index, through the wire. Numbers are docs/semantics.md's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from respserver.testing import RunningServer
from tests.wire.rawclient import Raw, pack

NOW = 1_700_000_000_000
Connect = Callable[..., Raw]


def ident(ms: int, seq: int) -> bytes:
    return b"%d.%d" % (ms, seq)


def fill(c: Raw, key: str, count: int, hand: RunningServer | None = None) -> list[bytes]:
    ids = []
    for i in range(count):
        ids.append(c("TAPPEND", key, "i", i))
        if hand is not None:
            hand.advance(1)
    return ids


def test_ids_follow_the_clock_and_never_go_back(c: Raw, hand: RunningServer) -> None:  # [3]
    assert c("TAPPEND", "s", "a", "1") == ident(NOW, 0)
    assert c("TAPPEND", "s", "a", "1") == ident(NOW, 1)
    hand.advance(5)
    assert c("TAPPEND", "s", "a", "1") == ident(NOW + 5, 0)
    hand.advance(-3600_000)
    assert c("TAPPEND", "s", "a", "1") == ident(NOW + 5, 1)


def test_a_pipeline_with_other_bytes_for_line_ends_is_stored_with_line_ends(c: Raw) -> None:
    """As in Redis, nobody looks at the two bytes after an argument. What is sent to readers must not have them."""
    one = pack("TAPPEND", "s", "f", "v")[:-2] + b"xx"
    c.sock.sendall(one * 3 + pack("PING"))
    *ids, pong = [c.read() for _ in range(4)]
    assert pong == b"PONG"
    assert c("TRANGE", "s", "-", "+") == [[entry_id, b"f", b"v"] for entry_id in ids]


def test_entries_keep_order_duplicates_and_any_bytes(c: Raw) -> None:  # [4]
    values = [b"b", b"2", b"a", b"", b"b", b"\r\n$3\r\nfoo", b"", bytes(range(256)), b"big", b"x" * 70_000]
    c("TAPPEND", "s", *values)
    assert c("TRANGE", "s", "-", "+") == [[ident(NOW, 0), *values]]


@pytest.mark.parametrize("words", [("s",), ("s", "f"), ("s", "f", "v", "g")])
def test_pairs_must_be_complete(c: Raw, words: tuple[str, ...]) -> None:
    assert c("TAPPEND", *words) == "ERR wrong number of arguments for 'tappend' command"
    assert c("EXISTS", "s") == 0


def test_wrong_type(c: Raw) -> None:
    c("SET", "k", "v")
    wrong = "WRONGTYPE Operation against a key holding the wrong kind of value"
    for call in (
        ("TAPPEND", "k", "f", "v"), ("TAPPEV", "k", "COUNT", 1), ("TRANGE", "k", "-", "+"), ("TREVRANGE", "k", "+",
        "-"),
        ("TREAD", "k", 0, 1), ("TREAD", "k", 0, 1, "GROUP", "g", 0), ("TLEN", "k"), ("TINFO", "k"), ("TCOUNT", "k",
        "-", "+"),
        ("TSEEK", "k", 0, 1), ("TACK", "k", "g", 1), ("TPENDING", "k", "g"), ("TGROUP", "LIST", "k"),
        ("TMAPPEND", "k", "FIELDS", 1, "f", "VALUES", 1),
    ):  # fmt: skip
        assert c(*call) == wrong, call


def test_tappev_count_is_exact(c: Raw) -> None:  # [6]
    for i in range(10):
        assert c("TAPPEV", "s", "COUNT", 3, "i", i) == ident(NOW, i)
        assert c("TLEN", "s") == min(i + 1, 3)
    assert [row[2] for row in c("TRANGE", "s", "-", "+")] == [b"7", b"8", b"9"]
    assert c("TAPPEV", "s", "COUNT", 1) == 2
    assert c("TAPPEV", "s", "count", 0) == 1
    assert c("EXISTS", "s") == 1
    assert c("TAPPEND", "s", "f", "v") == ident(NOW, 10)  # the last ID survives [3]
    assert c("TAPPEV", "s", "COUNT", 0, "f", "v") == ident(NOW, 11)
    assert c("TLEN", "s") == 0
    assert c("TAPPEV", "missing", "COUNT", 5) == 0
    assert c("EXISTS", "missing") == 0


def test_tappev_time_keeps_what_is_younger(c: Raw, hand: RunningServer) -> None:  # [6]
    for i in range(5):
        c("TAPPEND", "s", "i", i)
        hand.advance(10)
    # ages: 50 40 30 20 10
    assert c("TAPPEV", "s", "TIME", 30) == 3
    assert [row[2] for row in c("TRANGE", "s", "-", "+")] == [b"3", b"4"]
    assert c("TAPPEV", "s", "TIME", 21, "i", 5) == ident(NOW + 50, 0)
    assert c("TLEN", "s") == 3
    assert c("TAPPEV", "s", "TIME", 0, "i", 6) == ident(NOW + 50, 1)
    assert c("TLEN", "s") == 0


def test_tappev_minid_keeps_what_is_not_older(c: Raw, hand: RunningServer) -> None:  # [6]
    for i in range(3):
        c("TMAPPEND", "s", "FIELDS", "1", "i", "VALUES", *range(4 * i, 4 * i + 4))
        hand.advance(10)
    assert c("TAPPEV", "s", "MINID", f"{NOW}.2") == 2
    assert c("TAPPEV", "s", "minid", f"{NOW}.2") == 0
    assert c("TRANGE", "s", "-", "+", "COUNT", 1) == [[ident(NOW, 2), b"i", b"2"]]
    assert c("TAPPEV", "s", "MINID", f"{NOW + 10}-1", "i", 99) == ident(NOW + 30, 0)
    assert c("TLEN", "s") == 8
    assert c("TAPPEV", "s", "MINID", NOW + 20) == 3  # a number without a dot is milliseconds [2]
    assert c("TAPPEV", "s", "MINID", NOW + 1000) == 5
    assert c("TLEN", "s") == 0
    assert c("TAPPEV", "s", "MINID", NOW + 1000, "i", 100) == ident(NOW + 30, 1)  # older than that itself
    assert c("TLEN", "s") == 0
    assert c("TAPPEV", "missing", "MINID", "5") == c("EXISTS", "missing") == 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("s", "COUNT", "-1"), "ERR value is out of range, must be positive"),
        (("s", "COUNT", "x"), "ERR value is not an integer or out of range"),
        (("s", "SIZE", "1"), "ERR syntax error"),
        (("s", "COUNT", "1", "f"), "ERR wrong number of arguments for 'tappev' command"),
    ],
)
def test_tappev_refuses(c: Raw, words: tuple[str, ...], error: str) -> None:
    assert c("TAPPEV", *words) == error
    assert c("EXISTS", "s") == 0


def test_the_very_last_id(c: Raw, hand: RunningServer) -> None:  # [3]
    top = 2**64 - 1

    def jump(ms: int, seq: int) -> None:
        def work() -> None:
            ks = hand.server.data.ks
            stream = ks.stream(b"s", NOW) or ks.create_stream(b"s")
            wire = b"*3\r\n$%d\r\n%d.%d\r\n$1\r\nf\r\n$1\r\nv\r\n" % (len(b"%d.%d" % (ms, seq)), ms, seq)
            ks.append(b"s", stream, ms, seq, wire)
            hand.server.ticks.queue()

        hand.call(work)

    jump(NOW + 10, top)
    assert c("TAPPEND", "s", "f", "v") == ident(NOW + 11, 0)
    jump(top, top - 1)
    exhausted = "ERR The stream has exhausted the last possible ID, unable to add more items"
    assert c("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", 1, 2) == exhausted
    assert c("TAPPEND", "s", "f", "v") == ident(top, top)
    assert c("TAPPEND", "s", "f", "v") == exhausted
    assert c("TAPPEV", "s", "COUNT", 1, "f", "v") == exhausted
    assert c("TLEN", "s") == 4
    assert c("TREAD", "s", ident(top, top), 10) == []
    assert c("TRANGE", "s", b"(" + ident(top, top), "+") == []
    c("DEL", "s")
    assert c("TAPPEND", "s", "f", "v") == ident(NOW, 0)  # DEL forgets the last ID


def test_tmappend(c: Raw) -> None:  # [31]
    reply = c("TMAPPEND", "s", "FIELDS", 2, "a%d", "b", "VALUES", 1, 2, "x\r\n", "", 5, 6)
    assert reply == [ident(NOW, 0), ident(NOW, 2)]
    assert c("TRANGE", "s", "-", "+") == [
        [ident(NOW, 0), b"a%d", b"1", b"b", b"2"],
        [ident(NOW, 1), b"a%d", b"x\r\n", b"b", b""],
        [ident(NOW, 2), b"a%d", b"5", b"b", b"6"],
    ]
    assert c("TMAPPEND", "s", "FIELDS", 2, "a", "b", "VALUES", 1, 2, 3) == (
        "ERR wrong number of arguments for 'tmappend' command"
    )
    assert c("TMAPPEND", "s", "FIELDS", 3, "a", "b", "VALUES", 1, 2, 3) == "ERR syntax error"
    assert c("TMAPPEND", "s", "FIELDS", 0, "VALUES", 1, 2).startswith("ERR the number of FIELDS")
    assert c("TLEN", "s") == 3


def test_ranges(c: Raw, hand: RunningServer) -> None:  # [2] [25] [26] [27]
    for ms in range(3):
        for _ in range(2):
            c("TAPPEND", "s", "at", ms)
        hand.advance(10)
    ids = [ident(NOW + 10 * ms, seq) for ms in range(3) for seq in range(2)]

    def got(*words: bytes | str | int) -> list[bytes]:
        return [row[0] for row in c(*words)]

    assert got("TRANGE", "s", "-", "+") == ids
    assert got("TRANGE", "s", NOW, NOW) == ids[:2]
    assert got("TRANGE", "s", NOW + 10, NOW + 20) == ids[2:]
    assert got("TRANGE", "s", f"({NOW}.0", f"({NOW + 20}.1") == ids[1:5]
    assert got("TRANGE", "s", f"{NOW}-1", f"{NOW + 10}-0") == ids[1:3]  # a dash is taken too [1]
    assert got("TRANGE", "s", "-", "+", "COUNT", 3) == ids[:3]
    assert got("TRANGE", "s", "-", "+", "COUNT", 0) == []
    assert got("TRANGE", "s", "+", "-") == []
    assert got("TREVRANGE", "s", "+", "-") == ids[::-1]
    assert got("TREVRANGE", "s", "+", NOW + 10, "count", 3) == ids[:2:-1]
    assert got("TRANGE", "missing", "-", "+") == []
    assert c("TCOUNT", "s", NOW + 1, "+") == 4
    assert c("TCOUNT", "s", "+", "-") == 0
    assert c("TSEEK", "s", 0, 1) == ids[0]
    assert c("TSEEK", "s", ids[1], 3) == ids[4]
    assert c("TSEEK", "s", ids[1], 99) == ids[5]
    assert c("TSEEK", "s", ids[5], 1) is None
    assert c("TSEEK", "missing", 0, 1) is None
    for bad in ("x", "1.2.3", "1.", ".1", "-1", "1.18446744073709551616", "18446744073709551616", "1 ", ""):
        assert c("TRANGE", "s", bad, "+") == "ERR Invalid stream ID specified as stream command argument", bad


def test_tinfo(connect: Connect) -> None:  # [26]
    c, three = connect(), connect(3)
    c("TAPPEND", "s", "f", "v")
    c("TAPPEND", "s", "f", "v")
    c("TAPPEV", "s", "COUNT", 1)
    flat = c("TINFO", "s")
    info = three("TINFO", "s")
    assert dict(zip(flat[::2], flat[1::2], strict=True)) == info
    assert info[b"length"] == 1
    assert info[b"first"] == info[b"last"] == ident(NOW, 1)
    assert info[b"entries-added"] == 2
    assert info[b"evicted"] == 1
    assert info[b"evicted-to"] == ident(NOW, 0)
    assert c("TINFO", "missing") == "ERR no such key"


def test_a_range_larger_than_every_buffer_streams(c: Raw, hand: RunningServer) -> None:  # [25]
    blob = b"x" * 1000
    for _ in range(20):
        c.pipeline(*[("TAPPEND", "s", "f", blob)] * 500)
    rows = c("TRANGE", "s", "-", "+")
    assert len(rows) == 10_000
    assert [row[0] for row in rows] == [ident(NOW, i) for i in range(10_000)]
    back = c("TREVRANGE", "s", "+", "-")
    assert back == rows[::-1]
    # a second command in the same pipeline waits its turn, and one client's stream doesn't disturb another's eviction
    c.sock.sendall(pack("TRANGE", "s", "-", "+") + pack("TLEN", "s"))
    with Raw(hand.port) as other:
        assert other("TAPPEV", "s", "COUNT", 0) == 10_000
        assert other("DEL", "s") == 1
    assert c.read() == rows
    assert c.read() == 0


def test_deep_pipeline_of_large_replies(c: Raw) -> None:
    c.pipeline(*[("TAPPEND", "s", "f", b"x" * 1000)] * 100)
    replies = c.pipeline(*[("TRANGE", "s", "-", "+")] * 200)
    assert all(len(reply) == 100 for reply in replies)


@pytest.mark.parametrize(("command", "dot"), [(("TAPPEND", "s"), b"."), (("XADD", "s", "*"), b"-")])
def test_numbers_of_a_pipeline_grow_longer(c: Raw, hand: RunningServer, command: tuple[str, ...], dot: bytes) -> None:
    ids = [b"%d%b%d" % (NOW, dot, seq) for seq in range(10_500)]
    made: list[bytes] = []
    for count in (2, 12, 100, 1386, 8490, 2, 508):  # 9 to 10, 99 to 100 ..., and beyond the tables
        calls: list[tuple[bytes | str | int, ...]] = [(*command, "n", n) for n in range(len(made), len(made) + count)]
        made += c.pipeline(*calls)
    assert made == ids
    entries = c("XRANGE", "s", "-", "+") if dot == b"-" else c("TRANGE", "s", "-", "+")
    flat = [[entry[0], *(entry[1] if dot == b"-" else entry[1:])] for entry in entries]
    assert flat == [[entry_id, b"n", b"%d" % number] for number, entry_id in enumerate(ids)]


@pytest.mark.parametrize("chunk", [1, 7, 100, 1460, 1 << 20])
def test_a_pipeline_appends_what_single_calls_would(c: Raw, chunk: int) -> None:
    """However the bytes are cut, and whatever comes between the calls or is in their values."""
    values: list[list[bytes | str]] = [["f", b"a\r\nb"], ["f", b""], ["f", b"x" * 300], ["f", b"*6\r\n"], ["f", b"1"]]
    calls: list[list[bytes | str]] = []
    for word in ("TAPPEND", "tappend", "tApPeNd"):
        for key in ("s", "t", "a longer key\r\n"):
            calls += [[word, key, *pair] for pair in values * 3]
            calls += [[word, key, *pair, *pair, b"g", key] for pair in values]
            calls += [["PING"], [word, key, "f", "v"], [word, key, "odd"], [word, key, "f", "w"], [word, key, "f", "x"]]
    data = b"".join(pack(*call) for call in calls)
    for at in range(0, len(data), chunk):
        c.sock.sendall(data[at : at + chunk])
    replies = [c.read() for _ in calls]
    for key in ("s", "t", "a longer key\r\n"):
        expected = [
            [reply, *(v if isinstance(v, bytes) else v.encode() for v in call[2:])]
            for call, reply in zip(calls, replies, strict=True)
            if call[1:2] == [key] and len(call) % 2 == 0
        ]
        assert c("TRANGE", key, "-", "+") == expected
    assert sum(isinstance(reply, str) for reply in replies) == 9


def test_stream_survives_reload(c: Raw, hand: RunningServer) -> None:
    ids = fill(c, "s", 1200)
    c("TAPPEV", "s", "COUNT", 700)
    before = c("TRANGE", "s", "-", "+")
    digest = c("DEBUG", "DIGEST")
    assert c("DEBUG", "RELOAD") == b"OK"
    assert c("DEBUG", "DIGEST") == digest
    assert c("TRANGE", "s", "-", "+") == before
    assert c("TAPPEND", "s", "i", "new") == ident(NOW, 1200)
    assert c("DEBUG", "LOADAOF") == b"OK"
    assert c("TLEN", "s") == 701
    assert c("TREAD", "s", ids[-1], 10) == [[ident(NOW, 1200), b"i", b"new"]]


def test_a_very_large_entry(hand: RunningServer, c: Raw) -> None:
    ident = c("TAPPEND", "s", "f", bytes(40 << 20))
    c("TAPPEND", "s", "f", "small")
    digest = c("DEBUG", "DIGEST")
    assert c("DEBUG", "LOADAOF") == b"OK"
    assert c("DEBUG", "RELOAD") == b"OK"
    assert c("DEBUG", "DIGEST") == digest
    [[found, _, value]] = c("TRANGE", "s", ident, ident)
    assert found == ident
    assert len(value) == 40 << 20
