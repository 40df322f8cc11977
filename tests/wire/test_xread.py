"""XREAD that waits, and ``+``. What does not wait is in ``test_differential_streams``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from respserver.testing import RunningServer, nothing_waits
from tests.waiting import eventually
from tests.wire.rawclient import Raw

Connect = Callable[..., Raw]


def waiting(hand: RunningServer, connect: Connect, *words: str | int, proto: int = 2) -> Raw:
    """A new client that waits with XREAD BLOCK and these words."""
    raw = connect(proto)
    count = hand.server.blocking.count
    raw.send("XREAD", "BLOCK", *words)
    eventually(lambda: hand.server.blocking.count == count + 1)
    return raw


def still_waiting(raw: Raw, c: Raw) -> bool:
    c("PING")
    return raw.nothing_yet()


def test_an_entry_wakes_all_that_wait_for_its_key(hand: RunningServer, connect: Connect, c: Raw) -> None:
    last = waiting(hand, connect, 0, "STREAMS", "a", "$")
    both = waiting(hand, connect, 0, "COUNT", 1, "STREAMS", "b", "a", 0, 0)
    later = waiting(hand, connect, 0, "STREAMS", "a", "1-1")
    c("XADD", "a", "1-1", "f", "v")
    assert last.read() == both.read() == [[b"a", [[b"1-1", [b"f", b"v"]]]]]
    assert still_waiting(later, c)
    c("TAPPEND", "b", "f", "v")
    assert still_waiting(later, c)
    c("XADD", "a", "1-2", "f", "w")
    assert later.read() == [[b"a", [[b"1-2", [b"f", b"w"]]]]]
    assert nothing_waits(hand.server)


def test_a_map_in_resp3(hand: RunningServer, connect: Connect, c: Raw) -> None:
    reader = waiting(hand, connect, 0, "STREAMS", "a", "b", "$", "$", proto=3)
    c("XADD", "b", "1-1", "f", "v")
    assert reader.read() == {b"b": [[b"1-1", [b"f", b"v"]]]}


def test_what_a_transaction_brought_comes_at_once(hand: RunningServer, connect: Connect, c: Raw) -> None:
    reader = waiting(hand, connect, 0, "STREAMS", "a", "b", "a", "$", "$", "1-1")
    one = waiting(hand, connect, 0, "COUNT", 1, "STREAMS", "a", "b", 0, 0)
    newest = waiting(hand, connect, 0, "COUNT", 5, "STREAMS", "a", "+")
    calls = [("XADD", "b", "1-1", "f", 1), ("XADD", "a", "1-1", "f", 2), ("XADD", "a", "1-2", "f", 3)]
    c.pipeline(("MULTI",), *calls, ("EXEC",))
    first, second = [b"1-1", [b"f", b"2"]], [b"1-2", [b"f", b"3"]]
    assert reader.read() == [[b"a", [first, second]], [b"b", [[b"1-1", [b"f", b"1"]]]], [b"a", [second]]]
    assert one.read() == [[b"a", [first]], [b"b", [[b"1-1", [b"f", b"1"]]]]]
    assert newest.read() == [[b"a", [second]]]


def test_what_is_gone_again_wakes_nobody(hand: RunningServer, connect: Connect, c: Raw) -> None:
    reader = waiting(hand, connect, 0, "STREAMS", "a", "$")
    c.pipeline(("MULTI",), ("XADD", "a", "1-1", "f", "v"), ("DEL", "a"), ("EXEC",))
    assert still_waiting(reader, c)
    c.pipeline(("MULTI",), ("XADD", "a", "1-1", "f", "v"), ("XTRIM", "a", "MAXLEN", 0), ("EXEC",))
    assert still_waiting(reader, c)
    c("XADD", "a", "MAXLEN", 0, "2-1", "f", "v")
    assert still_waiting(reader, c)
    c("DEL", "a")
    c("SET", "a", "v")
    assert still_waiting(reader, c)
    c("DEL", "a")
    c("XADD", "a", "0-1", "f", "v")
    assert reader.read() == [[b"a", [[b"0-1", [b"f", b"v"]]]]]


def test_another_key_of_the_wrong_type_ends_the_wait(hand: RunningServer, connect: Connect, c: Raw) -> None:
    reader = waiting(hand, connect, 0, "STREAMS", "a", "b", "$", "$")
    c("SET", "b", "v")
    assert still_waiting(reader, c)
    c("XADD", "a", "1-1", "f", "v")
    assert str(reader.read()).startswith("WRONGTYPE")
    assert nothing_waits(hand.server)


def test_renamed_to_what_somebody_waits_for(hand: RunningServer, connect: Connect, c: Raw) -> None:
    reader = waiting(hand, connect, 0, "STREAMS", "a", "0")
    c("XADD", "b", "1-1", "f", "v")
    c("RENAME", "b", "a")
    assert reader.read() == [[b"a", [[b"1-1", [b"f", b"v"]]]]]


@pytest.mark.parametrize("proto", [2, 3])
def test_timeout(hand: RunningServer, connect: Connect, c: Raw, proto: int) -> None:
    reader = waiting(hand, connect, 100, "STREAMS", "a", "b", "$", 0, proto=proto)
    hand.advance(99)
    assert still_waiting(reader, c)
    hand.advance(1)
    assert reader.read() is None
    assert nothing_waits(hand.server)


def test_all_that_wait_for_the_same_get_it(hand: RunningServer, connect: Connect, c: Raw) -> None:
    readers = [waiting(hand, connect, 0, "STREAMS", "a", "b", "$", "$") for _ in range(5)]
    other = waiting(hand, connect, 0, "STREAMS", "a", "$", proto=3)
    c("XADD", "a", "1-1", "f", "v")
    assert [reader.read() for reader in readers] == [[[b"a", [[b"1-1", [b"f", b"v"]]]]]] * 5
    assert other.read() == {b"a": [[b"1-1", [b"f", b"v"]]]}


def test_a_large_answer_to_one_that_waited(hand: RunningServer, connect: Connect, c: Raw) -> None:
    reader = waiting(hand, connect, 0, "STREAMS", "a", "b", "$", "$")
    value = b"x" * 10_000
    calls = [("XADD", "ab"[n % 2], f"{n}-1", "f", value) for n in range(1, 121)]
    c.pipeline(("MULTI",), *calls, ("EXEC",))
    answer = reader.read()
    assert [name for name, _ in answer] == [b"a", b"b"]
    assert [entry[0] for entry in answer[0][1]] == [b"%d-1" % n for n in range(2, 121, 2)]
    assert all(entry[1] == [b"f", value] for _, entries in answer for entry in entries)


def test_the_newest_entry(c: Raw) -> None:
    assert c("XREAD", "STREAMS", "a", "+") is None
    for name in ("1-0", "2-0", "3-0"):
        c("XADD", "a", name, "f", name)
    assert c("XREAD", "COUNT", 3, "STREAMS", "a", "b", "+", "+") == [[b"a", [[b"3-0", [b"f", b"3-0"]]]]]
    assert c("XREAD", "BLOCK", 0, "STREAMS", "a", "+") == [[b"a", [[b"3-0", [b"f", b"3-0"]]]]]
    c("XADD", "a", "3-18446744073709551615", "f", "v")
    assert c("XREAD", "STREAMS", "a", "+") == [[b"a", [[b"3-18446744073709551615", [b"f", b"v"]]]]]
    c("XTRIM", "a", "MAXLEN", 0)
    assert c("XREAD", "STREAMS", "a", "+") is None


def test_keys_and_ids_must_be_as_many(c: Raw) -> None:
    assert c("XREAD", "STREAMS", "a", "b", "0") == (
        "ERR Unbalanced 'xread' list of streams: for each stream key an ID, '+', or '$' must be specified."
    )


def test_options_of_xreadgroup(c: Raw) -> None:
    for words in (("GROUP", "g", "c"), ("NOACK",), ("CLAIM", 10)):
        error = c("XREAD", "COUNT", 2, *words, "STREAMS", "a", 0)
        assert error == f"ERR The {words[0]} option is only supported by XREADGROUP. You called XREAD instead."


def test_keys_are_found(c: Raw) -> None:
    words = ("COUNT", 5, "BLOCK", 0, "STREAMS", "a", "streams", 0, 0)
    assert c("COMMAND", "GETKEYS", "XREAD", *words) == [b"a", b"streams"]


def test_a_user_that_may_read_some_keys_only(c: Raw, connect: Connect) -> None:
    c("ACL", "SETUSER", "u", "on", "nopass", "+@all", "%R~a*")
    user = connect()
    user("AUTH", "u", "x")
    c("XADD", "a1", "1-1", "f", "v")
    assert user("XREAD", "STREAMS", "a1", "a2", 0, 0) == [[b"a1", [[b"1-1", [b"f", b"v"]]]]]
    assert str(user("XREAD", "STREAMS", "a1", "b", 0, 0)).startswith("NOPERM")
    assert str(user("XREAD", "COUNT", 1, "STREAMS", "b", "a1", 0, 0)).startswith("NOPERM")
    assert str(user("XADD", "a1", "*", "f", "v")).startswith("NOPERM")
    assert user("XRANGE", "a1", "-", "+") == [[b"1-1", [b"f", b"v"]]]
