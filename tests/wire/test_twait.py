"""TWAIT: one client waits for many streams. Numbers are docs/semantics.md's; the point is [53]."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from respserver.testing import RunningServer, nothing_waits
from tests.waiting import eventually
from tests.wire.rawclient import Raw

Connect = Callable[..., Raw]
RETRY = ("RETRY", 1000, 60_000)


def waiting(hand: RunningServer, connect: Connect, *words: str | int, proto: int = 2) -> Raw:
    """A new client that waits with TWAIT and these words."""
    raw = connect(proto)
    count = hand.server.blocking.count
    raw.send("TWAIT", *words)
    eventually(lambda: hand.server.blocking.count == count + 1)
    return raw


def still_waiting(raw: Raw, c: Raw) -> bool:
    """Whether no reply came, although the server has done everything else."""
    c("PING")
    return raw.nothing_yet()


def held_back(hand: RunningServer) -> int:
    """The number of clients that CLIENT PAUSE holds back."""
    return sum(conn.flow.paused for conn in hand.server.clients.connections())


def groups(c: Raw, *keys: str, ttl: int = 0) -> None:
    for key in keys:
        c("TREAD", key, "", 0, "GROUP", "g", ttl)


# -- at once -----------------------------------------------------------------------------------------------------
def test_the_keys_that_have_entries_after_their_id(c: Raw) -> None:
    last = c("TAPPEND", "a", "f", "v")
    c("TAPPEND", "b", "f", "v")
    assert c("TWAIT", 0, "a", 0, "b", 0, "missing", 0) == [b"a", b"b"]
    assert c("TWAIT", 0, "b", 0, "a", last) == [b"b"]
    assert c("TWAIT", 0, "a", "0-1", "a", last) == [b"a"]  # named twice: either ID will do, and it is returned once
    assert c("TWAIT", 0, "b", "", "a", "0.0") == [b"a"]  # from now on [9]


def test_an_entry_that_was_evicted_is_no_news(hand: RunningServer, connect: Connect, c: Raw) -> None:
    c("TAPPEV", "a", "COUNT", 0, "f", "v")
    waiter = waiting(hand, connect, 0, "a", 0)
    c("TAPPEND", "a", "f", "v")
    assert waiter.read() == [b"a"]


def test_the_keys_in_which_a_group_has_something(c: Raw) -> None:
    groups(c, "a", "b", "c")
    for key in ("a", "b"):
        c("TAPPEND", key, "f", "v")
    assert c("TWAIT", 0, "GROUP", "g", "c", "b", "a", "b") == [b"b", b"a"]
    c("TREAD", "a", "", 10, "GROUP", "g", 0)
    assert c("TWAIT", 0, "group", "g", "a", "b") == [b"b"]
    c("TGROUP", "SETID", "a", "g", 0)
    assert c("TWAIT", 0, "GROUP", "g", "a") == [b"a"]


@pytest.mark.parametrize("proto", [2, 3])
def test_it_delivers_nothing_and_logs_nothing(hand: RunningServer, connect: Connect, proto: int) -> None:
    c = connect(proto)
    groups(c, "a")
    c("TAPPEND", "a", "f", "v")
    c("TREAD", "a", 0, 1, "GROUP", "h", 0, *RETRY)
    hand.advance(1000)
    log = hand.server.data.disk
    before = log.offset, hand.server.data.ks.digest()
    assert c("TWAIT", 0, "GROUP", "g", "a") == [b"a"]
    assert c("TWAIT", 0, "GROUP", "h", "a") == [b"a"]
    assert c("TWAIT", 0, "a", 0) == [b"a"]
    assert c("TWAIT", 1, "GROUP", "h", "a") == [b"a"]
    assert (log.offset, hand.server.data.ks.digest()) == before
    assert len(c("TREAD", "a", "", 10, "GROUP", "h", 0)) == 1
    assert len(c("TREAD", "a", "", 10, "GROUP", "g", 0)) == 1


# -- waiting -----------------------------------------------------------------------------------------------------
def test_news_of_any_key_ends_the_wait(hand: RunningServer, connect: Connect, c: Raw) -> None:
    one, two = waiting(hand, connect, 0, "a", 0, "b", 0), waiting(hand, connect, 0, "b", "", "c", "")
    assert hand.server.data.ks.waiting == {b"a": 1, b"b": 2, b"c": 1}
    c("TAPPEND", "c", "f", "v")
    assert two.read() == [b"c"]
    assert still_waiting(one, c)
    assert hand.server.data.ks.waiting == {b"a": 1, b"b": 1}
    c("TAPPEND", "b", "f", "v")
    assert one.read() == [b"b"]
    assert nothing_waits(hand.server)


def test_all_keys_that_one_command_brought_news_to(hand: RunningServer, connect: Connect, c: Raw) -> None:
    waiter = waiting(hand, connect, 0, "a", 0, "b", 0, "c", 0)
    c.pipeline(("MULTI",), ("TAPPEND", "c", "f", "v"), ("TAPPEND", "a", "f", "v"), ("EXEC",))
    assert waiter.read() == [b"a", b"c"]


@pytest.mark.parametrize("proto", [2, 3])
def test_a_null_when_the_time_is_over(hand: RunningServer, connect: Connect, c: Raw, proto: int) -> None:
    groups(c, "a")
    plain = waiting(hand, connect, 1000, "a", 0, "b", 0, proto=proto)
    group = waiting(hand, connect, 1000, "GROUP", "g", "a", proto=proto)
    hand.advance(900)
    assert still_waiting(plain, c)
    hand.advance(200)
    assert plain.read() is None
    assert group.read() is None
    assert nothing_waits(hand.server)


def test_inside_multi_nothing_waits(hand: RunningServer, connect: Connect, c: Raw) -> None:
    groups(c, "a")
    calls = ("MULTI",), ("TWAIT", 0, "a", 0), ("TWAIT", 0, "GROUP", "g", "a")
    assert c.pipeline(*calls, ("EXEC",))[-1] == [None, None]
    assert connect(3).pipeline(*calls, ("EXEC",))[-1] == [None, None]
    assert c.pipeline(*calls, ("TAPPEND", "a", "f", "v"), *calls[1:], ("EXEC",))[-1][3:] == [[b"a"], [b"a"]]
    assert nothing_waits(hand.server)


@pytest.mark.parametrize("mode", ["ALL", "WRITE"])
def test_client_pause(hand: RunningServer, connect: Connect, c: Raw, mode: str) -> None:
    """With GROUP the call counts as one that writes."""
    groups(c, "a")
    c("CLIENT", "PAUSE", 1000, mode)
    plain, group = connect(), connect()
    plain.send("TWAIT", 0, "a", 0)
    group.send("TWAIT", 0, "GROUP", "g", "a")
    eventually(lambda: held_back(hand) + hand.server.blocking.count == 2)
    assert hand.server.blocking.count == (mode == "WRITE")
    hand.advance(1100)
    eventually(lambda: hand.server.blocking.count == 2)
    c("TAPPEND", "a", "f", "v")
    assert plain.read() == group.read() == [b"a"]


def test_a_wait_stays_while_writes_are_paused(hand: RunningServer, connect: Connect, c: Raw) -> None:
    c("TAPPEND", "a", "f", "v")
    c("TREAD", "a", 0, 1, "GROUP", "g", 0, *RETRY)
    waiter = waiting(hand, connect, 0, "GROUP", "g", "a")
    late = waiting(hand, connect, 1500, "a", "")
    c("CLIENT", "PAUSE", 2000, "WRITE")
    hand.advance(1600)
    assert late.read() is None
    assert still_waiting(waiter, c), "nothing ends by time meanwhile"
    hand.advance(500 + 1000)
    assert waiter.read() == [b"a"]


# -- wrong calls -------------------------------------------------------------------------------------------------
ARITY = "ERR wrong number of arguments for 'twait' command"
TIMEOUT = "ERR timeout is"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("0",), ARITY),
        (("0", "a"), ARITY),
        (("0", "a", "0", "b"), ARITY),
        (("0", "GROUP", "g"), "ERR Invalid stream ID specified as stream command argument"),  # a key named GROUP
        (("0", "a", "x"), "ERR Invalid stream ID"),
        (("0", "a", "0", "b", "1.x"), "ERR Invalid stream ID"),
        (("-1", "a", "0"), TIMEOUT),
        (("x", "a", "0"), TIMEOUT),
        (("1.5", "GROUP", "g", "a"), TIMEOUT),
        (("0", "GROUP", "", "a"), "ERR the group's name must not be empty"),
        (("0", "GROUP", "g", "a"), "NOGROUP No such key 'a' or consumer group 'g'"),
    ],
)
def test_wrong_calls(hand: RunningServer, c: Raw, words: tuple[str, ...], error: str) -> None:
    assert c("TWAIT", *words).startswith(error)
    assert c("EXISTS", "a", "b", "GROUP") == 0
    assert nothing_waits(hand.server)


def test_the_first_key_without_the_group_is_named(c: Raw) -> None:
    groups(c, "a", "b")
    c("TAPPEND", "c", "f", "v")
    assert c("TWAIT", 0, "GROUP", "g", "a", "c", "missing") == "NOGROUP No such key 'c' or consumer group 'g'"
    assert c("TWAIT", 0, "GROUP", "g", "a", "missing", "c") == "NOGROUP No such key 'missing' or consumer group 'g'"


def test_a_key_named_group(c: Raw) -> None:
    c("TAPPEND", "GROUP", "f", "v")
    c("TAPPEND", "a", "f", "v")
    assert c("TWAIT", 0, "GROUP", 0) == [b"GROUP"]
    assert c("TWAIT", 0, "a", 0, "GROUP", 0) == [b"a", b"GROUP"]
    groups(c, "GROUP")
    c("TAPPEND", "GROUP", "f", "v")
    assert c("TWAIT", 0, "GROUP", "g", "GROUP") == [b"GROUP"]


# -- what is told of the command ---------------------------------------------------------------------------------
def test_keys_of_both_forms(c: Raw) -> None:
    assert c("COMMAND", "GETKEYS", "TWAIT", 0, "a", 0, "b", 0) == [b"a", b"b"]
    assert c("COMMAND", "GETKEYS", "TWAIT", 0, "GROUP", "g", "a", "b", "c") == [b"a", b"b", b"c"]
    assert c("COMMAND", "GETKEYS", "TWAIT", 0, "group", "g", "a") == [b"a"]
    assert c("COMMAND", "GETKEYS", "TWAIT", 0, "GROUP", 0) == [b"GROUP"]
    flags = c("COMMAND", "GETKEYSANDFLAGS", "TWAIT", 0, "a", 0)
    assert [flags[0][0], set(flags[0][1])] == [b"a", {b"RO", b"access", b"incomplete"}]
    flags = c("COMMAND", "GETKEYSANDFLAGS", "TWAIT", 0, "GROUP", "g", "a")
    assert [flags[0][0], set(flags[0][1])] == [b"a", {b"RW", b"access", b"update", b"incomplete"}]


def test_command_info_and_docs(c: Raw, connect: Connect) -> None:
    info = c("COMMAND", "INFO", "TWAIT")[0]
    assert info[:2] == [b"twait", -4]
    assert {b"write", b"blocking", b"movablekeys"} <= {bytes(flag) for flag in info[2]}
    assert {b"@write", b"@blocking", b"@stream", b"@slow"} == set(info[6])
    docs = connect(3)("COMMAND", "DOCS", "TWAIT")[b"twait"]
    assert docs[b"summary"].startswith(b"Wait until at least one of many streams")
    names = [node[b"name"] for node in docs[b"arguments"]]
    assert names == [b"milliseconds", b"streams"]
    assert [node[b"name"] for node in docs[b"arguments"][1][b"arguments"]] == [b"position", b"of-group"]
