"""TSTAGE, TPUBLISH, TDROP through the wire. Everything here is docs/semantics.md's [32]."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from respserver.testing import HandClock, RunningServer, start_in_thread
from tests.waiting import eventually
from tests.wire.rawclient import Raw
from tests.wire.test_roles import READONLY, follow

NOW = 1_700_000_000_000
MAX = (1 << 64) - 1
Connect = Callable[..., Raw]
WRONG = "WRONGTYPE Operation against a key holding the wrong kind of value"


def nostage(name: str) -> str:
    return f"NOSTAGE No such stage '{name}'"


def stage(c: Raw, name: str, key: str, *values: str | int, ttl: int = 0) -> int:
    reply: int = c("TSTAGE", name, ttl, key, "FIELDS", 1, "f", "VALUES", *values)
    return reply


def values(c: Raw, key: str) -> list[bytes]:
    return [row[2] for row in c("TRANGE", key, "-", "+")]


def staging(c: Raw) -> dict[str, int]:
    lines = c("INFO", "streams").decode().splitlines()
    facts = dict(line.split(":") for line in lines if ":" in line)
    return {name: int(facts[name]) for name in ("stages", "stage_bytes", "stages_expired", "fences")}


# -- what is published is there, once, and all of it -----------------------------------------------------------------
def test_nothing_is_seen_before_it_is_published(c: Raw) -> None:
    c("TAPPEND", "s", "f", "before")
    assert stage(c, "one", "s", 1, 2) == 2
    assert stage(c, "one", "s", 3) == 3
    assert stage(c, "one", "t", 9) == 4
    assert c("TLEN", "s") == 1
    assert c("EXISTS", "t") == c("EXISTS", "one") == 0
    assert c("TPUBLISH", "q", 0, "one") == [b"published", 4]
    assert values(c, "s") == [b"before", b"1", b"2", b"3"]
    assert c("TRANGE", "t", "-", "+") == [[b"%d.0" % NOW, b"f", b"9"]]


def test_stages_come_in_the_order_given(c: Raw) -> None:
    for name in ("c", "a", "b"):
        stage(c, name, "s", name)
    assert c("TPUBLISH", "q", 1, "b", "c", "a", "b") == [b"published", 3]  # one that is named twice counts once
    assert values(c, "s") == [b"b", b"c", b"a"]


def test_fields_are_kept_as_given(c: Raw) -> None:
    rough = [b"a%sb", b"\r\n$3\r\nfoo", bytes(range(256)), b""]
    c("TSTAGE", "one", 0, "s", "FIELDS", 2, rough[0], rough[1], "VALUES", rough[2], rough[3], rough[1], rough[0])
    c("TSTAGE", "one", 0, "s", "FIELDS", 1, "x", "VALUES", 1)
    c("TPUBLISH", "q", 1, "one")
    assert c("TRANGE", "s", "-", "+") == [
        [b"%d.0" % NOW, rough[0], rough[2], rough[1], rough[3]],
        [b"%d.1" % NOW, rough[0], rough[1], rough[1], rough[0]],
        [b"%d.2" % NOW, b"x", b"1"],
    ]


def test_ids_follow_the_streams_last(c: Raw, hand: RunningServer) -> None:  # [3]
    c("TAPPEND", "s", "f", "v")
    hand.advance(-3_600_000)
    stage(c, "one", "s", 1, 2)
    stage(c, "one", "t", 3)
    c("TPUBLISH", "q", 1, "one")
    assert [row[0] for row in c("TRANGE", "s", "-", "+")] == [b"%d.%d" % (NOW, n) for n in range(3)]
    assert c("TRANGE", "t", "-", "+")[0][0] == b"%d.0" % (NOW - 3_600_000)


@pytest.mark.parametrize("written", [0, 4096])
def test_sequence_numbers_end(c: Raw, hand: RunningServer, written: int) -> None:
    def at(ms: int, seq: int) -> None:
        stream = hand.server.data.ks.keys[b"s"]
        stream.last_ms, stream.last_seq = ms, seq  # type: ignore[union-attr]
        hand.server.data.ks.pool.publish_written = written

    c("TAPPEND", "s", "f", "v")
    hand.call(lambda: at(NOW + 1, MAX - 2))
    stage(c, "one", "s", 1, 2)
    stage(c, "two", "s", 3, 4)
    c("TPUBLISH", "q", 1, "one", "two")
    ids = [row[0] for row in c("TRANGE", "s", "-", "+")][1:]
    assert ids == [b"%d.%d" % (NOW + 1, MAX - 1), b"%d.%d" % (NOW + 1, MAX), *[b"%d.%d" % (NOW + 2, n) for n in (0, 1)]]
    hand.call(lambda: at(MAX, MAX - 2))
    stage(c, "one", "s", 1, 2)
    stage(c, "two", "s", 3)
    exhausted = "ERR The stream has exhausted the last possible ID, unable to add more items"
    assert c("TPUBLISH", "q", 2, "one", "two") == exhausted
    assert c("TLEN", "s") == 5
    assert c("TPUBLISH", "q", 2, "one") == [b"published", 2]
    assert c("TPUBLISH", "q", 3, "two") == exhausted


def test_many_entries(c: Raw) -> None:
    """More than are written at once: they are stored later, and read as any others meanwhile."""
    total = 20_000
    for name in range(4):
        for half in range(2):
            first = name * 5000 + half * 2500
            stage(c, f"n{name}", "s", *range(first, first + 2500))
    c("TAPPEND", "s", "f", "before")
    assert c("TPUBLISH", "q", 1, "n0", "n1", "n2", "n3") == [b"published", total]
    everything = [b"before", *[b"%d" % n for n in range(total)], b"behind"]
    c("TAPPEND", "s", "f", "behind")
    assert values(c, "s") == everything
    assert [row[2] for row in c("TREVRANGE", "s", "+", "-")] == everything[::-1]
    assert c("TCOUNT", "s", f"{NOW}.500", "+") == total + 2 - 500
    assert c("TSEEK", "s", f"{NOW}.500", 10_000) == b"%d.10500" % NOW
    assert [row[2] for row in c("TREAD", "s", f"{NOW}.7000", 3)] == [b"7000", b"7001", b"7002"]
    digest = c("DEBUG", "DIGEST")
    for words in (("DEBUG", "LOADAOF"), ("SAVE",), ("DEBUG", "RELOAD")):
        assert c(*words) == b"OK"
        assert c("DEBUG", "DIGEST") == digest, words
    assert values(c, "s") == everything
    assert c("TAPPEV", "s", "COUNT", 700) == total + 2 - 700
    assert values(c, "s") == everything[-700:]


def test_memory_and_disk_are_told(c: Raw) -> None:
    before = staging(c)
    assert before == {"stages": 0, "stage_bytes": 0, "stages_expired": 0, "fences": 0}
    for _ in range(10):
        c("TSTAGE", "one", 0, "s", "FIELDS", 1, "f", "VALUES", *["x" * 1000] * 1000)
    told = staging(c)
    assert told["stages"] == 1
    assert 10_000_000 < told["stage_bytes"] < 11_000_000
    figures = c("MEMORY", "STATS")
    assert figures[figures.index(b"dataset.bytes") + 1] > 10_000_000
    c("TPUBLISH", "q", 1, "one")
    assert staging(c) == {"stages": 0, "stage_bytes": 0, "stages_expired": 0, "fences": 1}
    eventually(lambda: c("MEMORY", "USAGE", "s") < 1_000_000)  # compressed in a thread
    c("SAVE")
    assert c("MEMORY", "USAGE", "s") < 200_000
    facts = c("TINFO", "s")
    assert facts[facts.index(b"disk-bytes") + 1] > 0


# -- fences --------------------------------------------------------------------------------------------------------
def test_an_epoch_is_published_once(c: Raw) -> None:
    stage(c, "one", "s", 1)
    assert c("TPUBLISH", "q", 7, "one") == [b"published", 1]
    stage(c, "one", "s", 1)
    stage(c, "two", "s", 2)
    assert c("TPUBLISH", "q", 7, "one", "never-there") == [b"skipped", 0]
    assert staging(c)["stages"] == 1  # they are dropped: the batch has come another way
    assert c("TPUBLISH", "q", 6, "two") == "STALE Epoch 6 of fence 'q' comes after epoch 7 was published"
    assert c("TPUBLISH", "other", 6, "two") == [b"published", 1]
    assert values(c, "s") == [b"1", b"2"]
    assert staging(c) == {"stages": 0, "stage_bytes": 0, "stages_expired": 0, "fences": 2}


def test_an_epoch_comes_again_with_other_content(c: Raw) -> None:
    stage(c, "one", "s", 1)
    assert c("TPUBLISH", "q", 7, "check", "ten", "one") == [b"published", 1]
    stage(c, "one", "s", 1)
    assert c("TPUBLISH", "q", 7, "CHECK", "ten", "one") == [b"skipped", 0]
    assert staging(c)["stages"] == 0
    for restarted in (("DEBUG", "LOADAOF"), ("SAVE",), ("DEBUG", "RELOAD")):
        stage(c, "one", "s", 1, 2)
        digest = c("DEBUG", "DIGEST")
        conflict = "CONFLICT Epoch 7 of fence 'q' was published with CHECK 'ten', not 'twenty'"
        assert c("TPUBLISH", "q", 7, "CHECK", "twenty", "one") == conflict
        assert c("DEBUG", "DIGEST") == digest
        assert c("TPUBLISH", "q", 7, "one") == [b"skipped", 0]  # a caller who gives no check is not asked for it
        assert c(*restarted) == b"OK"
    stage(c, "one", "s", 2)
    stage(c, "two", "s", 3)
    assert c("TPUBLISH", "q", 8, "one") == [b"published", 1]
    assert c("TPUBLISH", "q", 8, "CHECK", "any", "two") == [b"skipped", 0]  # nothing to compare it with
    assert values(c, "s") == [b"1", b"2"]


def test_a_stage_may_be_called_check_but_not_come_first(c: Raw) -> None:
    for name in ("CHECK", "one"):
        stage(c, name, "s", name)
    assert c("TPUBLISH", "q", 1, "one", "CHECK") == [b"published", 2]
    stage(c, "CHECK", "s", 1)
    assert c("TPUBLISH", "q", 3, "CHECK", "x" * 64, "CHECK") == [b"published", 1]
    for words in (("CHECK",), ("CHECK", "one")):
        assert c("TPUBLISH", "q", 4, *words) == "ERR syntax error"
    for check in ("", "x" * 65):
        assert c("TPUBLISH", "q", 4, "CHECK", check, "one") == "ERR CHECK must be 1 to 64 bytes"


def test_stale_and_missing_change_nothing(c: Raw) -> None:
    stage(c, "one", "s", 1)
    c("TPUBLISH", "q", 5, "one")
    stage(c, "one", "s", 1)
    digest = c("DEBUG", "DIGEST")
    assert c("TPUBLISH", "q", 4, "one").startswith("STALE ")
    assert c("TPUBLISH", "q", 6, "one", "two") == nostage("two")
    assert c("DEBUG", "DIGEST") == digest
    assert c("TPUBLISH", "q", 6, "one") == [b"published", 1]


def test_wrong_types(c: Raw) -> None:
    c("SET", "k", "v")
    assert stage(c, "one", "k", 1) == WRONG  # type: ignore[comparison-overlap]
    stage(c, "one", "s", 1)
    stage(c, "one", "t", 1)
    c("SET", "t", "v")
    digest = c("DEBUG", "DIGEST")
    assert c("TPUBLISH", "q", 1, "one") == WRONG
    assert c("DEBUG", "DIGEST") == digest
    assert c("EXISTS", "s") == 0
    c("DEL", "t")
    assert c("TPUBLISH", "q", 1, "one") == [b"published", 2]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("TSTAGE s 1 k FIELDS 1 f VALUES", "ERR wrong number of arguments for 'tstage' command"),
        ("TSTAGE s 1 k FIELDS 2 f g VALUES 1 2 3", "ERR wrong number of arguments for 'tstage' command"),
        ("TSTAGE s 1 k FIELDZ 1 f VALUES 1", "ERR syntax error"),
        ("TSTAGE s 1 k FIELDS 1 f VALUEZ 1", "ERR syntax error"),
        ("TSTAGE s 1 k FIELDS 0 f VALUES 1", "ERR the number of FIELDS must be positive and match the fields given"),
        ("TSTAGE s -1 k FIELDS 1 f VALUES 1", "ERR value is out of range, must be positive"),
        ("TSTAGE s x k FIELDS 1 f VALUES 1", "ERR value is not an integer or out of range"),
        ("TPUBLISH q 1", "ERR wrong number of arguments for 'tpublish' command"),
        ("TPUBLISH q -1 s", "ERR value is out of range, must be positive"),
        ("TPUBLISH q 1.0 s", "ERR value is not an integer or out of range"),
        ("TPUBLISH q 9223372036854775808 s", "ERR value is not an integer or out of range"),
        ("TDROP", "ERR wrong number of arguments for 'tdrop' command"),
    ],
)
def test_what_is_refused(c: Raw, words: str, error: str) -> None:
    assert c(*words.split()) == error
    assert staging(c)["stages"] == 0


def test_too_much_at_once(c: Raw) -> None:
    long = "x" * (1 << 20)
    refused = c("TSTAGE", "one", 0, "s", "FIELDS", 1, long, "VALUES", *range(600))
    assert refused == "ERR the entries of one command may take 512 MiB together"


# -- time ------------------------------------------------------------------------------------------------------------
def test_a_stage_ends_when_nobody_touches_it(c: Raw, hand: RunningServer) -> None:
    stage(c, "one", "s", 1, ttl=1000)
    stage(c, "kept", "s", 1)
    hand.advance(800)
    stage(c, "one", "t", 2, ttl=1000)
    hand.advance(999)
    assert staging(c)["stages"] == 2
    hand.advance(200)
    assert staging(c) | {"stage_bytes": 0} == {"stages": 1, "stage_bytes": 0, "stages_expired": 1, "fences": 0}
    assert c("TPUBLISH", "q", 1, "one") == nostage("one")
    hand.advance(50_000)
    assert c("TPUBLISH", "q", 1, "kept") == [b"published", 1]


def test_its_end_is_exact(c: Raw, hand: RunningServer) -> None:
    """No sweep has come by yet."""
    for name in ("one", "two", "three"):
        stage(c, name, "s", 1, ttl=50)
    hand.call(lambda: hand.server.clock.move(50))  # type: ignore[attr-defined]
    assert c("TPUBLISH", "q", 1, "one") == nostage("one")
    assert stage(c, "two", "s", 2) == 1
    assert c("TDROP", "three", "two") == 1


def test_a_later_ttl_replaces_the_one_before(c: Raw, hand: RunningServer) -> None:
    stage(c, "shorter", "s", 1, ttl=100_000)
    stage(c, "shorter", "s", 1, ttl=100)
    stage(c, "for-ever", "s", 1, ttl=100)
    stage(c, "for-ever", "s", 1)
    hand.advance(500)
    assert c("TDROP", "shorter") == 0
    assert c("TDROP", "for-ever") == 1


def test_persistent_stages_do_not_expire(c: Raw, hand: RunningServer) -> None:
    for name in ("a", "b", "c"):
        stage(c, name, "s", 1, 2, ttl=100)
    assert c("TPERSIST", "a", "a", "x", "b") == 2
    hand.advance(500)
    assert c("TPERSIST", "c") == 0
    stage(c, "b", "s", 3, ttl=100)  # a later TSTAGE sets another time
    hand.advance(500)
    assert c("TPERSIST", "b") == 0
    assert c("TPUBLISH", "q", 1, "a") == [b"published", 2]
    assert values(c, "s") == [b"1", b"2"]


@pytest.mark.parametrize("stored", [False, True])
def test_persistent_stages_after_a_restart(tmp_path: Path, stored: bool) -> None:
    clock = HandClock()
    with start_in_thread(tmp_path, clock) as server, Raw(server.port) as c:
        for name in ("kept", "other"):
            stage(c, name, "s", 1, ttl=1000)
        if stored:
            c("SAVE")
        assert c("TPERSIST", "kept") == 1
        if stored:
            c("SAVE")
    with start_in_thread(tmp_path, clock) as server, Raw(server.port) as c:
        server.advance(5000)
        assert c("TPUBLISH", "q", 1, "other") == nostage("other")
        assert c("TPUBLISH", "q", 1, "kept") == [b"published", 1]


def test_downtime_is_not_counted(tmp_path: Path) -> None:
    clock = HandClock()
    with start_in_thread(tmp_path, clock) as server, Raw(server.port) as c:
        stage(c, "one", "s", 1, ttl=1000)
        stage(c, "gone", "s", 1, ttl=1000)
        c("TDROP", "gone")
    clock.move(100_000)
    with start_in_thread(tmp_path, clock) as server, Raw(server.port) as c:
        server.advance(900)
        assert stage(c, "one", "s", 2, ttl=1000) == 2
        assert c("TPUBLISH", "q", 1, "gone") == nostage("gone")
        assert c("TPUBLISH", "q", 1, "one") == [b"published", 2]
        server.advance(5000)
    with start_in_thread(tmp_path, clock) as server, Raw(server.port) as c:
        assert c("TPUBLISH", "q", 1, "one") == [b"skipped", 0]
        assert values(c, "s") == [b"1", b"2"]


# -- beside the rest -------------------------------------------------------------------------------------------------
def test_drop_and_flush(c: Raw) -> None:
    for name in ("a", "b", "c"):
        stage(c, name, "s", 1)
    assert c("TDROP", "a", "a", "x") == 1
    assert c("TDROP", "a") == 0
    c("TPUBLISH", "q", 4, "b")
    c("FLUSHALL")
    assert staging(c) == {"stages": 0, "stage_bytes": 0, "stages_expired": 0, "fences": 0}
    stage(c, "b", "s", 1)
    assert c("TPUBLISH", "q", 1, "b") == [b"published", 1]
    assert values(c, "s") == [b"1"]


def test_blocked_readers_wake_and_watchers_are_told(c: Raw, connect: Connect) -> None:
    reader, member, watcher = connect(), connect(), connect()
    stage(c, "one", "s", 1, 2)
    watcher("WATCH", "s")
    reader.send("TREAD", "s", "", 10, "BLOCK", 0)
    member.send("TREAD", "s", "", 1, "BLOCK", 0, "GROUP", "g", 0)
    stage(c, "one", "s", 3)
    assert reader.nothing_yet()
    c("TPUBLISH", "q", 1, "one")
    assert [row[2] for row in reader.read()] == [b"1", b"2", b"3"]
    assert [row[2] for row in member.read()] == [b"1"]
    watcher("MULTI")
    watcher("PING")
    assert watcher("EXEC") is None


def test_in_a_transaction(c: Raw) -> None:
    c("MULTI")
    c("TSTAGE", "one", 0, "s", "FIELDS", 1, "f", "VALUES", 1)
    c("TPUBLISH", "q", 1, "one")
    c("TPUBLISH", "q", 0, "one")
    c("TDROP", "one")
    replies = c("EXEC")
    assert replies[:2] == [1, [b"published", 1]]
    assert str(replies[2]).startswith("STALE")
    assert replies[3] == 0


def test_a_replica_refuses_them(c: Raw, hand: RunningServer) -> None:
    stage(c, "one", "s", 1, ttl=100)
    follow(hand)
    assert stage(c, "one", "s", 1) == READONLY  # type: ignore[comparison-overlap]
    assert c("TPUBLISH", "q", 1, "one") == READONLY
    assert c("TDROP", "one") == READONLY
    hand.advance(1000)
    assert staging(c)["stages"] == 1  # only its leader lets it end
    follow(hand, False)


@pytest.fixture
def small() -> Iterator[Raw]:
    with start_in_thread(clock=HandClock()) as server, Raw(server.port) as c:
        stage(c, "one", "s", 1)
        c("CONFIG", "SET", "maxmemory", 1)
        server.advance(200)
        yield c


def test_without_memory(small: Raw) -> None:
    oom = "OOM command not allowed when used memory > 'maxmemory'."
    assert stage(small, "two", "s", 1) == oom  # type: ignore[comparison-overlap]
    assert small("TPUBLISH", "q", 1, "one") == [b"published", 1]  # it takes none


def test_a_fence_tells_its_last_epoch(c: Raw, hand: RunningServer) -> None:
    assert c("TFENCE", "q") is None
    for epoch in (0, 7):
        stage(c, "one", "s", 1)
        c("TPUBLISH", "q", epoch, "one")
        assert c("TFENCE", "q") == epoch
    assert c("TFENCE", "s") is None  # a stream is no fence
    c("DEBUG", "RELOAD")
    assert c("TFENCE", "q") == 7
    c("FLUSHALL")
    assert c("TFENCE", "q") is None
    three = Raw(hand.port, 3)
    assert three("TFENCE", "q") is None
    three.close()
