"""Delays between attempts, and the options for them."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.options.retry import RetryOptions
from tidelog.options.structs import Problems, read
from tidelog.transport.backoff import Backoff, Delays


def test_delays_grow_up_to_the_maximum() -> None:
    backoff = Backoff(first=0.1, most=1.0)
    assert [backoff.delay(n) for n in (1, 2, 3, 4, 5)] == [0.1, 0.2, 0.4, 0.8, 1.0]
    assert backoff.delay(10**9) == 1.0
    assert Backoff(first=0.0, most=1.0).delay(5) == 0.0


def test_jitter_only_shortens() -> None:
    backoff = Backoff(first=2.0, most=10.0, growth=1.0, jitter=0.5)
    assert backoff.delay(3, lambda: 0.0) == 2.0
    assert backoff.delay(3, lambda: 1.0) == 1.0
    assert all(1.0 <= backoff.delay(3) <= 2.0 for _ in range(100))


def test_a_series() -> None:
    delays = Delays(Backoff(first=1.0, most=4.0, attempts=2))
    assert (delays.next(), delays.exhausted) == (1.0, False)
    assert (delays.next(), delays.exhausted) == (2.0, True)
    delays.reset()
    assert not delays.exhausted
    assert delays.next() == 1.0


@pytest.mark.parametrize(
    "values", [{"first": -1.0}, {"first": 6.0}, {"growth": 0.9}, {"jitter": 1.1}, {"jitter": -0.1}, {"attempts": 0}]
)
def test_values_out_of_range(values: dict[str, Any]) -> None:
    (name,) = values
    with pytest.raises(ValueError, match=name):
        Backoff(**values)


def test_options() -> None:
    problems = Problems()
    options = read(RetryOptions, {"attempts": 3, "first": "200ms", "most": 4, "jitter": 0}, "retry", problems)
    assert options is not None
    assert options.backoff == Backoff(first=0.2, most=4.0, growth=2.0, jitter=0.0, attempts=3)
    assert read(RetryOptions, {"attempts": 0, "growth": 0.5}, "retry", problems) is None
    assert [path for path, _ in problems.found] == ["retry.attempts", "retry.growth"]
