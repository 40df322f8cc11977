"""Logins wait after failures from their address: counted within a time that the test moves."""

from __future__ import annotations

from heapq import heapreplace

import pytest

from commands.users.throttle import (
    ABREAST,
    ADDRESSES,
    FIRST_MS,
    FORGET_MS,
    FREE,
    LONGEST_LOCAL_MS,
    LONGEST_MS,
    QUEUE,
    LoginThrottle,
)


def fail(throttle: LoginThrottle, count: int, now: int = 0, address: str = "a") -> None:
    for _ in range(count):
        throttle.failed(address, now)


def test_the_first_failures_are_free() -> None:
    throttle = LoginThrottle()
    for _ in range(FREE):
        assert throttle.wait("a", False, 0) == 0
        throttle.failed("a", 0)
    assert throttle.wait("a", False, 0) == FIRST_MS
    assert throttle.wait("b", False, 0) == 0


def test_waits_double_up_to_a_longest_one() -> None:
    throttle = LoginThrottle()
    fail(throttle, FREE)
    now, waits = 0, []
    for _ in range(8):
        waits.append(throttle.wait("a", False, now))
        now += waits[-1]
        throttle.failed("a", now)
    assert waits == [100, 200, 400, 800, 1600, 3200, LONGEST_MS, LONGEST_MS]
    assert throttle.wait("a", True, now) == LONGEST_LOCAL_MS


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("connections", [1, 10, 1000])
def test_how_many_guesses_an_address_has(local: bool, connections: int) -> None:
    """Each connection guesses again as soon as it may, for a minute."""
    throttle, end = LoginThrottle(), 60_000
    due = [0] * connections  # when the connections send their next guess; a heap
    guesses = 0
    while due[0] < end:
        now = due[0]
        heapreplace(due, now + throttle.wait("a", local, now))
        guesses += 1
        throttle.failed("a", now)  # in truth when it is tried
    longest = LONGEST_LOCAL_MS if local else LONGEST_MS
    at_most = max(ABREAST, connections // QUEUE)  # in each of the longest waits
    assert guesses <= FREE + connections + end // longest * at_most


def test_a_login_never_waits_for_ever() -> None:
    """Also if others that wait have gone: their places in the queue are not given back."""
    throttle = LoginThrottle()
    fail(throttle, 100)
    waits = [throttle.wait("a", False, 0) for _ in range(10_000)]
    assert waits[0] == LONGEST_MS
    assert waits[1] == LONGEST_MS + LONGEST_MS // ABREAST
    assert max(waits) == waits[-1] == QUEUE * LONGEST_MS


def test_failures_are_forgotten() -> None:
    throttle = LoginThrottle()
    fail(throttle, 100)
    assert throttle.wait("a", False, FORGET_MS) > 0
    assert throttle.wait("a", False, 3 * FORGET_MS) == 0
    assert len(throttle) == 0
    fail(throttle, FREE - 1, 4 * FORGET_MS)
    fail(throttle, FREE - 1, 6 * FORGET_MS)
    assert throttle.wait("a", False, 6 * FORGET_MS) == 0


def test_the_table_is_bounded_and_forgets_the_oldest() -> None:
    throttle = LoginThrottle()
    for address in ("first", "second"):
        fail(throttle, FREE, address=address)
    for n in range(ADDRESSES - 2):
        throttle.failed(f"x{n}", 1)
    throttle.failed("first", 2)  # now the second one is the oldest
    throttle.failed("last", 3)
    assert len(throttle) == ADDRESSES
    assert throttle.wait("first", False, 3) > 0
    assert throttle.wait("second", False, 3) == 0
