"""The failure policy: which lists it takes, and what it decides."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidelog import Entry, StreamId
from tidelog.topics import UndecodableError
from tidelog.workers import AppError, DeadLetter, Halt, Park, Pause, Policy, Retry, Skip
from tidelog.workers.declare.policy import RetryAfter


def even() -> float:
    return 0.0  # the whole delay


def test_retries_then_the_ending() -> None:
    policy = Policy.of([Retry(3, first=1.0, most=3.0), Park()])
    error = ValueError("no")
    assert [policy.decide(error, attempt, even) for attempt in (1, 2, 3, 4, 5)] == [
        RetryAfter(1.0), RetryAfter(2.0), RetryAfter(3.0), Park(), Park(),
    ]  # fmt: skip


def test_without_retries() -> None:
    for final in (DeadLetter("failures"), Skip(), Park(), Pause(), Halt()):
        assert Policy.of([final]).decide(ValueError(), 1) == final


def test_delays_grow_spread_and_stay_finite() -> None:
    retry = Retry(10_000, first=0.5, most=60.0, jitter=0.2)
    assert [retry.backoff.delay(1, lambda: chance) for chance in (0.0, 0.5, 1.0)] == pytest.approx([0.5, 0.45, 0.4])  # noqa: B023
    assert retry.backoff.delay(10_000, even) == 60.0
    assert Retry(1, first=0, most=0).backoff.delay(1) == 0
    assert [Retry(9, growth=3.0).backoff.delay(at, even) for at in (1, 2, 3)] == [1.0, 3.0, 9.0]
    delays = {Policy.of([Retry(3), Skip()]).decide(ValueError(), 1) for _ in range(20)}
    assert len(delays) > 1  # chance, not a constant
    assert all(isinstance(again, RetryAfter) and 0.9 <= again.delay <= 1.0 for again in delays)


def test_an_entry_that_is_no_record_is_not_tried_again() -> None:
    error = UndecodableError(b"orders:0", Entry(StreamId(1, 0), [b"a", b"b"]), "no")
    assert Policy.of(None).decide(error, 1) == DeadLetter()


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(1), GeneratorExit()])
def test_a_cancellation_is_no_failure(error: BaseException) -> None:
    with pytest.raises(type(error)):
        Policy.of(None).decide(error, 1)


def test_where_dead_letters_go() -> None:
    assert DeadLetter().target("orders") == "orders.dead"
    assert DeadLetter("failures").target("orders") == "failures"


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([], "on_error needs exactly one final action, DeadLetter"),
        ([Retry(3)], "needs exactly one final action"),
        ([Skip(), Halt()], "needs exactly one final action"),
        ([Skip(), Retry(3)], r"at most one Retry\(...\), followed by the final"),
        ([Retry(3), Retry(5), Skip()], r"at most one Retry\(...\), followed by the final"),
        ([Skip], r"on_error: Skip is a class: write Skip\(...\)"),
        ([Retry, Skip()], r"on_error: Retry is a class"),
        (["skip"], r"on_error: 'skip' is neither Retry\(...\) nor"),
        ("skip", "on_error must be a list such as"),
        (Skip(), "on_error must be a list such as"),
    ],
)
def test_lists_that_make_no_sense(steps: Any, message: str) -> None:
    with pytest.raises(AppError, match=message):
        Policy.of(steps)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Retry(0), "Retry: attempts must be a whole number from 1: 0"),
        (lambda: Retry(2.5), "Retry: attempts must be a whole number"),  # type: ignore[arg-type]
        (lambda: Retry(True), "Retry: attempts must be a whole number"),
        (lambda: Retry(3, first=-1), "Retry: first must be from 0 to most"),
        (lambda: Retry(3, most=float("nan")), "Retry: most must be a number: nan"),
        (lambda: Retry(3, first=10, most=5), r"Retry: first must be from 0 to most \(5 s\): 10 s"),
        (lambda: Retry(3, jitter=2), "Retry: jitter must be from 0 to 1: 2"),
        (lambda: Retry(3, growth=0.5), "Retry: growth must be from 1"),
        (lambda: DeadLetter(""), "DeadLetter: topic '': a name has 1 to 200 characters"),
        (lambda: DeadLetter(5), "DeadLetter: topic 5: a name has"),  # type: ignore[arg-type]
    ],
)
def test_parts_that_make_no_sense(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
