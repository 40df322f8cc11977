"""The failure policy: which lists it takes, and what it decides."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidelog import Entry, StreamId
from tidelog.topics import UndecodableError
from tidelog.workers import AppError, DeadLetter, Halt, Park, Pause, Policy, Retry, Skip
from tidelog.workers.declare.policy import Again


def even() -> float:
    return 0.5  # neither up nor down


def test_retries_then_the_ending() -> None:
    policy = Policy.of([Retry(3, first=1.0, most=3.0), Park()])
    error = ValueError("no")
    assert [policy.decide(error, attempt, even) for attempt in (1, 2, 3, 4, 5)] == [
        Again(1.0), Again(2.0), Again(3.0), Park(), Park(),
    ]  # fmt: skip


def test_without_retries() -> None:
    for ending in (DeadLetter("failures"), Skip(), Park(), Pause(), Halt()):
        assert Policy.of([ending]).decide(ValueError(), 1) == ending


def test_delays_grow_spread_and_stay_finite() -> None:
    retry = Retry(10_000, first=0.5, most=60.0, jitter=0.2)
    assert [retry.delay(1, chance) for chance in (0.0, 0.5, 1.0)] == pytest.approx([0.4, 0.5, 0.6])
    assert retry.delay(10_000, 0.5) == 60.0
    assert Retry(1, first=0, most=0).delay(1, 1.0) == 0
    delays = {Policy.of([Retry(3), Skip()]).decide(ValueError(), 1) for _ in range(20)}
    assert len(delays) > 1  # chance, not a constant
    assert all(isinstance(again, Again) and 0.9 <= again.delay <= 1.1 for again in delays)


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
        ([], "on_error needs exactly one ending, DeadLetter"),
        ([Retry(3)], "needs exactly one ending"),
        ([Skip(), Halt()], "needs exactly one ending"),
        ([Skip(), Retry(3)], r"at most one Retry\(...\), then the ending"),
        ([Retry(3), Retry(5), Skip()], r"at most one Retry\(...\), then the ending"),
        ([Skip], r"on_error: Skip is a class: write Skip\(...\)"),
        ([Retry, Skip()], r"on_error: Retry is a class"),
        (["skip"], r"on_error: 'skip' is neither Retry\(...\) nor"),
        ("skip", "on_error is a list such as"),
        (Skip(), "on_error is a list such as"),
    ],
)
def test_lists_that_make_no_sense(steps: Any, message: str) -> None:
    with pytest.raises(AppError, match=message):
        Policy.of(steps)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Retry(0), "Retry: n is how often to try again, from 1: 0"),
        (lambda: Retry(2.5), "Retry: n is how often"),  # type: ignore[arg-type]
        (lambda: Retry(True), "Retry: n is how often"),
        (lambda: Retry(3, first=-1), "Retry: first must be a number from 0: -1"),
        (lambda: Retry(3, most=float("nan")), "Retry: most must be a number from 0"),
        (lambda: Retry(3, first=10, most=5), r"Retry: most \(5 s\) is below first \(10 s\)"),
        (lambda: Retry(3, jitter=2), "Retry: jitter is a fraction from 0 to 1: 2"),
        (lambda: DeadLetter(""), "DeadLetter: topic '': a name has 1 to 200 characters"),
        (lambda: DeadLetter(5), "DeadLetter: topic 5: a name has"),  # type: ignore[arg-type]
    ],
)
def test_parts_that_make_no_sense(make: Any, message: str) -> None:
    with pytest.raises(AppError, match=message):
        make()
