"""INCREX of Redis 8.8. No redis-server of 8.2 has it: the vectors follow Redis's documentation and its tests."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from respserver.testing import RunningServer
from tests.wire.rawclient import Raw

MOST, LEAST = 2**63 - 1, -(2**63)
SYNTAX = "ERR syntax error"


def test_it_adds_one_by_default(c: Raw) -> None:
    assert c("INCREX", "n") == [1, 1]
    assert c("INCREX", "n") == [2, 1]
    assert c("INCREX", "n", "BYINT", -5) == [-3, -5]
    assert c("INCREX", "n", "byint", 0) == [-3, 0]
    assert c("GET", "n") == b"-3"
    assert c("OBJECT", "ENCODING", "n") == b"int"


def test_a_result_out_of_bounds_changes_nothing(c: Raw) -> None:
    c("SET", "n", 99, "EX", 500)
    assert c("INCREX", "n", "BYINT", 5, "UBOUND", 100, "EX", 10) == [99, 0]
    assert c("INCREX", "n", "BYINT", -100, "LBOUND", 0, "PERSIST") == [99, 0]
    assert (c("GET", "n"), c("TTL", "n")) == (b"99", 500)
    assert c("INCREX", "n", "UBOUND", 100) == [100, 1]
    assert c("INCREX", "new", "BYINT", 15, "UBOUND", 10) == [0, 0]
    assert c("INCREX", "new", "BYINT", 5, "LBOUND", 10) == [0, 0]
    assert c("EXISTS", "new") == 0
    c("SET", "n", 50)  # beyond the bound before
    assert c("INCREX", "n", "BYINT", 5, "UBOUND", 30) == [50, 0]
    assert c("INCREX", "n", "BYINT", -25, "UBOUND", 30) == [25, -25]
    c("SET", "n", MOST)
    assert c("INCREX", "n") == [MOST, 0]
    assert c("INCREX", "n", "BYINT", LEAST) == [-1, LEAST]
    c("SET", "n", LEAST)
    assert c("INCREX", "n", "BYINT", -1) == [LEAST, 0]


def test_saturate(c: Raw) -> None:
    c("SET", "n", 50)
    assert c("INCREX", "n", "BYINT", 100, "UBOUND", 80, "SATURATE") == [80, 30]
    assert c("INCREX", "n", "SATURATE", "LBOUND", 0, "BYINT", -100, "EX", 10) == [0, -80]
    assert (c("GET", "n"), c("TTL", "n")) == (b"0", 10)
    assert c("INCREX", "n", "BYINT", 7, "LBOUND", 0, "UBOUND", 10, "SATURATE") == [7, 7]
    c("SET", "n", 50)
    assert c("INCREX", "n", "BYINT", 5, "UBOUND", 30, "SATURATE") == [30, -20]
    assert c("INCREX", "n", "BYINT", MOST, "SATURATE") == [MOST, MOST - 30]
    assert c("INCREX", "n", "BYINT", 1, "UBOUND", LEAST, "SATURATE") == "ERR applied increment would overflow"
    assert c("GET", "n") == b"%d" % MOST


@pytest.mark.parametrize("proto", [2, 3])
def test_floats(hand: RunningServer, proto: int) -> None:
    with Raw(hand.port, proto) as c:

        def texts(*words: str | int | float) -> bytes:
            """The two numbers, as they are on the wire."""
            c.send("INCREX", "n", "BYFLOAT", *map(str, words))
            return c.sock.recv(1000)

        def numbers(first: bytes, second: bytes) -> bytes:
            if proto == 3:
                return b"*2\r\n,%b\r\n,%b\r\n" % (first, second)
            return b"*2\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(first), first, len(second), second)

        c("SET", "n", "1.50")
        assert texts(0.25) == numbers(b"1.75", b"0.25")
        assert texts("1e1", "UBOUND", 5) == numbers(b"1.75", b"0")
        assert texts("1e1", "UBOUND", 5, "SATURATE") == numbers(b"5", b"3.25")
        assert texts(-100, "LBOUND", -5.5, "SATURATE") == numbers(b"-5.5", b"-10.5")
        assert c("GET", "n") == b"-5.5"
        c("SET", "n", "1.05e1")
        assert texts(0.1) == numbers(b"10.6", b"0.1")
        assert c("INCREX", "n") == "ERR value is not an integer or out of range"
        c("DEL", "n")
        assert texts(-0.5, "UBOUND", -1.5) == numbers(b"0", b"0")
        assert c("EXISTS", "n") == 0
        c("SET", "n", "1.18e4932")


def test_the_largest_float(c: Raw) -> None:
    c("SET", "n", "1.18e4932")
    call = ("INCREX", "n", "BYFLOAT", "1e4932")
    assert c(*call)[1] == b"0"
    assert c("GET", "n") == b"1.18e4932"
    largest, applied = c(*call, "SATURATE")
    assert (len(largest), len(applied)) == (4933, 4930)
    assert c("GET", "n") == largest
    assert largest.startswith(b"1189731495357231765")
    assert c(*call, "SATURATE") == [largest, b"0"]


def test_infinite_floats(c: Raw) -> None:
    for text in ("inf", "+inf", "-infinity"):
        assert c("INCREX", "n", "BYFLOAT", text) == "ERR BYFLOAT increment cannot be Infinity"
        c("SET", "n", text)
        assert c("INCREX", "n", "BYFLOAT", 1) == "ERR value cannot be Infinity"
        assert c("GET", "n") == text.encode()
        c("DEL", "n")
    assert c("INCREX", "n", "BYFLOAT", 1, "LBOUND", "-inf", "UBOUND", "inf") == [b"1", b"1"]
    assert c("INCREX", "n", "BYFLOAT", 1, "LBOUND", "inf") == "ERR LBOUND can't be greater than UBOUND"
    both = ("INCREX", "n", "BYFLOAT", 1, "LBOUND", "inf", "UBOUND", "inf")
    assert c(*both) == [b"1", b"0"]
    assert c(*both, "SATURATE") == "ERR increment would produce NaN or Infinity"
    assert c("GET", "n") == b"1"


def test_expiry(hand: RunningServer, c: Raw) -> None:
    now = hand.server.clock.now()
    assert c("INCREX", "n", "EX", 100) == [1, 1]
    assert c("PTTL", "n") == 100_000
    hand.advance(1000)
    assert c("INCREX", "n") == [2, 1]
    assert c("PTTL", "n") == 99_000
    assert c("INCREX", "n", "PX", 500, "ENX") == [3, 1]
    assert c("PTTL", "n") == 99_000
    assert c("INCREX", "n", "EXAT", 1, "ENX") == [4, 1]
    assert c("PTTL", "n") == 99_000
    assert c("INCREX", "n", "PXAT", now + 5000) == [5, 1]
    assert c("PEXPIRETIME", "n") == now + 5000
    assert c("INCREX", "n", "PERSIST") == [6, 1]
    assert c("TTL", "n") == -1
    assert c("INCREX", "n", "PERSIST") == [7, 1]
    assert c("INCREX", "n", "ENX", "PX", 500) == [8, 1]
    assert c("PTTL", "n") == 500
    assert c("INCREX", "n", "EXAT", 1) == [9, 1]
    assert c("EXISTS", "n") == 0
    assert c("INCREX", "n", "BYFLOAT", 1, "PXAT", 1) == [b"1", b"1"]
    assert c("EXISTS", "n") == 0


def test_a_window_counter(hand: RunningServer, c: Raw) -> None:
    """Three requests a minute."""
    call = ("INCREX", "limit", "UBOUND", 3, "EX", 60, "ENX")
    assert [c(*call)[1] for _ in range(5)] == [1, 1, 1, 0, 0]
    hand.advance(59_999)
    assert c(*call) == [3, 0]
    hand.advance(2)
    assert c(*call) == [1, 1]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("FOO", SYNTAX),
        ("BYINT", SYNTAX),
        ("BYINT 1 FOO", SYNTAX),
        ("BYINT 1 BYFLOAT 1.5", SYNTAX),
        ("BYFLOAT 1.5 BYINT 1", SYNTAX),
        ("BYINT 1 BYINT 2", SYNTAX),
        ("LBOUND 0 LBOUND 1", SYNTAX),
        ("UBOUND 9 UBOUND 8", SYNTAX),
        ("SATURATE SATURATE", SYNTAX),
        ("ENX ENX EX 10", SYNTAX),
        ("PERSIST PERSIST", SYNTAX),
        ("EX 10 EX 20", SYNTAX),
        ("EX 10 PX 5000", SYNTAX),
        ("EX 10 PERSIST", SYNTAX),
        ("PERSIST EX 10", SYNTAX),
        ("PERSIST ENX", SYNTAX),
        ("ENX PERSIST", SYNTAX),
        ("EX", SYNTAX),
        ("NX", SYNTAX),
        ("KEEPTTL", SYNTAX),
        ("ENX", "ERR ENX flag requires an expiration"),
        ("BYINT 1 ENX", "ERR ENX flag requires an expiration"),
        ("BYINT 1.5", "ERR Increment is not an integer or out of range"),
        ("BYINT 9223372036854775808", "ERR Increment is not an integer or out of range"),
        ("BYFLOAT x", "ERR Increment is not a valid float"),
        ("LBOUND 1.5", "ERR LBOUND is not an integer or out of range"),
        ("UBOUND x", "ERR UBOUND is not an integer or out of range"),
        ("BYFLOAT 1 UBOUND x", "ERR UBOUND is not a valid float"),
        ("LBOUND 10 UBOUND 5", "ERR LBOUND can't be greater than UBOUND"),
        ("BYFLOAT .5 LBOUND 10.5 UBOUND 1.5", "ERR LBOUND can't be greater than UBOUND"),
        ("EX 0", "ERR invalid expire time in 'increx' command"),
        ("PX -1", "ERR invalid expire time in 'increx' command"),
        ("EX 9223372036854775807", "ERR invalid expire time in 'increx' command"),
        ("EX x", "ERR value is not an integer or out of range"),
    ],
)  # fmt: skip
def test_bad_options(c: Raw, words: str, error: str) -> None:
    assert c("INCREX", "n", *words.split()) == error
    assert c("EXISTS", "n") == 0


def test_bad_values(c: Raw) -> None:
    assert c("INCREX") == "ERR wrong number of arguments for 'increx' command"
    c("SET", "n", "hello")
    assert c("INCREX", "n", "BYFLOAT", "1.5") == "ERR value is not a valid float"
    assert c("INCREX", "n") == "ERR value is not an integer or out of range"
    c("XADD", "s", "*", "f", "v")
    wrong = "WRONGTYPE Operation against a key holding the wrong kind of value"
    assert c("INCREX", "s") == c("INCREX", "s", "BYFLOAT", 1) == wrong


def test_events(hand: RunningServer, c: Raw) -> None:
    c("CONFIG", "SET", "notify-keyspace-events", "KEA")
    with Raw(hand.port) as subscriber:
        subscriber("PSUBSCRIBE", "__keyevent@0__:*")
        calls: tuple[tuple[str | int, ...], ...] = (
            ("BYINT", 5), ("BYFLOAT", "0.5"), ("BYFLOAT", "0.5", "EX", 100), ("PERSIST",), ("PERSIST",), ("EX", 100),
            ("EX", 200, "ENX"), ("UBOUND", 0), ("EXAT", 1),
        )  # fmt: skip
        for words in calls:
            c("INCREX", "k", *words)
        c("SET", "end", 1)
        seen: list[bytes] = []
        while not seen or seen[-1] != b"set":
            seen.append(subscriber.read()[2].partition(b":")[2])
    assert [event for event in seen if event != b"new"][:-1] == [
        b"incrby", b"incrbyfloat", b"incrbyfloat", b"expire", b"incrby", b"persist", b"incrby", b"incrby", b"expire",
        b"incrby", b"del",
    ]  # fmt: skip


def test_it_survives_a_reload_and_a_transaction(c: Raw) -> None:
    assert c.pipeline(("MULTI",), ("INCREX", "n", "EX", 50), ("INCREX", "n", "UBOUND", 1), ("EXEC",))[-1] == [
        [1, 1], [1, 0],
    ]  # fmt: skip
    assert c("DEBUG", "RELOAD") == b"OK"
    assert (c("GET", "n"), c("TTL", "n")) == (b"1", 50)


NUMBERS = st.one_of(st.integers(-20, 20), st.integers(LEAST, MOST), st.sampled_from([LEAST, MOST, MOST - 1]))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None)
@given(NUMBERS, NUMBERS, st.none() | NUMBERS, st.none() | NUMBERS, st.booleans(), st.booleans())
def test_any_numbers(
    c: Raw, old: int, by: int, lower: int | None, upper: int | None, saturate: bool, floats: bool
) -> None:
    """Integers; as floats, they have 64 bits, too, so that sums in the range of integers are exact."""
    c("SET", "n", old)
    words = ["BYFLOAT" if floats else "BYINT", str(by)]
    words += [] if lower is None else ["LBOUND", str(lower)]
    words += [] if upper is None else ["UBOUND", str(upper)]
    words += ["SATURATE"] if saturate else []
    limit = Fraction(10) ** 4000 if floats else None
    low = (LEAST if limit is None else -limit) if lower is None else lower
    high = (MOST if limit is None else limit) if upper is None else upper
    reply = c("INCREX", "n", *words)
    if low > high:
        assert reply == "ERR LBOUND can't be greater than UBOUND"
        return
    total = min(max(old + by, low), high)
    wanted = [int(total), int(total) - old]
    if total == old + by:
        wanted[1] = by
    elif not saturate:
        wanted = [old, 0]
    elif not floats and not LEAST <= wanted[1] <= MOST:
        assert reply == "ERR applied increment would overflow"
        return
    if floats and max(map(abs, wanted)) > 2**64:
        return  # rounded
    assert [int(number) for number in reply] == wanted
    assert int(c("GET", "n")) == wanted[0]
