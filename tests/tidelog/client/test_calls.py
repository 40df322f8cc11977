"""What each call sends, and what it reads from replies in RESP2 and RESP3 form. No server is needed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tidelog import (
    MISSING,
    Batch,
    Delayed,
    DelayedPage,
    Entry,
    GroupInfo,
    Info,
    Pending,
    PendingSummary,
    Published,
    Span,
    StreamId,
    StreamPolicy,
)
from tidelog.client import calls
from tidelog.transport.call import Call

A, B = StreamId(5, 0), StreamId(5, 1)
EA, EB = Entry(A, [b"f", b"1"]), Entry(B, [b"f", b"2", b"f", b"3"])
ROW_A, ROW_B = [b"5.0", b"f", b"1"], [b"5.1", b"f", b"2", b"f", b"3"]

TINFO = {
    b"length": 2, b"first": b"5.0", b"last": b"5.1", b"entries-added": 3, b"evicted": 1, b"evicted-to": b"4.0",
    b"nodes": 1, b"memory-bytes": 100, b"disk-bytes": 50, b"groups": 1, b"pending": 2, b"redelivered": 3,
    b"expired": 4, b"dead-lettered": 5, b"something-new": b"is skipped",
}  # fmt: skip
GROUP = {
    b"name": b"g", b"offset": b"5.1", b"ttl": 0, b"pending": 1, b"readers": 2, b"redelivered": 3, b"expired": 4,
    b"dead-lettered": 5,
}  # fmt: skip


def flat(facts: dict[bytes, Any]) -> list[Any]:
    return [word for pair in facts.items() for word in pair]


# (call, what is sent, [(reply, what is read from it), ...])
TABLE: list[tuple[Call[Any], str, list[tuple[Any, Any]]]] = [
    (calls.tappend("k", {"a": 1, b"b": 2.5}), "TAPPEND k a 1 b 2.5", [(b"5.1", B)]),
    (calls.tappend("k", [("a", 1), ("a", 2)]), "TAPPEND k a 1 a 2", [(b"5.1", B)]),
    (calls.tappev("k", {"a": "x"}, count=9), "TAPPEV k COUNT 9 a x", [(b"5.1", B)]),
    (calls.tappev("k", {"a": "x"}, ms=60), "TAPPEV k TIME 60 a x", [(b"5.1", B)]),
    (calls.tappev("k", {"a": "x"}, bytes=99), "TAPPEV k BYTES 99 a x", [(b"5.1", B)]),
    (calls.ttrim("k", count=0), "TAPPEV k COUNT 0", [(7, 7)]),
    (calls.ttrim("k", bytes=0), "TAPPEV k BYTES 0", [(7, 7)]),
    (
        calls.tmappend("k", ["a", "b"], [(1, 2), ("x", b"y")]),
        "TMAPPEND k FIELDS 2 a b VALUES 1 2 x y",
        [([b"5.0", b"5.1"], Span(A, B))],
    ),
    (
        calls.tstage("st", 500, "k", ["a", "b"], [(1, 2), ("x", b"y")]),
        "TSTAGE st 500 k FIELDS 2 a b VALUES 1 2 x y",
        [(4, 4)],
    ),
    (
        calls.tpublish("q", 7, "st", b"su"),
        "TPUBLISH q 7 st su",
        [([b"published", 4], Published(True, 4)), ([b"skipped", 0], Published(False, 0))],
    ),
    (calls.tpublish("q", 7, "st", check="c"), "TPUBLISH q 7 CHECK c st", [([b"published", 4], Published(True, 4))]),
    (calls.tdrop("st", b"su"), "TDROP st su", [(2, 2)]),
    (calls.tpersist("st", b"su"), "TPERSIST st su", [(2, 2)]),
    (
        calls.tread("k"),
        "TREAD k _ 100",
        [([], Batch()), ([ROW_A, ROW_B], Batch([EA, EB])), ([None, ROW_A, None], Batch([MISSING, EA, MISSING]))],
    ),
    (calls.tread("k", A, 5, block=0), "TREAD k 5.0 5 BLOCK 0", [(None, Batch(timed_out=True))]),
    (calls.tread("k", A, 5, max_bytes=6), "TREAD k 5.0 5 MAXBYTES 6", [([ROW_A], Batch([EA]))]),
    (
        calls.tread("k", "0", 5, with_info=True),
        "TREAD k 0 5 WITHINFO",
        [
            ([[b"5.0", b"5.1"], ROW_A], Batch([EA], Span(A, B))),
            ([[None, b"0.0"]], Batch([], Span(None, StreamId(0)))),
        ],
    ),
    (
        calls.tread(
            "k", group="g", ttl=7, retry=8, expire=9, max_deliveries=3, deadletter="d", block=1, with_info=True
        ),
        "TREAD k _ 100 BLOCK 1 GROUP g 7 RETRY 8 9 MAXDELIVERIES 3 DEADLETTER d WITHINFO",
        [(None, Batch(timed_out=True))],
    ),
    (calls.twait({"k": A, b"l": ""}), "TWAIT 0 k 5.0 l _", [([b"k"], [b"k"]), (None, [])]),
    (calls.twait({b"Group": 7, "k": EB}, block=9), "TWAIT 9 k 5.1 Group 7", [([b"Group"], [b"Group"])]),
    (calls.twait_group("g", ["k", b"l"]), "TWAIT 0 GROUP g k l", [([b"k", b"l"], [b"k", b"l"]), (None, [])]),
    (calls.twait_group(b"g", [b"k"], block=9), "TWAIT 9 GROUP g k", [(None, [])]),
    (calls.trange("k"), "TRANGE k - +", [([], []), ([ROW_A, ROW_B], [EA, EB])]),
    (calls.trange("k", EA, 7, 3), "TRANGE k 5.0 7 COUNT 3", [([], [])]),
    (calls.trevrange("k", B, "(5.0", 0), "TREVRANGE k 5.1 (5.0 COUNT 0", [([ROW_B], [EB])]),
    (calls.tlen("k"), "TLEN k", [(3, 3)]),
    (calls.tcount("k", "5", "6"), "TCOUNT k 5 6", [(2, 2)]),
    (calls.tseek("k", A, 1), "TSEEK k 5.0 1", [(b"5.1", B), (None, None)]),
    (
        calls.tinfo("k"),
        "TINFO k",
        [
            (TINFO, Info(2, A, B, 3, 1, StreamId(4), 1, 100, 50, 1, 2, 3, 4, 5)),
            (flat(TINFO | {b"first": None}), Info(2, None, B, 3, 1, StreamId(4), 1, 100, 50, 1, 2, 3, 4, 5)),
            (
                TINFO | {b"retain": b"COUNT 5 ~"},
                Info(2, A, B, 3, 1, StreamId(4), 1, 100, 50, 1, 2, 3, 4, 5, retain=StreamPolicy(count=5)),
            ),
        ],
    ),
    (
        calls.tcfg("k"),
        "TCFG k",
        [
            ([b"retain", None], None),
            ({b"retain": b"COUNT 5 ~"}, StreamPolicy(count=5)),
            ([b"retain", b"COUNT 5 AGE 6 BYTES 7 GROUPS LIMIT 8 EXACT"], StreamPolicy(5, 6, 7, True, 8, True)),
            ([b"retain", b"AGE 6 GROUPS NEW 9 ~"], StreamPolicy(ms=6, groups=True)),
        ],
    ),
    (
        calls.tcfg_retain("k", StreamPolicy(5, 6, 7, True, 8, True)),
        "TCFG k RETAIN COUNT 5 AGE 6 BYTES 7 GROUPS LIMIT 8 EXACT",
        [(3, 3)],
    ),
    (
        calls.tcfg_retain("k", StreamPolicy(bytes=7, groups=True), dry=True),
        "TCFG k RETAIN BYTES 7 GROUPS DRY",
        [(3, 3)],
    ),
    (calls.tcfg_retain("k", None), "TCFG k RETAIN NONE", [(0, 0)]),
    (calls.tcfg_tier("k"), "TCFG k TIER DEFAULT", [(b"OK", None)]),
    (calls.tcfg_tier("k", ms=0), "TCFG k TIER AGE 0", [(b"OK", None)]),
    (calls.tcfg_tier("k", bytes=0), "TCFG k TIER BYTES 0", [(b"OK", None)]),
    (calls.tdelay("k", {"f": "v"}, ms=0), "TDELAY k IN 0 f v", [(b"5.0", "5.0")]),
    (calls.tdelay("k", {"f": "v"}, at=7, token="t"), "TDELAY k AT 7 ID t f v", [(b"t", "t")]),
    (calls.tdelay_cancel("k", b"t"), "TDELAY k CANCEL t", [(1, True), (0, False)]),
    (
        calls.tdelay_list("k"),
        "TDELAY k LIST 0",
        [
            ([b"0", []], DelayedPage("0", [])),
            ([b"1-2-3-4", [[b"t", 9, b"f", b"v"]]], DelayedPage("1-2-3-4", [Delayed("t", 9, (b"f", b"v"))])),
        ],
    ),
    (calls.tdelay_list("k", "1-2-3-4", 5), "TDELAY k LIST 1-2-3-4 COUNT 5", [([b"0", []], DelayedPage("0", []))]),
    (calls.tdelay_count("k"), "TDELAY k COUNT", [(3, 3)]),
    (calls.tack("k", "g", A, EB, "7.0"), "TACK k g 5.0 5.1 7.0", [(2, 2)]),
    (calls.tnack("k", "g", A), "TNACK k g 5.0", [(1, 1)]),
    (calls.tnack("k", "g", A, delay=50), "TNACK k g DELAY 50 5.0", [(1, 1)]),
    (calls.ttouch("k", "g", 900, A, B), "TTOUCH k g 900 5.0 5.1", [(2, 2)]),
    (
        calls.tpending("k", "g"),
        "TPENDING k g",
        [
            ([0, None, None, None], PendingSummary(0, None, None, None)),
            ([2, b"5.0", b"5.1", 99], PendingSummary(2, A, B, 99)),
        ],
    ),
    (
        calls.tpending_range("k", "g", "-", B, 10),
        "TPENDING k g - 5.1 10",
        [([], []), ([[b"5.0", 2, 10, 20, 0]], [Pending(A, 2, 10, 20, 0)])],
    ),
    (
        calls.tgroup_list("k"),
        "TGROUP LIST k",
        [([], []), *((reply, [GroupInfo(b"g", B, 0, 1, 2, 3, 4, 5)]) for reply in ([GROUP], [flat(GROUP)]))],
    ),
    (calls.tgroup_setid("k", "g", A), "TGROUP SETID k g 5.0", [(b"OK", None)]),
    (calls.tgroup_destroy("k", "g"), "TGROUP DESTROY k g", [(1, True), (0, False)]),
    (calls.wait(2), "WAIT 2 0", [(3, 3)]),
    (calls.wait(1, 500), "WAIT 1 500", [(0, 0)]),
    (calls.waitaof(1, 2, 500), "WAITAOF 1 2 500", [([1, 0], (1, 0))]),
]  # fmt: skip


def words(call: Call[Any]) -> str:
    shown = [word.decode() if isinstance(word, bytes) else str(word) for word in call.args]
    return " ".join(word or "_" for word in shown)


@pytest.mark.parametrize(("call", "sent", "replies"), TABLE, ids=[row[1] for row in TABLE])
def test_what_is_sent_and_read(call: Call[Any], sent: str, replies: list[tuple[Any, Any]]) -> None:
    assert words(call) == sent
    for reply, meaning in replies:
        read = call.read(reply)
        assert read == meaning
        assert type(read) is type(meaning)
        if isinstance(meaning, Batch):
            assert (read.info, read.timed_out) == (meaning.info, meaning.timed_out)


def test_only_some_calls_let_the_server_hold_back_the_reply() -> None:
    blocking = [call.args[0] for call, _, _ in TABLE if call.block is not None]
    assert blocking == ["TREAD", "TREAD", "TWAIT", "TWAIT", "TWAIT", "TWAIT", "WAIT", "WAIT", "WAITAOF"]
    assert calls.tread("k", block=250).block == 250


def test_calls_without_ids_send_nothing() -> None:
    nothing = (calls.tdrop(), calls.tpersist(), calls.tack("k", "g"), calls.tnack("k", "g", delay=5))
    for call in (*nothing, calls.ttouch("k", "g", 5)):
        assert call.args == ()
        assert call.read(None) == 0


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda: calls.tappend("k", {}), ValueError),
        (lambda: calls.tmappend("k", ["a", "b"], [(1, 2), (3,)]), ValueError),
        (lambda: calls.tmappend("k", ["a"], []), ValueError),
        (lambda: calls.tstage("s", 0, "k", ["a", "b"], [(1, 2), (3,)]), ValueError),
        (lambda: calls.tstage("s", 0, "k", ["a"], []), ValueError),
        (lambda: calls.tpublish("q", 1), ValueError),
        (lambda: calls.tappev("k", {"a": 1}), TypeError),
        (lambda: calls.ttrim("k", count=1, ms=1), TypeError),
        (lambda: calls.twait({}), ValueError),
        (lambda: calls.twait_group("g", []), ValueError),
        (lambda: calls.tread("k", group="g", expire=5), TypeError),
        (lambda: calls.tread("k", group="g", deadletter="d"), TypeError),
        (lambda: calls.trange("k", datetime(2026, 1, 1)), ValueError),  # noqa: DTZ001 - it has no zone on purpose
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_sent(wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        wrong()


def test_times_become_milliseconds() -> None:
    at = datetime(2017, 2, 7, 13, 55, 48, 300_000, UTC)
    assert calls.id_text(at) == "1486475748300"
    assert calls.id_text(at.astimezone(timezone(timedelta(hours=2)))) == "1486475748300"
